// UTF-8, classes and NFC against utf8proc, and the rules for bytes that are not UTF-8.
#include "text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace onebit {
namespace {

constexpr char32_t kLimit = 0x110000;

bool is_surrogate(char32_t cp) { return cp >= 0xD800 && cp < 0xE000; }

std::string utf8(const std::u32string& code_points) {
  std::string text;
  for (const char32_t cp : code_points) append_utf8(text, cp);
  return text;
}

std::string nfc(const std::string& text) {
  std::string buffer;
  return std::string(to_nfc(text, buffer));
}

std::string oracle(const std::string& text, utf8proc_option_t form) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  std::string result(reinterpret_cast<char*>(out), static_cast<size_t>(std::max<utf8proc_ssize_t>(n, 0)));
  std::free(out);
  return result;
}
std::string oracle_nfc(const std::string& text) { return oracle(text, UTF8PROC_COMPOSE); }
std::string oracle_nfd(const std::string& text) { return oracle(text, UTF8PROC_DECOMPOSE); }

/// Characters that our (older) normalisation data leave alone and the oracle's don't.
bool is_newer(char32_t cp) {
  const std::string decomposed = oracle_nfd(utf8({cp}));
  return combining_class(cp) != utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->combining_class ||
         nfc(decomposed) != oracle_nfc(decomposed);
}

TEST(Unicode, CategoriesAgreeOnEveryCharacterTheOracleKnows) {
  constexpr std::string_view kMajor = "CLLLLLMMMNNNPPPPPPPSSSSZZZCCCC";  // first letter of each category
  size_t n_known = 0, n_changed = 0;
  for (char32_t cp = 0; cp < kLimit; ++cp) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(cp));
    if (category == UTF8PROC_CATEGORY_CN) continue;
    ++n_known;
    n_changed += general_category(cp) != category;
    ASSERT_EQ(kMajor[general_category(cp)], kMajor[static_cast<size_t>(category)]) << std::hex << uint32_t(cp);
  }
  EXPECT_GT(n_known, 280000u);
  EXPECT_LT(n_changed, 10u);  // a few marks became spacing ones, or ceased to be, between the versions
  EXPECT_EQ(general_category(kLimit), 0);
  EXPECT_EQ(classes_of(0xFFFFFFFF), 0);
}

TEST(Unicode, ClassesAreSetsOfCategories) {
  using namespace char_class;
  const auto expect = [](char32_t cp, uint8_t classes) {
    EXPECT_EQ(classes_of(cp), classes) << std::hex << uint32_t(cp);
  };
  expect('a', kLetter);
  expect(0x6F22, kLetter);
  expect(0x1C89, kLetter);  // new in Unicode 16
  expect(0x0301, kMark);
  expect(0x20DD, kMark);
  expect('7', kNumber);
  expect(0x2167, kNumber);
  expect(0xBD, kNumber);
  expect('_', kPunctuation);
  expect('$', kSymbol);
  expect(0x1F600, kSymbol);
  expect(' ', kSpace | kSeparator);
  expect(0x3000, kSpace | kSeparator);
  expect('\n', kSpace);
  expect(0x85, kSpace);
  for (const char32_t cp : {0x1C, 0x1F, 0x180E, 0x200B, 0xFEFF, 0x2060}) EXPECT_EQ(classes_of(cp) & kSpace, 0);
}

TEST(Unicode, NfcOfSingleCharacters) {
  size_t n_newer = 0;
  for (char32_t cp = 0; cp < kLimit; ++cp) {
    if (is_surrogate(cp)) continue;
    const std::string text = utf8({cp});
    ASSERT_EQ(nfc(text), oracle_nfc(text)) << std::hex << static_cast<uint32_t>(cp);
    const std::string decomposed = oracle_nfd(text);
    if (nfc(decomposed) == oracle_nfc(decomposed)) continue;
    ++n_newer;
    ASSERT_EQ(nfc(decomposed), decomposed) << std::hex << static_cast<uint32_t>(cp);
  }
  EXPECT_LT(n_newer, 30u);  // compositions that came after Unicode 9
}

TEST(Unicode, CombiningClassesAgreeOrAreNewer) {
  size_t n_combining = 0, n_newer = 0;
  for (char32_t cp = 0; cp < kLimit; ++cp) {
    const uint8_t expected = utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->combining_class;
    n_combining += expected != 0;
    if (combining_class(cp) == expected) continue;
    ++n_newer;
    ASSERT_EQ(combining_class(cp), 0) << std::hex << static_cast<uint32_t>(cp);
  }
  EXPECT_GT(n_combining, 800u);
  EXPECT_LT(n_newer, 150u);
}

TEST(Unicode, NfcOfRandomTexts) {
  // Few starters and many marks, so that reordering, blocking and composing meet.
  std::vector<char32_t> alphabet;
  for (const auto& [first, last] : std::vector<std::pair<char32_t, char32_t>>{{'a', 'f'},
                                                                              {0xC0, 0xFF},
                                                                              {0x1E00, 0x1EFF},
                                                                              {0x1F00, 0x1FFF},
                                                                              {0x300, 0x36F},
                                                                              {0x591, 0x5C7},
                                                                              {0x64B, 0x670},
                                                                              {0x915, 0x9FF},
                                                                              {0xB47, 0xB57},
                                                                              {0xDCF, 0xDDF},
                                                                              {0xF40, 0xF84},
                                                                              {0x1100, 0x11FF},
                                                                              {0xAC00, 0xAC40},
                                                                              {0x3046, 0x309A},
                                                                              {0xFB1D, 0xFB4E},
                                                                              {0x1D157, 0x1D165},
                                                                              {0xF900, 0xF910},
                                                                              {0x11099, 0x110BA}}) {
    for (char32_t cp = first; cp <= last; ++cp) {
      if (!is_newer(cp)) alphabet.push_back(cp);
    }
  }
  std::mt19937 random(3);
  for (int round = 0; round < 60000; ++round) {
    std::u32string text;
    // Choosing from a short window makes neighbours that belong together likely.
    const size_t window = random() % 3 == 0 ? alphabet.size() : 12;
    const size_t start = random() % (alphabet.size() - window + 1);
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      text += random() % 3 == 0 ? 0x300 + random() % 0x70 : alphabet[start + random() % window];
    }
    ASSERT_EQ(nfc(utf8(text)), oracle_nfc(utf8(text))) << round;
  }
}

TEST(Unicode, NfcLeavesNormalisedTextWhereItIs) {
  std::string buffer;
  for (const std::string_view text : {"plain", "h\u00E9 \uD55C\uAD6D \u6F22", ""}) {
    EXPECT_EQ(to_nfc(text, buffer).data(), text.data());
  }
  EXPECT_EQ(nfc("ae\u0301z"), "a\u00E9z");
  EXPECT_EQ(nfc("\u1112\u1161\u11ABx\u212B"), "\uD55Cx\u00C5");
}

TEST(Utf8, EveryCodePointGoesRoundTrip) {
  for (char32_t cp = 0; cp < kLimit; ++cp) {
    if (is_surrogate(cp)) continue;
    const std::string text = utf8({cp});
    const Utf8Char c = read_utf8(text, 0);
    ASSERT_TRUE(c.status == Utf8Status::valid && c.code_point == cp && c.size == text.size());
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Char part = read_utf8(std::string_view(text).substr(0, n), 0);
      ASSERT_TRUE(part.status == Utf8Status::incomplete && part.size == n);
    }
  }
  EXPECT_EQ(utf8({0xD800}), "\uFFFD");
  EXPECT_EQ(utf8({kLimit}), "\uFFFD");
}

TEST(Utf8, ValidityAgreesWithTheOracle) {
  std::mt19937 random(5);
  const uint8_t bytes[] = {'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                           0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  size_t n_valid = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text;
    for (size_t n = 1 + random() % 5; n > 0; --n) text += static_cast<char>(bytes[random() % std::size(bytes)]);
    bool valid = true;
    for (size_t pos = 0; valid && pos < text.size();) {
      utf8proc_int32_t cp = 0;
      const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + pos,
                                      static_cast<utf8proc_ssize_t>(text.size() - pos), &cp);
      valid = n > 0;
      pos += static_cast<size_t>(std::max<utf8proc_ssize_t>(n, 0));
    }
    n_valid += valid;
    ASSERT_EQ(is_valid_utf8(text), valid) << round;
    std::string repaired;
    append_valid_utf8(repaired, text);
    ASSERT_TRUE(is_valid_utf8(repaired));
    ASSERT_EQ(repaired == text, valid);
  }
  EXPECT_GT(n_valid, 1000u);
}

TEST(Utf8, EachBrokenStretchBecomesOneReplacement) {
  const auto repaired = [](std::string_view bytes) {
    std::string text;
    append_valid_utf8(text, bytes);
    return text;
  };
  // The Unicode Standard's own example (section 3.9, table 3-11).
  EXPECT_EQ(repaired("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xF4\x91\x92\x93"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(repaired(""), "");
}

}  // namespace
}  // namespace onebit
