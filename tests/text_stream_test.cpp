// The text of an answer: whole characters, stop strings, reasoning, and prompts made of conversations.
#include "engine/text_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/byte_model.h"

namespace onebit {
namespace {

using test::byte_ids;
using test::byte_model;

struct Streamed {
  ThinkDelta all;
  size_t n_taken = 0;  // ids until a stop string
  std::optional<size_t> stop;
};

Streamed stream(const std::vector<int32_t>& ids, const TextStreamOptions& options) {
  const TextModel model = byte_model();
  TextStream text(model.tokenizer, options);
  Streamed result;
  for (const int32_t id : ids) {
    ++result.n_taken;
    if (text.push(id, result.all)) break;
  }
  text.finish(result.all);
  result.stop = text.matched_stop();
  return result;
}

TEST(TextStream, CutsAtTheFirstStopString) {
  const Streamed s = stream(byte_ids("one two three four"), {.stop = {"four", "three", ""}});
  EXPECT_EQ(s.all.content, "one two ");
  EXPECT_EQ(s.stop, 1U);
  EXPECT_EQ(s.n_taken, 13U);  // nothing behind the stop string is asked for
}

TEST(TextStream, HoldsBackNothingAtTheEnd) {
  EXPECT_EQ(stream(byte_ids("one thr"), {.stop = {"three"}}).all.content, "one thr");
  EXPECT_EQ(stream(byte_ids("caf\xC3"), {}).all.content, "caf\xEF\xBF\xBD");
}

TEST(TextStream, StopStringsEndReasoningToo) {
  const Streamed s = stream(byte_ids("<think>because STOP</think>yes"), {.stop = {"STOP"}, .split_reasoning = true});
  EXPECT_EQ(s.all.reasoning, "because");
  EXPECT_EQ(s.all.content, "");
  EXPECT_EQ(s.stop, 0U);
}

TEST(TextStream, SplitsReasoning) {
  std::vector<int32_t> ids = {test::kThink};
  for (const int32_t id : byte_ids("\nwhy\n")) ids.push_back(id);
  ids.push_back(test::kEndThink);
  for (const int32_t id : byte_ids("\n\nso")) ids.push_back(id);
  EXPECT_EQ(stream(ids, {.split_reasoning = true}).all.reasoning, "why");
  EXPECT_EQ(stream(ids, {.split_reasoning = true}).all.content, "so");
  EXPECT_EQ(stream(ids, {}).all.content, "<think>\nwhy\n</think>\n\nso");
}

TEST(TextStream, AnOpenBlockOfThePromptIsPartOfTheText) {
  const std::vector<int32_t> ids = byte_ids("why\n</think>\n\nso");
  const TextStreamOptions split = {.split_reasoning = true, .thinking = true};
  EXPECT_EQ(stream(ids, split).all.reasoning, "why");
  EXPECT_EQ(stream(ids, split).all.content, "so");
  EXPECT_EQ(stream(ids, {.thinking = true}).all.content, "<think>\nwhy\n</think>\n\nso");
  EXPECT_EQ(stream(byte_ids("unfinished"), split).all.reasoning, "unfinished");
}

TEST(TextStream, ControlTokensAreNotText) {
  std::vector<int32_t> ids = byte_ids("a");
  ids.push_back(test::kImEnd);
  ids.push_back('b');
  EXPECT_EQ(stream(ids, {}).all.content, "ab");
  EXPECT_EQ(stream(ids, {.show_control = ShowControl::yes}).all.content, "a<|im_end|>b");
}

RC_GTEST_PROP(TextStream, UncutTextIsTheDecodedText, ()) {
  const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(0, 256));
  const TextModel model = byte_model();
  RC_ASSERT(stream(ids, {.stop = {"\xFF\xFF\xFF"}}).all.content == model.tokenizer.decode(ids));
}

Prompt prompt_of(const TextModel& model, const char* messages) {
  TemplateInput input;
  input.messages = nlohmann::ordered_json::parse(messages);
  return chat_prompt(model, input);
}

TEST(TextModel, ControlTokensOfTheTemplateOnly) {
  const Prompt prompt = prompt_of(byte_model(), R"([{"role": "user", "content": "a<|im_end|>"}])");
  EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), test::kImEnd), 1);
  EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), test::kImStart), 2);
  EXPECT_EQ(prompt.text, "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(prompt.thinking);
}

TEST(TextModel, KnowsThatThePromptThinks) {
  const TextModel model = byte_model("{{ messages[0].content }}<|im_start|>assistant\n<think>\n");
  EXPECT_TRUE(prompt_of(model, R"([{"role": "user", "content": "a"}])").thinking);
}

TEST(TextModel, BosOnce) {
  TokenizerData data = test::byte_tokenizer_data();
  data.special.bos = test::kImStart;
  data.add_bos = true;
  const TextModel model{Tokenizer(data), ChatTemplate("{{ bos_token }}{{ messages[0].content }}"), {}};
  EXPECT_EQ(text_prompt(model, "a"), (std::vector<int32_t>{test::kImStart, 'a'}));
  EXPECT_EQ(text_prompt(model, "<|im_start|>a"), (std::vector<int32_t>{test::kImStart, 'a'}));
  EXPECT_EQ(prompt_of(model, R"([{"role": "user", "content": "a"}])").ids, (std::vector<int32_t>{test::kImStart, 'a'}));
}

TEST(TextModel, EndTokens) {
  const TextModel model = byte_model();
  Request ends, goes_on;
  set_end_tokens(model.tokenizer, false, ends);
  set_end_tokens(model.tokenizer, true, goes_on);
  EXPECT_EQ(ends.stop_ids, (std::vector<int32_t>{test::kImEnd}));
  EXPECT_TRUE(goes_on.stop_ids.empty());
  EXPECT_EQ(goes_on.sampling.suppressed, (std::vector<int32_t>{test::kImEnd}));
}

}  // namespace
}  // namespace onebit
