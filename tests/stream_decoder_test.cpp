// What is streamed equals what is decoded at once, however the bytes are cut up; stop strings are found where they are.
#include "text/stream_decoder.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/tokenizers.h"
#include "text/unicode.h"

namespace onebit {
namespace {

/// Cuts a text into parts of the given sizes (0 to 4 bytes).
std::vector<std::string> cut(const std::string& text, const std::vector<uint8_t>& sizes) {
  std::vector<std::string> parts;
  size_t pos = 0;
  for (size_t i = 0; pos < text.size(); ++i) {
    const size_t size = sizes.empty() ? 1 : sizes[i % sizes.size()] % 5 + (i % 2);
    parts.push_back(text.substr(pos, size));
    pos += parts.back().size();
  }
  return parts;
}

std::string repaired(const std::string& bytes) {
  std::string text;
  append_valid_utf8(text, bytes);
  return text;
}

/// Bytes in which broken and whole sequences are both likely.
rc::Gen<std::string> bytes_near_utf8() {
  using rc::gen::element;
  return rc::gen::container<std::string>(element<char>('a', '\x80', '\x82', '\x8F', '\x9F', '\xA0', '\xBF', '\xC2',
                                                       '\xC3', '\xE0', '\xE2', '\xED', '\xF0', '\xF4', '\xFF', 'z'));
}

RC_GTEST_PROP(Utf8Stream, EqualsRepairingAtOnce, (const std::vector<uint8_t>& sizes)) {
  const std::string bytes = *bytes_near_utf8();
  Utf8Stream stream;
  std::string text;
  for (const std::string& part : cut(bytes, sizes)) {
    stream.push(part, text);
    RC_ASSERT(is_valid_utf8(text));
    RC_ASSERT(stream.held() <= 3u);
  }
  stream.finish(text);
  RC_ASSERT(text == repaired(bytes));
}

TEST(Utf8Stream, HoldsBackOnlyWhatMayBecomeACharacter) {
  Utf8Stream stream;
  std::string text;
  const auto push = [&](std::string_view bytes) {
    text.clear();
    stream.push(bytes, text);
    return text;
  };
  EXPECT_EQ(push("a\xF0"), "a");
  EXPECT_EQ(push("\x9F"), "");
  EXPECT_EQ(push("\x98"), "");
  EXPECT_EQ(stream.held(), 3u);
  EXPECT_EQ(push("\x80!"), "\U0001F600!");
  EXPECT_EQ(push("\xE2\x82"), "");
  EXPECT_EQ(push("x"), "\uFFFDx");
  EXPECT_EQ(push("\xFF"), "\uFFFD");  // can't become one: not held
  EXPECT_EQ(push("\xC3"), "");
  text.clear();
  stream.finish(text);
  EXPECT_EQ(text, "\uFFFD");
  text.clear();
  stream.finish(text);
  EXPECT_EQ(text, "");
}

TEST(StreamDecoder, EqualsDecodeOnEveryCase) {
  const Tokenizer tokenizer(test::golden_tokenizer_data("demo"));
  const auto cases = test::parse_json_lines(test::read_xz(test::golden_folder() + "tokenizer/cases.jsonl.xz"));
  for (size_t i = 0; i < cases.size(); i += i < 656 ? 1 : 20) {
    const std::vector<int32_t> ids = tokenizer.encode(cases[i].get<std::string>(), ParseSpecial::yes);
    for (const ShowControl show : {ShowControl::yes, ShowControl::no}) {
      StreamDecoder decoder(tokenizer, show);
      std::string text;
      for (const int32_t id : ids) {
        decoder.push(id, text);
        ASSERT_TRUE(is_valid_utf8(text));
      }
      decoder.finish(text);
      ASSERT_EQ(text, tokenizer.decode(ids, show));
    }
  }
  StreamDecoder decoder(tokenizer);
  std::string text;
  EXPECT_THROW(decoder.push(tokenizer.n_vocab(), text), Error);
}

// --- stop strings
// -------------------------------------------------------------------------------------------------------

/// The rule, read off a whole text: the match that ends first, the longest of those.
std::pair<std::string, bool> stop_by_definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

rc::Gen<std::string> ab_text(int max_size) {
  return rc::gen::resize(max_size, rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c')));
}

RC_GTEST_PROP(StopStrings, StreamedEqualsTheDefinition, (const std::vector<uint8_t>& sizes)) {
  const std::string text = *ab_text(60);
  const auto stops = *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(ab_text(5)));
  StopStrings matcher(stops);
  std::string out;
  for (const std::string& part : cut(text, sizes)) {
    const bool stopped = matcher.push(part, out);
    RC_ASSERT(stopped == matcher.stopped());
    const auto longest =
        std::max_element(stops.begin(), stops.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    RC_ASSERT(matcher.held() < (stops.empty() ? 1u : std::max<size_t>(1, longest->size())));
  }
  matcher.finish(out);
  const auto [expected, stopped] = stop_by_definition(text, stops);
  RC_ASSERT(out == expected);
  RC_ASSERT(matcher.stopped() == stopped);
}

TEST(StopStrings, HoldsBackAPossibleStart) {
  StopStrings matcher({"\n\n", "STOP"});
  std::string out;
  EXPECT_FALSE(matcher.push("one\n", out));
  EXPECT_EQ(out, "one");
  EXPECT_FALSE(matcher.push("two ST", out));
  EXPECT_EQ(out, "one\ntwo ");
  EXPECT_FALSE(matcher.push("ART STO", out));
  EXPECT_EQ(out, "one\ntwo START ");
  EXPECT_TRUE(matcher.push("P and more", out));
  EXPECT_EQ(out, "one\ntwo START ");
  EXPECT_EQ(matcher.matched(), 1u);
  EXPECT_TRUE(matcher.push("ignored", out));
  matcher.finish(out);
  EXPECT_EQ(out, "one\ntwo START ");
}

TEST(StopStrings, TheFirstCompleteOneCounts) {
  StopStrings matcher({"abcd", "bc"});
  std::string out;
  EXPECT_TRUE(matcher.push("xabcd", out));
  EXPECT_EQ(out, "xa");
  EXPECT_EQ(matcher.matched(), 1u);
  StopStrings longest({"c", "", "abc"});
  out.clear();
  EXPECT_TRUE(longest.push("xabc", out));
  EXPECT_EQ(out, "x");
  EXPECT_EQ(longest.matched(), 2u);
}

TEST(StopStrings, WithoutAnyTextPassesThrough) {
  StopStrings matcher({""});
  std::string out;
  EXPECT_FALSE(matcher.push("text", out));
  EXPECT_EQ(out, "text");
}

}  // namespace
}  // namespace onebit
