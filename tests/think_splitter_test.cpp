// Reasoning and content come apart at the tags, however the text is cut up.
#include "text/think_splitter.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace onebit {
namespace {

using Start = ThinkSplitter::Start;

/// Splits a text pushed in parts of `size` bytes.
ThinkDelta split(Start start, const std::string& text, size_t size) {
  ThinkSplitter splitter(start);
  ThinkDelta all;
  for (size_t pos = 0; pos < text.size(); pos += size) splitter.push(std::string_view(text).substr(pos, size), all);
  splitter.finish(all);
  return all;
}

void expect_split(Start start, const std::string& text, const std::string& reasoning, const std::string& content) {
  for (const size_t size : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size() + 1}) {
    const ThinkDelta delta = split(start, text, size);
    EXPECT_EQ(delta.reasoning, reasoning) << text << " in parts of " << size;
    EXPECT_EQ(delta.content, content) << text << " in parts of " << size;
  }
}

TEST(ThinkSplitter, OpensOnlyBeforeContent) {
  expect_split(Start::outside, "<think>\nwhy\n</think>\n\nanswer", "why", "answer");
  expect_split(Start::outside, " \n<think>why</think>answer", "why", "answer");
  expect_split(Start::outside, "so <think>why</think>", "", "so <think>why</think>");
  expect_split(Start::outside, "<thin air", "", "<thin air");
  expect_split(Start::outside, "<think", "", "<think");
  expect_split(Start::outside, "answer </think> more", "", "answer </think> more");
}

TEST(ThinkSplitter, StartsInsideWhenThePromptOpenedTheBlock) {
  expect_split(Start::inside, "why\n</think>\n\nanswer", "why", "answer");
  expect_split(Start::inside, "\n</think>\n\nanswer", "", "answer");
  expect_split(Start::inside, "why not", "why not", "");
  expect_split(Start::inside, "<think>\nwhy</think>answer", "why", "answer");  // the tag once more
  expect_split(Start::inside, "<thin air", "<thin air", "");
}

TEST(ThinkSplitter, OpensOnlyOnce) {
  expect_split(Start::outside, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d");
  expect_split(Start::outside, "<think>a <think> b</think>c", "a <think> b", "c");
  expect_split(Start::outside, "<think></think>\n<think>c", "", "<think>c");
}

TEST(ThinkSplitter, KeepsWhiteSpaceInside) {
  expect_split(Start::inside, "  a \n\n b  \n</think>\n c \n", "a \n\n b", "c \n");
  expect_split(Start::inside, "a < b </ c </thin d</think>e", "a < b </ c </thin d", "e");
  expect_split(Start::inside, "a \n", "a", "");
  expect_split(Start::inside, "a \n</thi", "a \n</thi", "");
  expect_split(Start::outside, "", "", "");
  expect_split(Start::outside, "  ", "", "");
}

TEST(ThinkSplitter, StreamsWhatIsDecided) {
  ThinkSplitter splitter(Start::outside);
  const auto push = [&](std::string_view text) {
    ThinkDelta delta;
    splitter.push(text, delta);
    return delta.reasoning + "|" + delta.content;
  };
  EXPECT_EQ(push("<thi"), "|");
  EXPECT_EQ(push("nk>\nab"), "ab|");
  EXPECT_EQ(push("c </th"), "c|");
  EXPECT_EQ(push("en"), " </then|");
  EXPECT_EQ(push(" </think"), "|");
  EXPECT_EQ(push(">\n"), "|");
  EXPECT_EQ(push("\nanswer "), "|answer ");
  EXPECT_EQ(push("<think>"), "|<think>");
}

TEST(ThinkSplitter, OtherTags) {
  ThinkSplitter splitter(Start::outside, "[THINK]", "[/THINK]");
  ThinkDelta delta;
  splitter.push("[THINK]a[/THINK]b", delta);
  EXPECT_EQ(delta.reasoning, "a");
  EXPECT_EQ(delta.content, "b");
}

RC_GTEST_PROP(ThinkSplitter, DoesNotDependOnTheCuts, (bool inside, const std::vector<uint8_t>& sizes)) {
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "<think>", "</think>", "<", "</", "think>", "a", "b c", " ", "\n", "</thin", "<think"));
  std::string text;
  for (const std::string& part : parts) text += part;
  const Start start = inside ? Start::inside : Start::outside;
  ThinkSplitter splitter(start);
  ThinkDelta streamed;
  size_t pos = 0;
  for (size_t i = 0; pos < text.size(); ++i) {
    const size_t size = sizes.empty() ? 1 : sizes[i % sizes.size()] % 9 + (i % 2);
    splitter.push(std::string_view(text).substr(pos, size), streamed);
    pos += size;
  }
  splitter.finish(streamed);
  const ThinkDelta whole = split(start, text, text.size() + 1);
  RC_ASSERT(streamed.reasoning == whole.reasoning);
  RC_ASSERT(streamed.content == whole.content);
}

}  // namespace
}  // namespace onebit
