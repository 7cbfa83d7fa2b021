// The tokenizer of a checkpoint as tokenizer.* keys, and its chat templates.
#include <filesystem>

#include "base/error.h"
#include "convert/hf_keys.h"
#include "gguf/keys.h"
#include "text/hf_tokenizer.h"

namespace onebit {
namespace {

void write_special_ids(const SpecialIds& ids, GgufWriter& writer) {
  const std::pair<const char*, std::optional<int32_t>> pairs[] = {
      {keys::kTokenizerBos, ids.bos},        {keys::kTokenizerEos, ids.eos},
      {keys::kTokenizerEot, ids.eot},        {keys::kTokenizerEom, ids.eom},
      {keys::kTokenizerUnknown, ids.unk},    {keys::kTokenizerSeparator, ids.sep},
      {keys::kTokenizerPadding, ids.pad},    {keys::kTokenizerMask, ids.mask},
      {keys::kTokenizerFimPre, ids.fim_pre}, {keys::kTokenizerFimSuf, ids.fim_suf},
      {keys::kTokenizerFimMid, ids.fim_mid}, {keys::kTokenizerFimPad, ids.fim_pad},
      {keys::kTokenizerFimRep, ids.fim_rep}, {keys::kTokenizerFimSep, ids.fim_sep}};
  for (const auto& [key, id] : pairs) {
    if (id) writer.add(key, static_cast<uint32_t>(*id));
  }
}

/// tokenizer_config.json holds one template, or a list of named ones of which "default" is the usual.
void write_listed_templates(const nlohmann::json& list, const std::string& where, GgufWriter& writer) {
  std::vector<std::string> names;
  for (const nlohmann::json& item : list) {
    const JsonObject entry(item, where + ": field chat_template");
    const std::string name = entry.text("name").value_or(""), text = entry.text("template").value_or("");
    if (name == "default") {
      writer.add(keys::kChatTemplate, text);
    } else {
      names.push_back(name);
      writer.add(std::string(keys::kChatTemplate) + "." + name, text);
    }
  }
  if (!names.empty()) writer.add(keys::kChatTemplates, names);
}

void write_templates(const std::string& folder, GgufWriter& writer) {
  const std::string jinja = folder + "/chat_template.jinja", json = folder + "/chat_template.json";
  const std::string config_path = folder + "/tokenizer_config.json";
  if (std::filesystem::exists(jinja)) return writer.add(keys::kChatTemplate, read_text(jinja));
  const std::string& path = std::filesystem::exists(json) ? json : config_path;
  if (!std::filesystem::exists(path)) return;
  const JsonObject config = JsonObject::read(path);
  if (!config.has("chat_template")) return;
  const nlohmann::json& value = config.json().at("chat_template");
  if (value.is_array()) return write_listed_templates(value, path, writer);
  writer.add(keys::kChatTemplate, *config.text("chat_template"));
}

}  // namespace

bool write_hf_tokenizer(const std::string& folder, int64_t n_vocab, GgufWriter& writer) {
  if (!std::filesystem::exists(folder + "/tokenizer.json")) return false;
  const TokenizerData data = read_hf_tokenizer(folder, static_cast<int32_t>(n_vocab));
  std::vector<int32_t> types;
  for (const TokenType type : data.types) types.push_back(static_cast<int32_t>(type));
  writer.add(keys::kTokenizerModel, "gpt2");
  writer.add(keys::kTokenizerPre, data.pre);
  writer.add(keys::kTokenizerTokens, data.tokens);
  writer.add(keys::kTokenizerTokenType, types);
  writer.add(keys::kTokenizerMerges, data.merges);
  write_special_ids(data.special, writer);
  writer.add(keys::kTokenizerAddBos, data.add_bos);
  writer.add(keys::kTokenizerAddEos, data.add_eos);
  write_templates(folder, writer);
  return true;
}

}  // namespace onebit
