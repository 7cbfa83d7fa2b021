// The scanners against PCRE2 running the published regular expressions, on random texts and on hand-made ones.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"

#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <vector>

#include "support/expect_error.h"
#include "text/unicode.h"

namespace onebit {
namespace {

using Pieces = std::vector<std::string>;

Pieces scan(PretokenizerKind kind, const std::string& text) {
  Pieces pieces;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = piece_end(kind, text, pos);
    EXPECT_TRUE(end > pos && end <= text.size());
    pieces.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return pieces;
}

/// The pieces a regular expression matches and what lies between its matches, by PCRE2.
class Oracle {
 public:
  explicit Oracle(std::string_view regex) {
    int error = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &offset, nullptr));
    EXPECT_TRUE(code_) << "regex error " << error << " at " << offset;
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  bool matches(std::string_view text) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match_.get(),
                       nullptr) > 0;
  }

  Pieces split(std::string_view text) const {
    Pieces pieces;
    size_t pos = 0;
    while (pos < text.size()) {
      const int n = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos, 0,
                                match_.get(), nullptr);
      const size_t* range = pcre2_get_ovector_pointer(match_.get());
      const size_t begin = n > 0 ? range[0] : text.size();
      if (begin > pos) pieces.emplace_back(text.substr(pos, begin - pos));
      if (n <= 0) break;
      pieces.emplace_back(text.substr(begin, range[1] - begin));
      pos = range[1];
    }
    return pieces;
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
};

/// Random texts of characters that the oracle's version of Unicode has too, rich in what the rules look at.
class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed) {
    const Oracle unassigned("\\p{Cn}|\\p{Cs}");
    for (char32_t cp = 0x80; cp < 0x110000; ++cp) {
      std::string text;
      append_utf8(text, cp);
      if (unassigned.matches(text) || cp == 0x180E) continue;  // PCRE2 alone calls U+180E white space
      if (classes_of(cp) & (char_class::kMark | char_class::kNumber | char_class::kSpace)) rare_.push_back(cp);
      all_.push_back(cp);
    }
    EXPECT_GT(all_.size(), 200000u);
  }

  std::string next() {
    static const std::vector<std::string> parts = {
        "a",      "Z",      "word",   " ",      " ",      "  ",     "\n",      "\r", "\r\n", "\t",
        "\v",     "'s",     "'T",     "'re",    "'VE",    "'m",     "'Ll",     "'d", "'",    "'\u017F",
        "\u017F", "'l",     "1",      "23",     "4567",   "!",      "?!",      "_",  "-",    "\u00A0",
        "\u2028", "\u0085", "\u3000", "\u0301", "\u200D", "\u200B", "\u1F600", ".",  "'K"};
    std::string text;
    for (size_t n = 1 + random_() % 16; n > 0; --n) {
      const uint32_t choice = random_() % 10;
      if (choice < 7) {
        text += parts[random_() % parts.size()];
      } else {
        const auto& from = choice == 7 ? all_ : rare_;
        append_utf8(text, from[random_() % from.size()]);
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
  std::vector<char32_t> all_;
  std::vector<char32_t> rare_;  // marks, numbers, white space
};

class PretokenizerOracle : public testing::TestWithParam<PretokenizerKind> {};

TEST_P(PretokenizerOracle, RandomTexts) {
  const PretokenizerKind kind = GetParam();
  const Oracle oracle(pretokenizer_regex(kind));
  const Oracle digits("\\p{N}");
  RandomText texts(17 + static_cast<uint32_t>(kind));
  for (int round = 0; round < 40000; ++round) {
    const std::string text = texts.next();
    Pieces expected;
    if (kind == PretokenizerKind::smollm) {
      for (const std::string& part : digits.split(text)) {
        for (const std::string& piece : oracle.split(part)) expected.push_back(piece);
      }
    } else {
      expected = oracle.split(text);
    }
    ASSERT_EQ(scan(kind, text), expected) << "round " << round << ": " << testing::PrintToString(text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PretokenizerOracle,
                         testing::Values(PretokenizerKind::qwen2, PretokenizerKind::qwen35, PretokenizerKind::llama3,
                                         PretokenizerKind::gpt2, PretokenizerKind::smollm));

TEST(Pretokenizer, MarksBelongToWordsInQwen35Only) {
  const std::string text = "\U0001F680\u200D\uFE0F ok";
  EXPECT_EQ(scan(PretokenizerKind::qwen35, text), (Pieces{"\U0001F680\u200D", "\uFE0F", " ok"}));
  EXPECT_EQ(scan(PretokenizerKind::qwen2, text), (Pieces{"\U0001F680\u200D\uFE0F", " ok"}));
  EXPECT_EQ(scan(PretokenizerKind::qwen35, "e\u0301tude"), (Pieces{"e\u0301tude"}));
  EXPECT_EQ(scan(PretokenizerKind::qwen2, "e\u0301tude"), (Pieces{"e", "\u0301tude"}));
}

TEST(Pretokenizer, Digits) {
  EXPECT_EQ(scan(PretokenizerKind::qwen2, "x1234"), (Pieces{"x", "1", "2", "3", "4"}));
  EXPECT_EQ(scan(PretokenizerKind::llama3, "x1234"), (Pieces{"x", "123", "4"}));
  EXPECT_EQ(scan(PretokenizerKind::gpt2, "x 1234"), (Pieces{"x", " 1234"}));
  EXPECT_EQ(scan(PretokenizerKind::smollm, "x 12"), (Pieces{"x", " ", "1", "2"}));
  EXPECT_EQ(scan(PretokenizerKind::smollm, "x  1  y"), (Pieces{"x", "  ", "1", " ", " y"}));
}

TEST(Pretokenizer, SpaceAndNewlines) {
  EXPECT_EQ(scan(PretokenizerKind::qwen2, "x = 3.1;\n\n  y"),
            (Pieces{"x", " =", " ", "3", ".", "1", ";\n\n", " ", " y"}));
  EXPECT_EQ(scan(PretokenizerKind::qwen2, "tab\t\tend  "), (Pieces{"tab", "\t", "\tend", "  "}));
  EXPECT_EQ(scan(PretokenizerKind::llama3, "  \n \n  a"), (Pieces{"  \n \n", " ", " a"}));
  EXPECT_EQ(scan(PretokenizerKind::gpt2, "a\n\n b"), (Pieces{"a", "\n\n", " b"}));
}

TEST(Pretokenizer, Contractions) {
  EXPECT_EQ(scan(PretokenizerKind::qwen2, "'Sup 'tis"), (Pieces{"'S", "up", " '", "tis"}));
  EXPECT_EQ(scan(PretokenizerKind::gpt2, "I'm I'M"), (Pieces{"I", "'m", " I", "'", "M"}));
  EXPECT_EQ(scan(PretokenizerKind::llama3, "'\u017Fx"), (Pieces{"'\u017F", "x"}));
}

TEST(Pretokenizer, NamesAreKnownOrRefused) {
  EXPECT_EQ(find_pretokenizer("qwen35").kind, PretokenizerKind::qwen35);
  EXPECT_TRUE(find_pretokenizer("qwen2").nfc);
  EXPECT_TRUE(find_pretokenizer("llama-bpe").ignore_merges);
  EXPECT_FALSE(find_pretokenizer("glm4").ignore_merges);
  EXPECT_EQ(find_pretokenizer(PretokenizerKind::llama3, false, false)->name, "glm4");
  EXPECT_EQ(find_pretokenizer(PretokenizerKind::llama3, true, true), nullptr);
  test::expect_refused({"\"de\\x1b\"", "qwen2, qwen35, llama-bpe, gpt-2, smollm, glm4"},
                       [] { find_pretokenizer("de\x1b"); });
}

}  // namespace
}  // namespace onebit
