// Arguments to Options. CLI11 cuts the command line; before it sees them, every spelling becomes the flag's name (so
// that llama-server's single-dash long flags work), and afterwards every value is checked against its row.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "cli/options.h"

namespace onebit {
namespace {

bool looks_like_flag(std::string_view text) { return text.size() > 1 && text[0] == '-'; }

const FlagRow* find_row(std::string_view spelling, CommandBit command) {
  for (const FlagRow& row : flag_rows()) {
    if (!row.belongs_to(command)) continue;
    const std::vector<std::string> known = row.spellings();
    if (std::find(known.begin(), known.end(), spelling) != known.end()) return &row;
  }
  return nullptr;
}

bool takes_value(const FlagRow& row) { return *row.value && *row.value != '['; }

/// Every flag under its name, its value an argument of its own; refuses a flag whose value is missing.
std::vector<std::string> with_names(const std::vector<std::string>& arguments, CommandBit command) {
  std::vector<std::string> out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      out.insert(out.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const size_t equal = argument.find('=');
    const FlagRow* row = looks_like_flag(argument) ? find_row(argument.substr(0, equal), command) : nullptr;
    if (!row) {
      out.push_back(argument);
      continue;
    }
    if (*row->value == 0 && equal != std::string::npos) {
      fail(ErrorKind::usage, "{} takes no value: {}", row->name(), argument);
    }
    if (!takes_value(*row)) {
      out.push_back(row->name() + (equal == std::string::npos ? "" : argument.substr(equal)));
      continue;
    }
    out.push_back(row->name());
    if (equal != std::string::npos) {
      out.push_back(argument.substr(equal + 1));
    } else if (i + 1 == arguments.size() || find_row(arguments[i + 1], command)) {
      fail(ErrorKind::usage, "{} needs a value: {}", argument, row->shown());
    } else {
      out.push_back(arguments[++i]);
    }
  }
  return out;
}

double parse_number(const FlagRow& row, const std::string& text, bool whole) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool ok = error == std::errc() && stop == end && std::isfinite(value) && value >= row.low && value <= row.high;
  if (ok && (!whole || value == std::floor(value))) return value;
  fail(ErrorKind::usage, "{}: expected a {}number from {} to {}, found \"{}\"", row.shown(), whole ? "whole " : "",
       row.low, row.high, text);
}

void check_choice(const FlagRow& row, const std::string& text) {
  const std::string choices = row.value;
  if (choices.find('|') == std::string::npos) return;
  const bool one = !text.empty() && text.find('|') == std::string::npos;
  if (one && fmt::format("|{}|", choices).find(fmt::format("|{}|", text)) != std::string::npos) return;
  fail(ErrorKind::usage, "{}: expected one of {}, found \"{}\"", row.shown(), choices, text);
}

/// Puts the values of one flag into the options.
struct Setter {
  Options& options;
  const FlagRow& row;
  const std::vector<std::string>& values;

  void operator()(std::monostate) const {}
  void operator()(bool Options::*field) const { options.*field = true; }
  void operator()(int64_t Options::*field) const { options.*field = whole(); }
  void operator()(double Options::*field) const { options.*field = parse_number(row, values.back(), false); }
  void operator()(std::optional<int64_t> Options::*field) const { options.*field = whole(); }
  void operator()(std::optional<double> Options::*field) const {
    options.*field = parse_number(row, values.back(), false);
  }
  void operator()(std::string Options::*field) const {
    check_choice(row, values.back());
    options.*field = values.back();
  }
  void operator()(std::vector<std::string> Options::*field) const { options.*field = values; }
  int64_t whole() const { return static_cast<int64_t>(parse_number(row, values.back(), true)); }
};

struct Definition {
  const FlagRow* row;
  CLI::Option* option;
};

/// A CLI11 description of the flags of one command: full names, and one-letter ones for glued forms (-n64).
std::vector<Definition> define_flags(CLI::App& app, CommandBit command) {
  std::vector<Definition> all;
  app.set_help_flag();
  for (const FlagRow& row : flag_rows()) {
    if (!row.belongs_to(command)) continue;
    std::string names = row.name();
    for (const std::string& spelling : row.spellings()) {
      if (spelling.size() == 2) names += "," + spelling;
    }
    CLI::Option* option = *row.value ? app.add_option(names) : app.add_flag(names);
    if (takes_value(row)) option->expected(1);
    if (*row.value == '[') option->expected(0, 1);
    option->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    all.push_back({&row, option});
  }
  return all;
}

void parse_into(Options& options, const std::vector<std::string>& arguments) {
  const std::string command = command_row(options.command).name;
  CLI::App app;
  const std::vector<Definition> flags = define_flags(app, options.command);
  app.allow_extras();
  std::vector<std::string> reversed = with_names(arguments, options.command);
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::usage, "{}; see `1bit {} --help`", error.what(), command);
  }
  for (const Definition& flag : flags) {
    if (flag.option->count() == 0) continue;
    options.given.insert(flag.row->name());
    std::visit(Setter{options, *flag.row, flag.option->results()}, flag.row->target);
  }
  bool flags_ended = false;
  for (const std::string& extra : app.remaining()) {
    if (extra == "--" && !flags_ended) {
      flags_ended = true;
    } else if (looks_like_flag(extra) && !flags_ended) {
      fail(ErrorKind::usage, "unknown flag {}; see `1bit {} --help`", extra, command);
    } else {
      options.files.push_back(extra);
    }
  }
}

void check_files(const Options& options) {
  const CommandRow& row = command_row(options.command);
  const auto n = static_cast<int>(options.files.size());
  if (row.n_files < 0 ? n <= 1 : n == row.n_files) return;
  if (n > row.n_files && row.n_files >= 0) {
    fail(ErrorKind::usage, "unexpected argument \"{}\"; usage: 1bit {} {}", options.files[row.n_files], row.name,
         row.usage);
  }
  fail(ErrorKind::usage, "expected {} file name(s), found {}; usage: 1bit {} {}", row.n_files, n, row.name, row.usage);
}

}  // namespace

Options parse_command_line(std::string_view program, const std::vector<std::string>& arguments) {
  const std::string_view base = program.substr(program.find_last_of('/') + 1);
  const std::string first = arguments.empty() ? "" : arguments.front();
  Options options;
  if (base != "llama-server" && !looks_like_flag(first)) {
    if (arguments.empty()) fail(ErrorKind::usage, "which command? see `1bit help`");
    options.command = find_command(first).bit;
    parse_into(options, {arguments.begin() + 1, arguments.end()});
  } else if (base != "llama-server" && arguments.size() == 1 && (first == "-h" || first == "--help")) {
    options.command = kHelp;
  } else if (arguments.size() == 1 && first == "--version") {
    options.command = kVersion;
  } else {
    options.command = kServe;
    parse_into(options, arguments);
  }
  if (!options.help) check_files(options);
  return options;
}

void apply_arguments(Options& options, const std::vector<std::string>& arguments) { parse_into(options, arguments); }

}  // namespace onebit
