// `1bit tokenize` and `1bit detokenize`: text to ids and back, one text, or one JSON object a line.
#include <charconv>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "cli/output.h"
#include "text/tokenizer.h"

namespace onebit {
namespace {

Tokenizer open_tokenizer(const Options& options) {
  if (options.model.empty()) fail(ErrorKind::usage, "-m FILE is missing: whose tokenizer?");
  return Tokenizer(tokenizer_data_from_gguf(GgufFile::open(options.model)));
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const Options& options, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode(text, options.no_parse_special ? ParseSpecial::no : ParseSpecial::yes);
  if (options.add_special) tokenizer.add_special_ids(ids);
  return ids;
}

bool in_vocabulary(const Tokenizer& tokenizer, int64_t id) { return id >= 0 && id < tokenizer.n_vocab(); }

/// Numbers between blanks, commas and brackets.
std::vector<int32_t> parse_ids(const Tokenizer& tokenizer, std::string text) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream words(text);
  std::vector<int32_t> ids;
  for (std::string word; words >> word;) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || !in_vocabulary(tokenizer, id)) {
      refuse("input: expected token ids from 0 to {}, found \"{}\"", tokenizer.n_vocab() - 1, printable(word));
    }
    ids.push_back(id);
  }
  return ids;
}

/// One line of JSON lines.
struct Line {
  int64_t number = 0;
  Json object;
};

Json encode_line(const Tokenizer& tokenizer, const Options& options, const Line& line) {
  const auto text = line.object.find("text");
  if (text == line.object.end() || !text->is_string()) refuse("line {}: expected {{\"text\": \"...\"}}", line.number);
  return Json{{"ids", encode(tokenizer, options, text->get_ref<const std::string&>())}};
}

Json decode_line(const Tokenizer& tokenizer, const Line& line) {
  const auto list = line.object.find("ids");
  if (list == line.object.end() || !list->is_array()) refuse("line {}: expected {{\"ids\": [...]}}", line.number);
  std::vector<int32_t> ids;
  for (const Json& id : *list) {
    if (!id.is_number_integer() || !in_vocabulary(tokenizer, id.get<int64_t>())) {
      refuse("line {}: expected token ids from 0 to {}, found {}", line.number, tokenizer.n_vocab() - 1, id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return Json{{"text", tokenizer.decode(ids)}};
}

/// Each line of the input that is not empty, an object, through `convert`.
void convert_lines(const Options& options, const std::function<Json(const Line&)>& convert) {
  std::istringstream lines(prompt_text(options));
  std::string text;
  for (int64_t number = 1; std::getline(lines, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Line line{number, Json::parse(text, nullptr, false)};
    if (!line.object.is_object()) refuse("line {}: expected a JSON object", number);
    print_json(convert(line));
  }
}

}  // namespace

int cmd_tokenize(const Options& options) {
  const Tokenizer tokenizer = open_tokenizer(options);
  if (options.jsonl) {
    convert_lines(options, [&](const Line& line) { return encode_line(tokenizer, options, line); });
    return 0;
  }
  std::string line;
  for (const int32_t id : encode(tokenizer, options, prompt_text(options))) {
    line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  }
  print(line + "\n");
  return 0;
}

int cmd_detokenize(const Options& options) {
  const Tokenizer tokenizer = open_tokenizer(options);
  if (options.jsonl) {
    convert_lines(options, [&](const Line& line) { return decode_line(tokenizer, line); });
    return 0;
  }
  print(tokenizer.decode(parse_ids(tokenizer, prompt_text(options))));
  return 0;
}

}  // namespace onebit
