// From tokens to replies: what the channel gathers, and the shapes of chunks, wholes, errors and metrics.
#include <gtest/gtest.h>
#include <poll.h>
#include <rapidcheck/gtest.h>

#include "server/answer_channel.h"
#include "server/api_error.h"
#include "server/metrics.h"
#include "server/reply_format.h"
#include "support/byte_model.h"

namespace onebit {
namespace {

using test::byte_ids;
using test::byte_model;

/// Feeds ids until the channel has enough; the finish reason is the engine's.
void feed(AnswerChannel& channel, const std::vector<int32_t>& ids, FinishReason reason = FinishReason::stop) {
  for (const int32_t id : ids) {
    if (!channel.on_token({id, -0.5f, {}})) break;
  }
  Statistics statistics;
  statistics.predicted_n = static_cast<int64_t>(ids.size());
  channel.on_finish(reason, statistics, "");
}

std::vector<int32_t> ids_of(const std::vector<TokenEvent>& tokens) {
  std::vector<int32_t> ids;
  for (const TokenEvent& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(AnswerChannel, TokensComeWithTheirText) {
  const TextModel model = byte_model();
  AnswerChannel channel(model.tokenizer, {}, Wake::each_part, nullptr);
  channel.on_token({0xC3, 0, {}});
  AnswerPart part = channel.take();
  EXPECT_FALSE(part.has_text());
  EXPECT_TRUE(part.tokens.empty());  // half a character
  channel.on_token({0xA9, 0, {}});
  part = channel.take();
  EXPECT_EQ(part.text.content, "\xC3\xA9");
  EXPECT_EQ(ids_of(part.tokens), (std::vector<int32_t>{0xC3, 0xA9}));
  EXPECT_EQ(part.n_generated, 2);
}

TEST(AnswerChannel, TokensOfAStopStringAreDropped) {
  const TextModel model = byte_model();
  AnswerChannel channel(model.tokenizer, {.stop = {"cd"}}, Wake::each_part, nullptr);
  feed(channel, byte_ids("abcdef"));
  const AnswerPart part = channel.take();
  EXPECT_EQ(part.text.content, "ab");
  EXPECT_EQ(ids_of(part.tokens), (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(channel.matched_stop(), 0U);
  EXPECT_TRUE(part.finished);
}

TEST(AnswerChannel, EndsTheAnswerAtAStopString) {
  const TextModel model = byte_model();
  AnswerChannel channel(model.tokenizer, {.stop = {"b"}}, Wake::each_part, nullptr);
  EXPECT_TRUE(channel.on_token({'a', 0, {}}));
  EXPECT_FALSE(channel.on_token({'b', 0, {}}));
}

TEST(AnswerChannel, AnIdWithoutTextIsAFailureOfTheAnswerOnly) {
  const TextModel model = byte_model();
  AnswerChannel channel(model.tokenizer, {}, Wake::each_part, nullptr);
  EXPECT_FALSE(channel.on_token({1'000'000, 0, {}}));
  channel.on_finish(FinishReason::stop, {}, "");
  const AnswerPart part = channel.take();
  EXPECT_EQ(part.reason, FinishReason::error);
  EXPECT_FALSE(part.message.empty());
}

TEST(AnswerChannel, GivesItsPlaceBackAtTheEnd) {
  const TextModel model = byte_model();
  auto place = std::make_shared<int>(0);
  AnswerChannel channel(model.tokenizer, {}, Wake::each_part, place);
  EXPECT_EQ(place.use_count(), 2);
  channel.on_finish(FinishReason::cancelled, {}, "");
  EXPECT_EQ(place.use_count(), 1);
}

TEST(AnswerChannel, WakesTheConnectionWhenItHasUseForIt) {
  const TextModel model = byte_model();
  AnswerChannel parts(model.tokenizer, {}, Wake::each_part, nullptr);
  AnswerChannel whole(model.tokenizer, {}, Wake::at_end, nullptr);
  const auto wakes = [](const AnswerChannel& channel) {
    pollfd fd{channel.fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  };
  for (AnswerChannel* channel : {&parts, &whole}) {
    channel->on_prompt(0, 1);
    channel->on_token({'a', 0, {}});
  }
  EXPECT_TRUE(wakes(parts));
  EXPECT_FALSE(wakes(whole));
  whole.on_finish(FinishReason::length, {}, "");
  EXPECT_TRUE(wakes(whole));
  EXPECT_EQ(whole.take().text.content, "a");
}

TEST(AnswerChannel, TellsHowFarThePromptIs) {
  const TextModel model = byte_model();
  AnswerChannel channel(model.tokenizer, {}, Wake::each_part, nullptr);
  channel.on_prompt(4, 10);
  channel.on_prompt(8, 10);
  const AnswerPart part = channel.take();
  EXPECT_TRUE(part.prompt_moved);
  EXPECT_EQ(part.n_prompt_done, 8);
  EXPECT_EQ(part.n_prompt, 10);
  EXPECT_EQ(channel.n_cached(), 4);
  EXPECT_FALSE(channel.take().prompt_moved);
}

RC_GTEST_PROP(AnswerChannel, PartsJoinToTheWhole, ()) {
  const TextModel model = byte_model();
  const auto ids = *rc::gen::container<std::vector<int32_t>>(
      rc::gen::element('a', 'b', '<', 0xC3, 0xA9, test::kThink, test::kEndThink));
  const TextStreamOptions options = {.stop = {"bb"}, .split_reasoning = true};
  AnswerChannel once(model.tokenizer, options, Wake::each_part, nullptr),
      often(model.tokenizer, options, Wake::each_part, nullptr);
  feed(once, ids);
  AnswerPart joined;
  const auto add = [&](const AnswerPart& part) {
    joined.text.content += part.text.content;
    joined.text.reasoning += part.text.reasoning;
    joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
  };
  for (const int32_t id : ids) {
    const bool more = often.on_token({id, 0, {}});
    add(often.take());
    if (!more) break;
  }
  often.on_finish(FinishReason::stop, {}, "");
  add(often.take());
  const AnswerPart whole = once.take();
  RC_ASSERT(joined.text.content == whole.text.content);
  RC_ASSERT(joined.text.reasoning == whole.text.reasoning);
  RC_ASSERT(ids_of(joined.tokens) == ids_of(whole.tokens));
}

class FormatTest : public testing::Test {
 protected:
  ReplyFormat format(Api api) {
    request_.api = api;
    return {request_, model_.tokenizer, "served", "dflash2"};
  }
  static AnswerPart answer(const std::string& content, const std::string& reasoning = "") {
    AnswerPart part;
    part.text = {reasoning, content};
    for (const char c : content) part.tokens.push_back({static_cast<unsigned char>(c), -0.25f, {{'x', -1}, {'y', -2}}});
    part.finished = true;
    part.reason = FinishReason::length;
    part.statistics = {.slot = 1,
                       .prompt_n = 3,
                       .cache_n = 1,
                       .prompt_ms = 6,
                       .predicted_n = 4,
                       .predicted_ms = 8,
                       .draft_n = 5,
                       .draft_n_accepted = 2,
                       .steps_by_length = {},
                       .rounds = 2,
                       .accepted_per_position = {1, 1},
                       .accepted_per_round = {1, 1}};
    return part;
  }

  FormatTest() { request_.request.prompt = byte_ids("abcd"); }
  TextModel model_ = byte_model();
  GenerationRequest request_;
};

TEST_F(FormatTest, WholeChat) {
  const Json json = format(Api::chat).whole(answer("hey", "why"), std::nullopt);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "served");
  EXPECT_EQ(json["choices"][0]["message"],
            (Json{{"role", "assistant"}, {"content", "hey"}, {"reasoning_content", "why"}}));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"], Json::parse(R"({"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8,
                                           "prompt_tokens_details": {"cached_tokens": 1}})"));
  EXPECT_EQ(json["timings"], Json::parse(R"({"cache_n": 1, "prompt_n": 3, "prompt_ms": 6.0, "prompt_per_token_ms": 2.0,
      "prompt_per_second": 500.0, "predicted_n": 4, "predicted_ms": 8.0, "predicted_per_token_ms": 2.0,
      "predicted_per_second": 500.0, "draft_n": 5, "draft_n_accepted": 2})"));
  EXPECT_EQ(json["speculation"], Json::parse(R"({"kind": "dflash2", "rounds": 2, "drafted": 5, "accepted": 2,
      "tokens_per_step": 2.0, "accepted_per_position": [1, 1], "steps_by_length": [], "draft_passes": 0, "fed": 0,
      "looked_up": 0, "looked_up_accepted": 0})"));
}

TEST_F(FormatTest, ChunksOfAChat) {
  request_.include_usage = true;
  ReplyFormat f = format(Api::chat);
  EXPECT_EQ(f.first_chunk()["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(f.text_chunk(answer("hey"))["choices"][0]["delta"], (Json{{"content", "hey"}}));
  EXPECT_EQ(f.text_chunk(answer("", "why"))["choices"][0]["delta"], (Json{{"reasoning_content", "why"}}));
  EXPECT_TRUE(f.text_chunk(answer("")).is_null());
  const Json last = f.last_chunk(answer(""), std::nullopt);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(last["timings"]["draft_n_accepted"], 2);
  EXPECT_FALSE(last.contains("usage"));
  const Json usage = f.usage_chunk(answer(""));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4);
  EXPECT_EQ(f.done(), "data: [DONE]\n\n");
  request_.include_usage = false;
  EXPECT_TRUE(f.usage_chunk(answer("")).is_null());
}

TEST_F(FormatTest, Logprobs) {
  request_.request.sampling.n_logprobs = 2;
  const Json chat = format(Api::chat).whole(answer("h"), std::nullopt)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(chat[0]["token"], "h");
  EXPECT_EQ(chat[0]["bytes"], Json::parse("[104]"));
  EXPECT_EQ(chat[0]["logprob"], -0.25);
  EXPECT_EQ(chat[0]["top_logprobs"][1]["token"], "y");
  request_.echo = true;
  request_.prompt = "abcd";
  const Json text = format(Api::completion).whole(answer("hi"), std::nullopt)["choices"][0]["logprobs"];
  EXPECT_EQ(text["tokens"], Json::parse(R"(["h", "i"])"));
  EXPECT_EQ(text["text_offset"], Json::parse("[4, 5]"));
  EXPECT_EQ(text["top_logprobs"][0], Json::parse(R"({"x": -1.0, "y": -2.0})"));
}

TEST_F(FormatTest, EchoComesFirst) {
  request_.echo = true;
  request_.prompt = "abcd";
  EXPECT_EQ(format(Api::completion).whole(answer("hi"), std::nullopt)["choices"][0]["text"], "abcdhi");
  EXPECT_EQ(format(Api::completion).first_chunk()["choices"][0]["text"], "abcd");
}

TEST_F(FormatTest, Native) {
  request_.text.stop = {"x", "stop here"};
  request_.return_tokens = true;
  ReplyFormat f = format(Api::native);
  const Json word = f.whole(answer("hi"), 1U);
  EXPECT_EQ(word["content"], "hi");
  EXPECT_EQ(word["tokens"], Json::parse("[104, 105]"));
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], "stop here");
  EXPECT_EQ(word["id_slot"], 1);
  EXPECT_EQ(f.whole(answer("hi"), std::nullopt)["stop_type"], "limit");
  EXPECT_EQ(f.text_chunk(answer("hi"))["stop"], false);
  EXPECT_EQ(f.done(), "");
  EXPECT_TRUE(f.first_chunk().is_null());
}

TEST_F(FormatTest, InvalidUtf8NeverLeaves) {
  request_.request.sampling.n_logprobs = 0;
  AnswerPart part = answer("");
  part.tokens.push_back({0xC3, 0, {{0xC3, 0}}});
  const std::string text = to_text(format(Api::completion).text_chunk(part));
  EXPECT_NE(text.find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_NO_THROW(Json::parse(text));
}

TEST(ApiErrors, KindsBecomeStatuses) {
  const auto status = [](auto error) { return as_api_error(std::make_exception_ptr(error)).status(); };
  EXPECT_EQ(status(Error(ErrorKind::usage, "x")), 400);
  EXPECT_EQ(status(Error(ErrorKind::runtime, "x")), 500);
  EXPECT_EQ(status(Error(ErrorKind::out_of_memory, "x")), 503);
  EXPECT_EQ(status(std::bad_alloc()), 503);
  EXPECT_EQ(status(std::runtime_error("x")), 500);
  EXPECT_EQ(status(not_supported("x")), 501);
  const HttpReply reply = error_reply(unavailable("full"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(find_header(reply.headers, "retry-after"));
  EXPECT_EQ(Json::parse(reply.body),
            Json::parse(R"({"error": {"code": 503, "message": "full", "type": "unavailable_error"}})"));
}

TEST(Metrics, Text) {
  Metrics metrics;
  Statistics s;
  s.prompt_n = 10;
  s.prompt_ms = 500;
  s.predicted_n = 4;
  s.predicted_ms = 100;
  s.rounds = 4;
  s.draft_n_accepted = 5;
  s.accepted_per_position = {3, 2, 0};
  metrics.count(FinishReason::stop, s, 300);
  s = {};
  s.rounds = 1;
  s.draft_n_accepted = 1;
  s.accepted_per_position = {1};
  metrics.count(FinishReason::length, s, 0);
  metrics.count_error(404);
  const std::string text = metrics.text({{.slot = 0, .request = 5}, {.slot = 1}}, 2, {.n_entries = 7, .n_evicted = 3});
  for (const char* line :
       {"llamacpp:prompt_tokens_total 10\n", "llamacpp:prompt_tokens_seconds 20\n",
        "llamacpp:tokens_predicted_total 4\n", "llamacpp:requests_processing 1\n", "llamacpp:requests_deferred 2\n",
        "onebit:draft_tokens_per_step 2.2\n", "onebit:draft_accepted_total{position=\"1\"} 4\n",
        "onebit:draft_accepted_total{position=\"2\"} 2\n", "onebit:http_refused_total 1\n",
        "onebit:prefix_cache_entries 7\n", "onebit:prefix_cache_evicted_total 3\n",
        "onebit:requests_total{finish_reason=\"stop\"} 1\n", "_bucket{le=\"0.25\"} 0\n", "_bucket{le=\"0.5\"} 1\n",
        "_bucket{le=\"+Inf\"} 1\n", "_count 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace onebit
