// The program: which command runs, and the one place where failures become a line on stderr and an exit code.
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace onebit {
namespace {

int run_command(const Options& options) {
  switch (options.command) {
    case kServe:
      return cmd_serve(options);
    case kRun:
      return cmd_run(options);
    case kChat:
      return cmd_chat(options);
    case kPlan:
      return cmd_plan(options);
    case kBench:
      return cmd_bench(options);
    case kEval:
      return cmd_eval(options);
    case kImatrix:
      return cmd_imatrix(options);
    case kInspect:
      return cmd_inspect(options);
    case kTokenize:
      return cmd_tokenize(options);
    case kDetokenize:
      return cmd_detokenize(options);
    case kQuantize:
      return cmd_quantize(options);
    case kConvert:
      return cmd_convert(options);
    case kVersion:
      return cmd_version(options);
    case kHelp:
      return cmd_help(options);
  }
  check_failed("every command is listed", __FILE__, __LINE__);
}

/// The command as far as the arguments tell it, for messages.
std::string command_name(const std::vector<std::string>& arguments) {
  for (const CommandRow& row : command_rows()) {
    if (!arguments.empty() && arguments.front() == row.name) return row.name;
  }
  return !arguments.empty() && arguments.front().starts_with("-") ? "serve" : "";
}

int report(const std::string& command, const std::string& message, int exit_code) {
  const std::string line = fmt::format("1bit{}{}: {}\n", command.empty() ? "" : " ", command, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return exit_code;
}

int run_program(const std::string& program, const std::vector<std::string>& arguments) {
  try {
    const Options options = parse_command_line(program, arguments);
    if (options.help) print(help_text(command_row(options.command)));
    const int code = options.help ? 0 : run_command(options);
    flush();
    return code;
  } catch (const Error& error) {
    return report(command_name(arguments), error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report(command_name(arguments), "out of memory", static_cast<int>(ErrorKind::out_of_memory));
  } catch (const std::exception& error) {
    return report(command_name(arguments), error.what(), static_cast<int>(ErrorKind::runtime));
  }
}

}  // namespace
}  // namespace onebit

int main(int argc, char** argv) {
  return onebit::run_program(argc > 0 ? argv[0] : "1bit", {argv + std::min(argc, 1), argv + argc});
}
