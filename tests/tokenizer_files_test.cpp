// Tokenizers read from files: Hugging Face's tokenizer.json and the metadata of a GGUF file give the same data, and
// what is broken or unknown is refused by name.
#include <gtest/gtest.h>

#include "gguf/file.h"
#include "gguf/keys.h"
#include "gguf/writer.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/tokenizers.h"
#include "text/hf_tokenizer.h"

namespace onebit {
namespace {

using nlohmann::json;
using test::expect_refused;

// --- tokenizer.json
// -----------------------------------------------------------------------------------------------------

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}

json split_by(std::string_view regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json small_tokenizer() {
  return {{"added_tokens",
           {{{"id", 3}, {"content", "<s>"}, {"special", true}},
            {{"id", 4}, {"content", "<|x|>"}, {"special", false}},
            {{"id", 6}, {"content", "<think>"}, {"special", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level(true)},
          {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

TokenizerData read(const json& tokenizer, const std::string& tokenizer_config = "", const std::string& config = "",
                   int32_t n_vocab = 0) {
  return tokenizer_data_from_hf({tokenizer.dump(), tokenizer_config, config}, n_vocab);
}

TEST(HfTokenizer, ReadsTokensAndTypes) {
  const TokenizerData data = read(small_tokenizer(), "", "", 9);
  const std::vector<std::string> tokens = {"a", "b", "ab", "<s>", "<|x|>", "[PAD5]", "<think>", "[PAD7]", "[PAD8]"};
  EXPECT_EQ(data.tokens, tokens);
  using enum TokenType;
  const std::vector<TokenType> types = {normal, normal, normal, control, control, unused, user_defined, unused, unused};
  EXPECT_EQ(data.types, types);
  EXPECT_EQ(data.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(data.pre, "gpt-2");
  EXPECT_FALSE(data.nfc || data.ignore_merges || data.add_bos || data.add_eos);
}

TEST(HfTokenizer, MergesMayBePairs) {
  json tokenizer = small_tokenizer();
  tokenizer["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_EQ(read(tokenizer).merges, std::vector<std::string>{"a b"});
}

TEST(HfTokenizer, SpecialIdsComeFromTheirTextsElseFromTheConfig) {
  const TokenizerData data = read(small_tokenizer(), R"({"bos_token": "<s>", "eos_token": {"content": "<|x|>"},
      "pad_token": null, "add_bos_token": true})",
                                  R"({"eos_token_id": 0, "pad_token_id": [1, 2], "mask_token_id": 99})");
  EXPECT_EQ(data.special.bos, 3);
  EXPECT_EQ(data.special.eos, 4);
  EXPECT_EQ(data.special.pad, 1);
  EXPECT_EQ(data.special.mask, std::nullopt);
  EXPECT_TRUE(data.add_bos);
}

TEST(HfTokenizer, ATemplateSaysWhetherBosIsAdded) {
  json tokenizer = small_tokenizer();
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  EXPECT_TRUE(read(tokenizer, R"({"bos_token": "<s>"})").add_bos);
  EXPECT_FALSE(read(tokenizer, R"({"bos_token": "<s>"})").add_eos);
  EXPECT_FALSE(read(tokenizer, R"({"bos_token": "<s>", "add_bos_token": false})").add_bos);
  EXPECT_FALSE(read(tokenizer, R"({"bos_token": "<|x|>"})").add_bos);
}

TEST(HfTokenizer, PretokenizersAreRecognised) {
  const auto pre = [](const json& pre_tokenizer, const json& normalizer, bool ignore_merges) {
    json tokenizer = small_tokenizer();
    tokenizer["pre_tokenizer"] = pre_tokenizer;
    tokenizer["normalizer"] = normalizer;
    tokenizer["model"]["ignore_merges"] = ignore_merges;
    return read(tokenizer).pre;
  };
  const auto sequence = [](const json& first, bool use_regex) -> json {
    return {{"type", "Sequence"}, {"pretokenizers", {first, byte_level(use_regex)}}};
  };
  const json nfc = {{"type", "NFC"}};
  const auto split = [&](PretokenizerKind kind) { return sequence(split_by(pretokenizer_regex(kind)), false); };
  EXPECT_EQ(pre(split(PretokenizerKind::qwen2), nfc, false), "qwen2");
  EXPECT_EQ(pre(split(PretokenizerKind::qwen35), {{"type", "Sequence"}, {"normalizers", {nfc}}}, false), "qwen35");
  EXPECT_EQ(pre(split(PretokenizerKind::llama3), nullptr, true), "llama-bpe");
  EXPECT_EQ(pre(split(PretokenizerKind::llama3), nullptr, false), "glm4");
  EXPECT_EQ(pre(sequence({{"type", "Digits"}, {"individual_digits", true}}, true), nullptr, false), "smollm");

  expect_refused({"NFC", "ignore_merges false"}, [&] { pre(split(PretokenizerKind::llama3), nfc, false); });
  expect_refused({"normalizer", "Lowercase"}, [&] { pre(byte_level(true), {{"type", "Lowercase"}}, false); });
  expect_refused({"regular expression", "\\d+"}, [&] { pre(sequence(split_by("\\d+"), false), nullptr, false); });
  expect_refused({"Metaspace"}, [&] { pre({{"type", "Metaspace"}}, nullptr, false); });
  expect_refused({"pre-tokenizer ()"}, [&] { pre(nullptr, nullptr, false); });
  json spaced = byte_level(true);
  spaced["add_prefix_space"] = true;
  expect_refused({"pre-tokenizer", "ByteLevel"}, [&] { pre(spaced, nullptr, false); });
}

TEST(HfTokenizer, WhatItDoesNotUnderstandIsRefused) {
  const auto expect = [](const char* pointer, const json& value, const char* word) {
    json tokenizer = small_tokenizer();
    tokenizer[json::json_pointer(pointer)] = value;
    expect_refused({word}, [&] { read(tokenizer); });
  };
  expect("/model/type", "Unigram", "Unigram");
  expect("/model/byte_fallback", true, "byte_fallback");
  expect("/model/dropout", 0.1, "dropout");
  expect("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  expect("/model/vocab", nullptr, "vocab");
  expect("/model/vocab/a", -1, "\"a\"");
  expect("/model/vocab/a", 1e9, "\"a\"");
  expect("/model/vocab/a", 2000000000, "\"a\"");
  expect("/model/vocab/a", "x", "\"a\"");
  expect("/model/merges", 3, "merges");
  expect("/model/merges/0", 3, "merge");
  expect("/model/merges/0", json::array({"a", 3}), "merge");
  expect("/added_tokens/0/content", 3, "added token");
  expect("/added_tokens/0/lstrip", true, "lstrip");
  expect("/added_tokens/0/special", "yes", "special");
  expect("/pre_tokenizer", {{"type", "Sequence"}}, "pretokenizers");
  for (const char* text : {"", "[]", "{", "nul", "\xFF"}) {
    expect_refused({"tokenizer.json"}, [&] { tokenizer_data_from_hf({text, "", ""}); });
  }
  expect_refused({"tokenizer_config.json"}, [&] { read(small_tokenizer(), "[1]"); });
  expect_refused({"ids up to 6", "4 tokens"}, [&] { read(small_tokenizer(), "", "", 4); });
}

TEST(HfTokenizer, ReadsAFolder) {
  test::TempDir folder;
  expect_refused({"no tokenizer.json"}, [&] { read_hf_tokenizer(folder.path()); });
  std::ofstream(folder.file("tokenizer.json")) << small_tokenizer().dump();
  std::ofstream(folder.file("config.json")) << R"({"eos_token_id": 3})";
  EXPECT_EQ(read_hf_tokenizer(folder.path()).special.eos, 3);
}

// --- GGUF
// ----------------------------------------------------------------------------------------------------------------

void add_tokenizer(GgufWriter& writer, const TokenizerData& data) {
  writer.add(keys::kArchitecture, "llama");
  writer.add(keys::kTokenizerModel, "gpt2");
  writer.add(keys::kTokenizerPre, data.pre);
  writer.add(keys::kTokenizerTokens, data.tokens);
  writer.add(keys::kTokenizerMerges, data.merges);
  std::vector<int32_t> types;
  for (const TokenType type : data.types) types.push_back(static_cast<int32_t>(type));
  writer.add(keys::kTokenizerTokenType, types);
}

/// The small tokenizer as a file, with a change.
TokenizerData read_changed(const std::function<void(GgufWriter&)>& change) {
  test::TempDir folder;
  GgufWriter writer(folder.file("t.gguf"));
  add_tokenizer(writer, read(small_tokenizer()));
  change(writer);
  writer.finish();
  return tokenizer_data_from_gguf(GgufFile::open(folder.file("t.gguf")));
}

TEST(GgufTokenizer, EqualsTheJsonItWasMadeFrom) {
  const TokenizerData json_data = test::golden_tokenizer_data("demo");
  const TokenizerData data = read_changed([&](GgufWriter& writer) { add_tokenizer(writer, json_data); });
  EXPECT_EQ(data.tokens, json_data.tokens);
  EXPECT_EQ(data.types, json_data.types);
  EXPECT_EQ(data.merges, json_data.merges);
  EXPECT_EQ(data.pre, "qwen2");
  EXPECT_TRUE(data.nfc);
  EXPECT_FALSE(data.ignore_merges);
}

TEST(GgufTokenizer, ReadsIdsAndFlags) {
  const TokenizerData data = read_changed([](GgufWriter& writer) {
    writer.add(keys::kTokenizerBos, uint32_t{3});
    writer.add(keys::kTokenizerPadding, UINT32_MAX);
    writer.add(keys::kTokenizerSeparator, uint32_t{1});
    writer.add(keys::kTokenizerFimPad, uint32_t{2});
    writer.add(keys::kTokenizerAddBos, true);
    writer.add(keys::kTokenizerAddEos, true);
  });
  EXPECT_EQ(data.special.bos, 3);
  EXPECT_EQ(data.special.eos, std::nullopt);
  EXPECT_EQ(data.special.pad, std::nullopt);
  EXPECT_EQ(data.special.sep, 1);
  EXPECT_EQ(data.special.fim_pad, 2);
  EXPECT_TRUE(data.add_bos && data.add_eos);
}

TEST(GgufTokenizer, DefaultsFollowThePretokenizer) {
  const TokenizerData llama = read_changed([](GgufWriter& writer) {
    writer.add(keys::kTokenizerPre, "llama-bpe");
    writer.remove(keys::kTokenizerTokenType);
  });
  EXPECT_TRUE(llama.add_bos && llama.ignore_merges);
  EXPECT_EQ(llama.types, std::vector<TokenType>(llama.tokens.size(), TokenType::normal));
  EXPECT_FALSE(read_changed([](GgufWriter&) {}).add_bos);
}

TEST(GgufTokenizer, BrokenMetadataIsRefused) {
  const auto expect = [](std::initializer_list<const char*> words, const std::function<void(GgufWriter&)>& change) {
    expect_refused(words, [&] { Tokenizer t(read_changed(change)); });
  };
  for (const char* key : {keys::kTokenizerModel, keys::kTokenizerPre, keys::kTokenizerTokens, keys::kTokenizerMerges}) {
    expect({key}, [&](GgufWriter& writer) { writer.remove(key); });
  }
  expect({"\"llama\"", "byte-level"}, [](GgufWriter& w) { w.add(keys::kTokenizerModel, "llama"); });
  expect({"\"tekken\"", "qwen2"}, [](GgufWriter& w) { w.add(keys::kTokenizerPre, "tekken"); });
  expect({"2 entries"}, [](GgufWriter& w) { w.add(keys::kTokenizerTokenType, std::vector<int32_t>{1, 1}); });
  expect({"[0] is 7"}, [](GgufWriter& w) { w.add(keys::kTokenizerTokenType, std::vector<int32_t>(7, 7)); });
  expect({keys::kTokenizerEos, "is 7"}, [](GgufWriter& w) { w.add(keys::kTokenizerEos, uint32_t{7}); });
  expect({keys::kTokenizerEos}, [](GgufWriter& w) { w.add(keys::kTokenizerEos, "x"); });
  expect({"merge 0"}, [](GgufWriter& w) { w.add(keys::kTokenizerMerges, std::vector<std::string>{"a c"}); });
  expect({"vocabulary of 0"}, [](GgufWriter& w) {
    w.add(keys::kTokenizerTokens, std::vector<std::string>{});
    w.add(keys::kTokenizerTokenType, std::vector<int32_t>{});
  });
}

}  // namespace
}  // namespace onebit
