// The tokenizer against the ids of Hugging Face's tokenizers (tests/golden/tokenizer), its rules on special tokens, and
// its bounds on hard input.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/tokenizers.h"
#include "text/unicode.h"

namespace onebit {
namespace {

using test::golden_folder;
using test::golden_tokenizer_data;
using test::parse_json_lines;
using test::read_xz;

using Ids = std::vector<int32_t>;

std::vector<nlohmann::json> golden_lines(const std::string& name) {
  return parse_json_lines(read_xz(golden_folder() + "tokenizer/" + name + ".jsonl.xz"));
}

const std::vector<std::string>& cases() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> out;
    for (const auto& line : golden_lines("cases")) out.push_back(line.get<std::string>());
    return out;
  }();
  return texts;
}

std::vector<Ids> golden_ids(const std::string& name) {
  std::vector<Ids> out;
  for (const auto& line : golden_lines("ids-" + name)) out.push_back(line.get<Ids>());
  return out;
}

/// With another pre-tokenizer and what comes with it.
TokenizerData with_pre(TokenizerData data, const std::string& pre) {
  const Pretokenizer& rules = find_pretokenizer(pre);
  data.pre = pre;
  data.nfc = rules.nfc;
  data.ignore_merges = rules.ignore_merges;
  return data;
}

void expect_golden(const Tokenizer& tokenizer, const std::vector<Ids>& expected, size_t n_expected) {
  ASSERT_EQ(expected.size(), n_expected);
  ASSERT_GE(cases().size(), n_expected);
  size_t n_wrong = 0;
  for (size_t i = 0; i < n_expected; ++i) {
    const Ids ids = tokenizer.encode(cases()[i], ParseSpecial::yes);
    if (ids == expected[i]) continue;
    ++n_wrong;
    if (n_wrong <= 5) {
      EXPECT_EQ(ids, expected[i]) << "case " << i << ": " << nlohmann::json(cases()[i]).dump();
    }
  }
  EXPECT_EQ(n_wrong, 0u);
}

constexpr size_t kAllCases = 20656;
constexpr size_t kSomeCases = 3656;

TEST(TokenizerGolden, Demo) { expect_golden(Tokenizer(golden_tokenizer_data("demo")), golden_ids("demo"), kAllCases); }

TEST(TokenizerGolden, Qwen35Pretokenizer) {
  std::vector<Ids> expected = golden_ids("demo");
  const auto changes = golden_lines("ids-demo-q35.changes");
  EXPECT_EQ(changes.size(), 393u);
  for (const auto& change : changes) expected.at(change[0].get<size_t>()) = change[1].get<Ids>();
  expect_golden(Tokenizer(with_pre(golden_tokenizer_data("demo"), "qwen35")), expected, kAllCases);
}

TEST(TokenizerGolden, Qwen3) {
  expect_golden(Tokenizer(golden_tokenizer_data("qwen3")), golden_ids("qwen3"), kAllCases);
}

TEST(TokenizerGolden, Llama3) {
  const Tokenizer tokenizer(golden_tokenizer_data("llama3_1"));
  expect_golden(tokenizer, golden_ids("llama3"), kAllCases);
}

TEST(TokenizerGolden, SmolLM2) {
  expect_golden(Tokenizer(golden_tokenizer_data("smollm2")), golden_ids("smollm2"), kSomeCases);
}

TEST(TokenizerGolden, Gpt2Pretokenizer) {
  expect_golden(Tokenizer(with_pre(golden_tokenizer_data("demo"), "gpt-2")), golden_ids("demo-gpt2"), kSomeCases);
}

TEST(TokenizerGolden, Glm4Pretokenizer) {
  expect_golden(Tokenizer(with_pre(golden_tokenizer_data("demo"), "glm4")), golden_ids("demo-glm4"), kSomeCases);
}

TEST(TokenizerGolden, DecodingGivesTheNormalisedText) {
  const Tokenizer demo(golden_tokenizer_data("demo"));
  std::string buffer;
  for (const std::string& text : cases()) {
    // Added tokens cut the text before it is normalised, so a mark behind one stays.
    if (text.find("<|") != std::string::npos || text.find("think>") != std::string::npos) continue;
    ASSERT_EQ(demo.decode(demo.encode(text, ParseSpecial::yes)), std::string(to_nfc(text, buffer)));
  }
}

TEST(TokenizerGolden, WithoutNormaliserDecodingGivesTheTextItself) {
  const Tokenizer llama(golden_tokenizer_data("llama3_1"));
  for (const std::string& text : cases()) ASSERT_EQ(llama.decode(llama.encode(text, ParseSpecial::yes)), text);
}

// --- special tokens
// ---------------------------------------------------------------------------------------------------

/// Letters a to f, the merges given, then <|end|> (control), <think> and <thinker> (user-defined).
TokenizerData small_data(const std::vector<std::string>& merges = {}) {
  TokenizerData data;
  data.pre = "gpt-2";
  for (const char c : std::string("abcdef<|>/")) data.tokens.push_back(std::string(1, c));
  data.tokens.push_back("\u0120");
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    data.tokens.push_back(token);
  }
  data.merges = merges;
  data.types.assign(data.tokens.size(), TokenType::normal);
  const auto add = [&](const char* text, TokenType type) {
    data.tokens.push_back(text);
    data.types.push_back(type);
  };
  add("<|end|>", TokenType::control);
  add("<b>", TokenType::user_defined);
  add("<bc>", TokenType::user_defined);
  return data;
}

std::vector<std::string> pieces(const Tokenizer& t, const Ids& ids) {
  std::vector<std::string> out;
  for (const int32_t id : ids) out.emplace_back(t.piece(id));
  return out;
}

using Pieces = std::vector<std::string>;

TEST(Tokenizer, ControlTokensAreTextUnlessAsked) {
  const Tokenizer t(small_data());
  const Ids yes = t.encode("a<|end|><b>", ParseSpecial::yes);
  EXPECT_EQ(pieces(t, yes), (Pieces{"a", "<|end|>", "<b>"}));
  const Ids no = t.encode("a<|end|><b>", ParseSpecial::no);
  EXPECT_EQ(std::count(no.begin(), no.end(), *t.token_id("<|end|>")), 0);
  EXPECT_EQ(no.back(), *t.token_id("<b>"));  // user-defined: recognised either way
}

TEST(Tokenizer, AddedTokensAreFoundLeftmostLongest) {
  TokenizerData data = small_data();
  for (const char* text : {"c<b", "<bc><b>"}) {
    data.tokens.push_back(text);
    data.types.push_back(TokenType::user_defined);
  }
  const Tokenizer t(data);
  EXPECT_EQ(pieces(t, t.encode("ac<b>", ParseSpecial::no)), (Pieces{"a", "c<b", ">"}));
  EXPECT_EQ(pieces(t, t.encode("<bc><b>", ParseSpecial::no)), (Pieces{"<bc><b>"}));
  EXPECT_EQ(pieces(t, t.encode("<bc><bc>", ParseSpecial::no)), (Pieces{"<bc>", "<bc>"}));
}

TEST(Tokenizer, SegmentsAreOneTextButControlTokensKeepToTheirs) {
  const Tokenizer t(small_data({"a b"}));
  const auto encode = [&](const std::vector<TextSegment>& segments) { return pieces(t, t.encode(segments)); };
  const ParseSpecial no = ParseSpecial::no, yes = ParseSpecial::yes;
  EXPECT_EQ(encode({{"a", yes}, {"b", no}}), (Pieces{"ab"}));
  EXPECT_EQ(encode({{"<|end|>", yes}, {"b", no}, {"<|end|>", yes}}), (Pieces{"<|end|>", "b", "<|end|>"}));
  EXPECT_EQ(encode({{"<|e", yes}, {"nd|>", yes}}), (Pieces{"<|end|>"}));
  const auto forged = t.encode(std::vector<TextSegment>{{"<|e", yes}, {"nd|>", no}});
  EXPECT_EQ(std::count(forged.begin(), forged.end(), *t.token_id("<|end|>")), 0);
  const auto inside = t.encode(std::vector<TextSegment>{{"a", yes}, {"<|end|>", no}, {"b", yes}});
  EXPECT_EQ(std::count(inside.begin(), inside.end(), *t.token_id("<|end|>")), 0);
}

TEST(Tokenizer, SpecialIdsAreAddedOnce) {
  TokenizerData data = small_data();
  data.special.bos = 0;
  data.special.eos = 1;
  data.add_bos = data.add_eos = true;
  const Tokenizer t(data);
  Ids ids = {2};
  t.add_special_ids(ids);
  EXPECT_EQ(ids, (Ids{0, 2, 1}));
  t.add_special_ids(ids);
  EXPECT_EQ(ids, (Ids{0, 2, 1}));
  data.add_bos = data.add_eos = false;
  ids = {2};
  Tokenizer(data).add_special_ids(ids);
  EXPECT_EQ(ids, (Ids{2}));
}

TEST(Tokenizer, EndOfGenerationIsASetOfTextsAndKeys) {
  const Tokenizer qwen(golden_tokenizer_data("qwen3"));
  EXPECT_EQ(qwen.eog_ids(), (std::set<int32_t>{151643, 151645, 151662, 151663, 151664}));
  const Tokenizer llama(golden_tokenizer_data("llama3_1"));
  EXPECT_EQ(llama.eog_ids(), (std::set<int32_t>{128001, 128009}));
  TokenizerData data = small_data();
  data.special.eos = 3;
  data.special.eot = 4;
  data.special.eom = 5;
  EXPECT_EQ(Tokenizer(data).eog_ids(), (std::set<int32_t>{3, 4, 5, *Tokenizer(data).token_id("<|end|>")}));
}

TEST(Tokenizer, EndOfGenerationTextsOfNormalTokensDoNotCount) {
  TokenizerData data = small_data();
  data.tokens.push_back("</s>");
  data.types.push_back(TokenType::normal);
  EXPECT_FALSE(Tokenizer(data).is_eog(static_cast<int32_t>(data.tokens.size()) - 1));
}

TEST(Tokenizer, ControlIsHiddenOnRequest) {
  const Tokenizer t(small_data());
  const Ids ids = t.encode("a<|end|><b>", ParseSpecial::yes);
  EXPECT_EQ(t.decode(ids, ShowControl::yes), "a<|end|><b>");
  EXPECT_EQ(t.decode(ids, ShowControl::no), "a<b>");
  EXPECT_TRUE(t.is_control(*t.token_id("<|end|>")));
  EXPECT_FALSE(t.is_control(*t.token_id("<b>")));
  EXPECT_FALSE(t.is_control(-1));
  EXPECT_FALSE(t.is_control(1 << 30));
}

TEST(Tokenizer, PiecesAreBytesAndUnusedIdsAreEmpty) {
  TokenizerData data = small_data();
  data.tokens.insert(data.tokens.end(), {"\u00C3", "\u0120a", "[PAD17]", "<0x0A>", "\u6F22"});
  data.types.insert(data.types.end(),
                    {TokenType::normal, TokenType::normal, TokenType::unused, TokenType::byte, TokenType::normal});
  const Tokenizer t(data);
  const int32_t n = t.n_vocab();
  EXPECT_EQ(t.piece(n - 5), "\xC3");
  EXPECT_EQ(t.piece(n - 4), " a");
  EXPECT_EQ(t.piece(n - 3), "");
  EXPECT_EQ(t.piece(n - 2), "\n");
  EXPECT_EQ(t.piece(n - 1), "\u6F22");  // not of the byte alphabet: its text
  EXPECT_EQ(t.decode(Ids{n - 5, 0}), "\uFFFDa");
  EXPECT_EQ(t.token_id(" a"), n - 4);
  EXPECT_EQ(t.token_id("[PAD17]"), std::nullopt);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {
  const Tokenizer t(small_data());
  for (const int32_t id : {-1, t.n_vocab(), INT32_MAX, INT32_MIN}) {
    EXPECT_THROW(t.piece(id), Error);
    EXPECT_THROW(t.decode(Ids{id}), Error);
  }
}

// --- merging
// ----------------------------------------------------------------------------------------------------------

TEST(Tokenizer, LowestRankFirstThenLeftmost) {
  const Tokenizer t(small_data({"b c", "a b", "a a", "aa a"}));
  EXPECT_EQ(pieces(t, t.encode("abc", ParseSpecial::no)), (Pieces{"a", "bc"}));
  EXPECT_EQ(pieces(t, t.encode("aaa", ParseSpecial::no)), (Pieces{"aaa"}));
  EXPECT_EQ(pieces(t, t.encode("aaaaa", ParseSpecial::no)), (Pieces{"aa", "aaa"}));
}

/// Merging as its definition says, one pair at a time.
Ids merge_by_definition(const TokenizerData& data, const std::string& text) {
  std::map<std::string, int32_t> ids;
  for (size_t i = 0; i < data.tokens.size(); ++i) ids[data.tokens[i]] = static_cast<int32_t>(i);
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const size_t space = data.merges[i].find(' ');
    ranks[{data.merges[i].substr(0, space), data.merges[i].substr(space + 1)}] = i;
  }
  Pieces symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    size_t best = SIZE_MAX, where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, where = i;
    }
    if (best == SIZE_MAX) break;
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
  Ids out;
  for (const std::string& s : symbols) out.push_back(ids.at(s));
  return out;
}

TEST(Tokenizer, ShortAndLongPiecesMergeByTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    TokenizerData data = small_data();
    Pieces parts = {"a", "b", "c", "d"};
    for (int i = 0; i < 30; ++i) {
      const std::string& left = parts[random() % parts.size()];
      const std::string& right = parts[random() % parts.size()];
      const std::string merge = left + " " + right;
      if (std::count(data.merges.begin(), data.merges.end(), merge) != 0) continue;
      data.merges.push_back(merge);
      const std::string made = left + right;
      if (std::count(parts.begin(), parts.end(), made) != 0) continue;
      parts.push_back(made);
      data.tokens.push_back(made);
      data.types.push_back(TokenType::normal);
    }
    const Tokenizer t(data);
    for (const size_t size : {1, 2, 3, 7, 30, 47, 48, 49, 50, 64, 200}) {
      std::string text;
      while (text.size() < size) text += static_cast<char>('a' + random() % 4);
      ASSERT_EQ(t.encode(text, ParseSpecial::no), merge_by_definition(data, text)) << text;
    }
  }
}

TEST(Tokenizer, BytesWithoutTokenAreLeftOut) {
  const Tokenizer t(small_data());
  EXPECT_EQ(pieces(t, t.encode("aXb", ParseSpecial::no)), (Pieces{"a", "b"}));
  EXPECT_EQ(t.encode(std::string(500, 'X'), ParseSpecial::no), Ids{});
}

TEST(Tokenizer, IgnoreMergesEmitsAWholePiece) {
  TokenizerData data = small_data({"a b"});
  data.tokens.push_back("abc");
  data.types.push_back(TokenType::normal);
  data.ignore_merges = false;
  EXPECT_EQ(Tokenizer(data).encode("abc", ParseSpecial::no).size(), 2u);
  data.ignore_merges = true;
  EXPECT_EQ(Tokenizer(data).encode("abc", ParseSpecial::no), (Ids{static_cast<int32_t>(data.tokens.size()) - 1}));
}

// --- hard input
// -------------------------------------------------------------------------------------------------------

TEST(Tokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const Tokenizer t(golden_tokenizer_data("demo"));
  const auto expect_same = [&](const std::string& bytes, const std::string& text) {
    EXPECT_EQ(t.encode(bytes, ParseSpecial::yes), t.encode(text, ParseSpecial::yes));
  };
  expect_same("a\x80z", "a\uFFFDz");
  expect_same("\xE2\x82", "\uFFFD");
  expect_same("\xF0\x9F\x98x", "\uFFFDx");
  expect_same("\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");
  expect_same("\xC0\xAF", "\uFFFD\uFFFD");
  expect_same("x\xFF<|im_end|>\xFE", "x\uFFFD<|im_end|>\uFFFD");
}

TEST(Tokenizer, HugePiecesComeBack) {
  // A quadratic step over a megabyte would run past the time limit of the test runner.
  constexpr size_t kMegabyte = 1 << 20;
  std::mt19937 random(11);
  std::string bytes, marks, letters, tags;
  while (bytes.size() < kMegabyte) bytes += static_cast<char>(random());
  while (marks.size() < kMegabyte) append_utf8(marks, 0x300 + random() % 0x50);
  while (letters.size() < kMegabyte) letters += static_cast<char>('a' + random() % 26);
  while (tags.size() < kMegabyte) tags += "<|im_en";
  const Tokenizer t(golden_tokenizer_data("demo"));
  for (const std::string& text :
       {std::string(kMegabyte, 'a'), std::string(kMegabyte, ' '), std::string(kMegabyte, '1'), letters, tags}) {
    ASSERT_EQ(t.decode(t.encode(text, ParseSpecial::yes)), text);
  }
  for (const std::string& text : {bytes, marks}) EXPECT_GT(t.encode(text, ParseSpecial::yes).size(), 1000u);
}

// --- data that contradicts itself
// ---------------------------------------------------------------------------------------

void expect_refused(const TokenizerData& data, const char* words) {
  test::expect_refused({words}, [&] { Tokenizer t(data); });
}

TEST(Tokenizer, ContradictoryDataIsRefused) {
  TokenizerData data = small_data();
  data.types.pop_back();
  expect_refused(data, "token types");
  data = small_data();
  data.special.eos = 1000;
  expect_refused(data, "eos token id 1000");
  data = small_data();
  data.special.bos = -2;
  expect_refused(data, "bos token id -2");
  for (const char* merge : {"", " ", "a", "ab", "a ", " a", "a z", "z a", "a b", "a b c", "a \u6F22", "\u6F22 a"}) {
    data = small_data();
    data.merges = {merge};
    expect_refused(data, "merge 0");
  }
  data = small_data();
  data.pre = "deepseek-v3";
  expect_refused(data, "\"deepseek-v3\" is not a pre-tokenizer this engine has; it has qwen2, qwen35");
  data = small_data();
  data.tokens.back() = std::string(2000, 'x');
  expect_refused(data, "2000 bytes");
  TokenizerData empty;
  empty.pre = "gpt-2";
  expect_refused(empty, "vocabulary of 0");
}

}  // namespace
}  // namespace onebit
