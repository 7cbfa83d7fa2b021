// Every part of tokenizer.json that changes ids is either understood or refused by name.
#include "text/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "gguf/file.h"

namespace onebit {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxVocab = int64_t{1} << 22;  // published vocabularies end below 2^19

Json parse(const std::string& text, const char* name) {
  if (text.empty()) return Json::object();
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse("{}: expected a JSON object", name);
  return json;
}

/// A member, or null.
const Json& member(const Json& json, const char* key) {
  static const Json null;
  if (!json.is_object()) return null;
  const auto it = json.find(key);
  return it == json.end() ? null : *it;
}

std::string text_of(const Json& json, const char* what) {
  if (!json.is_string()) refuse("tokenizer.json: {} is not a string", what);
  return json.get<std::string>();
}

bool flag(const Json& json, const char* key, bool absent) {
  const Json& value = member(json, key);
  if (value.is_null()) return absent;
  if (!value.is_boolean()) refuse("tokenizer.json: {} is not true or false", key);
  return value.get<bool>();
}

std::string type_of(const Json& json) {
  const Json& type = member(json, "type");
  return type.is_string() ? type.get<std::string>() : "none";
}

/// The steps of a normalizer or pre-tokenizer: those of a Sequence, or the one itself.
std::vector<Json> steps_of(const Json& json, const char* list) {
  if (json.is_null()) return {};
  if (type_of(json) != "Sequence") return {json};
  const Json& steps = member(json, list);
  if (!steps.is_array()) refuse("tokenizer.json: a Sequence without its list {}", list);
  return {steps.begin(), steps.end()};
}

bool read_nfc(const Json& tokenizer) {
  bool nfc = false;
  for (const Json& step : steps_of(member(tokenizer, "normalizer"), "normalizers")) {
    if (type_of(step) != "NFC") {
      refuse("tokenizer.json: normalizer {} is not one this engine has; it has NFC", printable(type_of(step)));
    }
    nfc = true;
  }
  return nfc;
}

PretokenizerKind kind_of_regex(const std::string& regex) {
  for (const PretokenizerKind kind :
       {PretokenizerKind::qwen2, PretokenizerKind::qwen35, PretokenizerKind::llama3, PretokenizerKind::gpt2}) {
    if (pretokenizer_regex(kind) == regex) return kind;
  }
  refuse("tokenizer.json: the pre-tokenizer's regular expression is not one this engine has: {}", printable(regex));
}

/// The accepted forms: Split by a known regex then ByteLevel without its own; ByteLevel with its own; single Digits
/// before that.
PretokenizerKind read_kind(const Json& tokenizer) {
  const std::vector<Json> steps = steps_of(member(tokenizer, "pre_tokenizer"), "pretokenizers");
  std::string types;
  for (const Json& step : steps) {
    if (!types.empty()) types += ", ";
    types += type_of(step);
  }
  const Json last = steps.empty() ? Json() : steps.back();
  if (type_of(last) == "ByteLevel" && !flag(last, "add_prefix_space", true)) {
    const bool own_regex = flag(last, "use_regex", true);
    const Json& first = steps.front();
    if (types == "ByteLevel" && own_regex) return PretokenizerKind::gpt2;
    if (types == "Digits, ByteLevel" && own_regex && flag(first, "individual_digits", false)) {
      return PretokenizerKind::smollm;
    }
    if (types == "Split, ByteLevel" && !own_regex && member(first, "behavior") == "Isolated" &&
        !flag(first, "invert", false)) {
      return kind_of_regex(
          text_of(member(member(first, "pattern"), "Regex"), "the pre-tokenizer's regular expression"));
    }
  }
  refuse("tokenizer.json: the pre-tokenizer ({}) is not one this engine has; it has byte-level ones: {}",
         printable(types), known_pretokenizers());
}

void check_model(const Json& model) {
  if (type_of(model) != "BPE" || flag(model, "byte_fallback", false)) {
    refuse("tokenizer.json: model {}{} is not one this engine has; it has byte-level BPE", printable(type_of(model)),
           flag(model, "byte_fallback", false) ? " with byte_fallback" : "");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = member(model, key);
    if (!value.is_null() && value != "") refuse("tokenizer.json: model.{} is set, which this engine doesn't have", key);
  }
}

void set_token(TokenizerData& data, const Json& id_json, std::string text, TokenType type) {
  if (!id_json.is_number_integer() || id_json < 0 || id_json >= kMaxVocab) {
    refuse("tokenizer.json: the id of token \"{}\" is not a number below {}", printable(text), kMaxVocab);
  }
  const size_t id = id_json.get<size_t>();
  if (id >= data.tokens.size()) {
    data.tokens.resize(id + 1);
    data.types.resize(id + 1, TokenType::unused);
  }
  data.tokens[id] = std::move(text);
  data.types[id] = type;
}

void read_tokens(TokenizerData& data, const Json& tokenizer) {
  const Json& vocab = member(member(tokenizer, "model"), "vocab");
  if (!vocab.is_object()) refuse("tokenizer.json: model.vocab is not an object");
  for (const auto& [text, id] : vocab.items()) set_token(data, id, text, TokenType::normal);
  for (const Json& token : member(tokenizer, "added_tokens")) {
    const std::string text = text_of(member(token, "content"), "the content of an added token");
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (flag(token, key, false)) {
        refuse("tokenizer.json: added token \"{}\" is {}, which this engine doesn't have", printable(text), key);
      }
    }
    const bool control = flag(token, "special", false) || (text.starts_with("<|") && text.ends_with("|>"));
    set_token(data, member(token, "id"), text, control ? TokenType::control : TokenType::user_defined);
  }
}

/// Merges come as "left right" or as [left, right].
void read_merges(TokenizerData& data, const Json& model) {
  const Json& merges = member(model, "merges");
  if (!merges.is_array()) refuse("tokenizer.json: model.merges is not an array");
  data.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2) {
      data.merges.push_back(text_of(merge[0], "a merge") + ' ' + text_of(merge[1], "a merge"));
    } else {
      data.merges.push_back(text_of(merge, "a merge"));
    }
  }
}

/// Ids of vocabularies larger than the tokenizer are unused tokens named [PADi].
void fill_vocabulary(TokenizerData& data, int32_t n_vocab) {
  if (n_vocab > 0 && static_cast<size_t>(n_vocab) < data.tokens.size()) {
    refuse("tokenizer.json has ids up to {}, the model's vocabulary has {} tokens", data.tokens.size() - 1, n_vocab);
  }
  const size_t n = std::max(data.tokens.size(), static_cast<size_t>(std::max(n_vocab, 0)));
  data.tokens.resize(n);
  data.types.resize(n, TokenType::unused);
  for (size_t id = 0; id < n; ++id) {
    if (data.types[id] == TokenType::unused) data.tokens[id] = fmt::format("[PAD{}]", id);
  }
}

std::optional<int32_t> id_of_text(const TokenizerData& data, std::string_view text) {
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), text);
  if (it == data.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(it - data.tokens.begin());
}

/// tokenizer_config names a token by its text (or an object with its content), config by its id (or a list of ids, of
/// which the first counts).
std::optional<int32_t> special_id(const TokenizerData& data, const Json& tokenizer_config, const Json& config,
                                  const std::string& role) {
  const std::string text_key = role + "_token";
  const Json& named = member(tokenizer_config, text_key.c_str());
  const Json& text = named.is_object() ? member(named, "content") : named;
  if (text.is_string()) {
    if (const auto id = id_of_text(data, text.get<std::string>())) return id;
  }
  const std::string id_key = role + "_token_id";
  const Json& value = member(config, id_key.c_str());
  const Json& id = value.is_array() && !value.empty() ? value[0] : value;
  if (!id.is_number_integer() || id < 0 || id >= data.tokens.size()) return std::nullopt;
  return id.get<int32_t>();
}

void read_special_ids(TokenizerData& data, const Json& tokenizer_config, const Json& config) {
  const auto id = [&](const char* role) { return special_id(data, tokenizer_config, config, role); };
  data.special.bos = id("bos");
  data.special.eos = id("eos");
  data.special.unk = id("unk");
  data.special.sep = id("sep");
  data.special.pad = id("pad");
  data.special.mask = id("mask");
  if (data.pre == "glm4") {  // its turns end where the next one starts
    data.special.eot = id_of_text(data, "<|user|>");
    data.special.eom = id_of_text(data, "<|observation|>");
    if (const auto bos = id_of_text(data, "[gMASK]")) data.special.bos = bos;
  }
}

/// A post-processor with a template says whether bos and eos stand around the text.
void read_added_ends(TokenizerData& data, const Json& tokenizer, const Json& tokenizer_config) {
  const auto token_at = [&](const Json& part, const std::optional<int32_t>& id) {
    const Json& text = member(member(part, "SpecialToken"), "id");
    return id && text.is_string() && text.get<std::string>() == data.tokens[static_cast<size_t>(*id)];
  };
  for (const Json& step : steps_of(member(tokenizer, "post_processor"), "processors")) {
    const Json& parts = member(step, "single");
    if (type_of(step) != "TemplateProcessing" || !parts.is_array() || parts.empty()) continue;
    data.add_bos = token_at(parts.front(), data.special.bos);
    data.add_eos = token_at(parts.back(), data.special.eos);
  }
  data.add_bos = flag(tokenizer_config, "add_bos_token", data.add_bos);
  data.add_eos = flag(tokenizer_config, "add_eos_token", data.add_eos);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TokenizerData tokenizer_data_from_hf(const HfTokenizerFiles& files, int32_t n_vocab) {
  const Json tokenizer = parse(files.tokenizer, "tokenizer.json");
  const Json tokenizer_config = parse(files.tokenizer_config, "tokenizer_config.json");
  const Json config = parse(files.config, "config.json");
  const Json& model = member(tokenizer, "model");
  check_model(model);

  TokenizerData data;
  data.nfc = read_nfc(tokenizer);
  data.ignore_merges = flag(model, "ignore_merges", false);
  const PretokenizerKind kind = read_kind(tokenizer);
  const Pretokenizer* pre = find_pretokenizer(kind, data.nfc, data.ignore_merges);
  if (pre == nullptr) {
    refuse("tokenizer.json: the pre-tokenizer is known, but not with {} and ignore_merges {}; known: {}",
           data.nfc ? "NFC" : "no normalizer", data.ignore_merges, known_pretokenizers());
  }
  data.pre = pre->name;
  read_tokens(data, tokenizer);
  read_merges(data, model);
  fill_vocabulary(data, n_vocab);
  read_special_ids(data, tokenizer_config, config);
  read_added_ends(data, tokenizer, tokenizer_config);
  return data;
}

TokenizerData read_hf_tokenizer(const std::string& folder, int32_t n_vocab) {
  const std::filesystem::path path = folder;
  HfTokenizerFiles files;
  files.tokenizer = read_text(path / "tokenizer.json");
  if (files.tokenizer.empty()) refuse("{}: there is no tokenizer.json", folder);
  files.tokenizer_config = read_text(path / "tokenizer_config.json");
  files.config = read_text(path / "config.json");
  return tokenizer_data_from_hf(files, n_vocab);
}

}  // namespace onebit
