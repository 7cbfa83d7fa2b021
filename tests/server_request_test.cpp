// Bodies of requests: what each field does, and that a wrong one is refused by name.
#include <gtest/gtest.h>

#include <cmath>

#include "server/api_error.h"
#include "server/generation_request.h"
#include "support/byte_model.h"

namespace onebit {
namespace {

class RequestTest : public testing::Test {
 protected:
  RequestTest() {
    defaults_.model = &model_;
    defaults_.sampling = model_.sampling;
    defaults_.n_ctx = 100;
    defaults_.max_messages = 4;
  }

  /// A completion of "hi" with more fields.
  GenerationRequest completion(const std::string& fields) {
    return read_generation_request(Api::completion, parse_body(R"({"prompt": "hi")" + fields + "}"), defaults_);
  }
  GenerationRequest chat(const std::string& fields) {
    const std::string body = R"({"messages": [{"role": "user", "content": "hi"}])" + fields + "}";
    return read_generation_request(Api::chat, parse_body(body), defaults_);
  }
  /// `action` throws ApiError(400) whose message has `word`.
  template <class F>
  static void expect_400(const std::string& word, F action) {
    try {
      action();
      ADD_FAILURE() << "expected an error about " << word;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
  void expect_bad_field(const std::string& name, const std::string& value) {
    expect_400(name, [&] { completion(", \"" + name + "\": " + value); });
  }

  TextModel model_ = test::byte_model();
  RequestDefaults defaults_;
};

TEST_F(RequestTest, Defaults) {
  const GenerationRequest r = completion("");
  EXPECT_EQ(r.request.prompt, (std::vector<int32_t>{'h', 'i'}));
  EXPECT_FLOAT_EQ(r.request.sampling.temperature, 0.8f);
  EXPECT_FLOAT_EQ(r.request.sampling.top_p, 0.95f);
  EXPECT_EQ(r.request.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(r.request.sampling.min_p, 0.05f);
  EXPECT_EQ(r.request.sampling.n_logprobs, -1);
  EXPECT_EQ(r.request.max_tokens, -1);
  EXPECT_EQ(r.request.stop_ids, (std::vector<int32_t>{test::kImEnd}));
  EXPECT_FALSE(r.request.draft_max);
  EXPECT_TRUE(r.request.reuse_prefix);
  EXPECT_FALSE(r.stream);
}

TEST_F(RequestTest, EveryField) {
  const GenerationRequest r = completion(
      R"(, "model": "any", "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0, "typical_p": 0.9, "seed": 7,
      "repeat_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 2, "repeat_last_n": -1, "max_tokens": 5,
      "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}, "cache_prompt": false,
      "ignore_eos": true, "logprobs": 3, "echo": true, "speculative.n_max": 0, "speculative.p_min": 0.25,
      "return_tokens": true, "timings_per_token": true, "return_progress": true, "n": 1, "user": "x", "unheard_of": [])");
  const SamplingOptions& s = r.request.sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_FLOAT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0);
  EXPECT_FLOAT_EQ(s.typical_p, 0.9f);
  EXPECT_EQ(s.seed, 7U);
  EXPECT_FLOAT_EQ(s.repeat_penalty, 1.1f);
  EXPECT_FLOAT_EQ(s.presence_penalty, -1);
  EXPECT_FLOAT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.repeat_last_n, -1);
  EXPECT_EQ(s.n_logprobs, 3);
  EXPECT_EQ(s.suppressed, (std::vector<int32_t>{test::kImEnd}));
  EXPECT_TRUE(r.request.stop_ids.empty());
  EXPECT_EQ(r.request.max_tokens, 5);
  EXPECT_EQ(r.text.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(r.stream && r.include_usage && r.echo && r.return_tokens && r.timings_per_token && r.return_progress);
  EXPECT_FALSE(r.request.reuse_prefix);
  EXPECT_EQ(r.request.draft_max, 0);
  EXPECT_FLOAT_EQ(*r.request.draft_p_min, 0.25f);
}

TEST_F(RequestTest, NullIsAbsent) {
  EXPECT_FLOAT_EQ(completion(R"(, "temperature": null, "stop": null, "seed": null)").request.sampling.temperature,
                  0.8f);
}

TEST_F(RequestTest, SpeculationAsAnObject) {
  const GenerationRequest r = completion(R"(, "speculative": {"n_max": 3, "p_min": 0.5})");
  EXPECT_EQ(r.request.draft_max, 3);
  EXPECT_FLOAT_EQ(*r.request.draft_p_min, 0.5f);
  expect_400("speculative.n_max", [&] { completion(R"(, "speculative": {"n_max": -1})"); });
}

TEST_F(RequestTest, NewSeedsUnlessOneIsGiven) {
  EXPECT_NE(completion("").request.sampling.seed, completion("").request.sampling.seed);
  EXPECT_NE(completion(R"(, "seed": -1)").request.sampling.seed, completion(R"(, "seed": -1)").request.sampling.seed);
  defaults_.seed = 5;
  EXPECT_EQ(completion("").request.sampling.seed, 5U);
}

TEST_F(RequestTest, LengthUnderThreeNames) {
  EXPECT_EQ(completion(R"(, "n_predict": 3)").request.max_tokens, 3);
  EXPECT_EQ(completion(R"(, "max_completion_tokens": 4, "max_tokens": 3)").request.max_tokens, 4);
  EXPECT_EQ(completion(R"(, "max_tokens": -1)").request.max_tokens, -1);
  EXPECT_EQ(completion(R"(, "max_tokens": 3.0)").request.max_tokens, 3);
}

TEST_F(RequestTest, LogitBiasInEveryShape) {
  using Bias = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(completion(R"(, "logit_bias": {"97": -5, "98": 2.5})").request.sampling.logit_bias,
            (Bias{{97, -5}, {98, 2.5}}));
  EXPECT_EQ(completion(R"(, "logit_bias": [[97, 1], ["bc", 2]])").request.sampling.logit_bias,
            (Bias{{97, 1}, {98, 2}, {99, 2}}));
  const Bias banned = completion(R"(, "logit_bias": [[97, false]])").request.sampling.logit_bias;
  ASSERT_EQ(banned.size(), 1U);
  EXPECT_EQ(banned[0].second, -INFINITY);
  for (const char* bad : {"3", "[[97]]", "[[97, true]]", "[[97, \"x\"]]", "[[260, 1]]", "[[-1, 1]]", "[[97.5, 1]]",
                          "{\"97\": 1e99}", "[[99999999999, 1]]"}) {
    expect_bad_field("logit_bias", bad);
  }
}

TEST_F(RequestTest, WrongTypesAndRangesAreRefusedByName) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"temperature", {"-0.1", "\"1\"", "true", "[]", "1e9"}},
      {"top_p", {"-1", "1.01", "{}"}},
      {"top_k", {"-2", "1.5", "99999999999"}},
      {"min_p", {"2"}},
      {"typical_p", {"-1"}},
      {"seed", {"1.5", "\"7\"", "18446744073709551615"}},
      {"repeat_penalty", {"0", "-1"}},
      {"repeat_last_n", {"-2"}},
      {"presence_penalty", {"\"\""}},
      {"max_tokens", {"0", "-2", "\"5\"", "1e300"}},
      {"n_predict", {"0"}},
      {"stop", {"5", "[5]", "{}", R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"}},
      {"stream", {"1", "\"true\""}},
      {"stream_options", {"[]"}},
      {"n", {"0", "2"}},
      {"best_of", {"2"}},
      {"logprobs", {"-1", "21", "true"}},
      {"n_probs", {"101"}},
      {"speculative.n_max", {"-1", "\"x\""}},
      {"speculative.p_min", {"1.5"}},
      {"ignore_eos", {"0"}},
      {"model", {"5"}},
      {"grammar", {"\"root ::= x\""}},
      {"json_schema", {"{\"type\": \"object\"}"}},
      {"suffix", {"\"x\""}},
      {"response_format", {"{\"type\": \"json_object\"}", "\"json\""}},
  };
  for (const auto& [name, values] : cases) {
    for (const char* value : values) expect_bad_field(name, value);
  }
  expect_bad_field("stop", "\"" + std::string(1025, 'x') + "\"");
}

TEST_F(RequestTest, PromptsInEveryShape) {
  const auto prompt = [&](const std::string& json) {
    return read_generation_request(Api::completion, parse_body(R"({"prompt": )" + json + "}"), defaults_)
        .request.prompt;
  };
  EXPECT_EQ(prompt(R"(["hi"])"), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(prompt("[104, 105]"), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(prompt("[[104, 105]]"), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(prompt(R"(["h", 105])"), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(prompt("\"<|im_start|>\""), (std::vector<int32_t>{test::kImStart}));
  for (const char* bad : {"[\"a\", \"b\"]", "[260]", "[-1]", "[1.5]", "[[1], [2]]", "{}", "5", "\"\"", "[]", "null"}) {
    expect_400("prompt", [&] { prompt(bad); });
  }
}

TEST_F(RequestTest, PromptsLongerThanTheContext) {
  const std::string fits(99, 'x');
  EXPECT_NO_THROW(read_generation_request(Api::completion, Json{{"prompt", fits}}, defaults_));
  try {
    read_generation_request(Api::completion, Json{{"prompt", fits + "x"}}, defaults_);
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const Json json = error_json(error)["error"];
    EXPECT_EQ(json["type"], "exceed_context_size_error");
    EXPECT_EQ(json["n_prompt_tokens"], 100);
    EXPECT_EQ(json["n_ctx"], 100);
  }
}

TEST_F(RequestTest, ChatLogprobs) {
  EXPECT_EQ(chat("").request.sampling.n_logprobs, -1);
  EXPECT_EQ(chat(R"(, "logprobs": true)").request.sampling.n_logprobs, 0);
  EXPECT_EQ(chat(R"(, "logprobs": true, "top_logprobs": 4)").request.sampling.n_logprobs, 4);
  EXPECT_EQ(chat(R"(, "n_probs": 2)").request.sampling.n_logprobs, 2);
  expect_400("top_logprobs", [&] { chat(R"(, "top_logprobs": 4)"); });
}

TEST_F(RequestTest, ReasoningFormat) {
  EXPECT_TRUE(chat("").text.split_reasoning);
  EXPECT_FALSE(chat(R"(, "reasoning_format": "none")").text.split_reasoning);
  EXPECT_TRUE(chat(R"(, "reasoning_format": "deepseek")").text.split_reasoning);
  expect_400("reasoning_format", [&] { chat(R"(, "reasoning_format": "other")"); });
  EXPECT_FALSE(completion("").text.split_reasoning);
}

class ConversationTest : public RequestTest {
 protected:
  TemplateInput read(const std::string& messages, const std::string& fields = "") {
    return read_conversation(parse_body("{\"messages\": " + messages + fields + "}"), defaults_);
  }
};

TEST_F(ConversationTest, PartsBecomeText) {
  const auto input =
      read(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  EXPECT_EQ(input.messages[0]["content"], "a\nb");
}

TEST_F(ConversationTest, BadMessagesAreRefusedByIndex) {
  for (
      const char* bad :
      {R"([])", R"({})", R"("hi")", R"([5])", R"([{"content": "a"}])", R"([{"role": "usr", "content": "a"}])",
       R"([{"role": "user"}])", R"([{"role": "user", "content": 5}])", R"([{"role": "user", "content": ["a"]}])",
       R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
       R"([{"role": "user", "content": [{"type": "text"}]}])", R"([{"role": "assistant", "tool_calls": {}}])",
       R"([{"role":"user","content":"1"},{"role":"user","content":"2"},{"role":"user","content":"3"},{"role":"user","content":"4"},{"role":"user","content":"5"}])"}) {
    expect_400("messages", [&] { read(bad); });
  }
  expect_400("messages[1]", [&] { read(R"([{"role": "user", "content": "a"}, {"role": "user", "content": null}])"); });
}

TEST_F(ConversationTest, ToolsAndTheirCalls) {
  const std::string call = R"([{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function":
      {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "5", "tool_call_id": "1"}])";
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_TRUE(read(call, tools).messages[0]["content"].is_null());
  EXPECT_EQ(read(call, tools).tools.size(), 1U);
  EXPECT_TRUE(read(call, tools + R"(, "tool_choice": "none")").tools.is_null());
  expect_400("tool_choice", [&] { read(call, tools + R"(, "tool_choice": "required")"); });
  for (const char* bad : {"5", "[5]", "[{}]", R"([{"function": {}}])", R"([{"function": {"name": 5}}])"}) {
    expect_400("tools", [&] { read(call, std::string(", \"tools\": ") + bad); });
  }
}

TEST_F(ConversationTest, TemplateSettings) {
  const std::string hi = R"([{"role": "user", "content": "hi"}])";
  defaults_.template_kwargs = {{"enable_thinking", true}, {"kept", 1}};
  EXPECT_EQ(read(hi, R"(, "reasoning_effort": "none")").kwargs["enable_thinking"], false);
  EXPECT_EQ(read(hi, R"(, "reasoning_effort": "none")").kwargs["kept"], 1);
  EXPECT_EQ(read(hi, R"(, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true})")
                .kwargs["enable_thinking"],
            true);
  expect_400("chat_template_kwargs.messages", [&] { read(hi, R"(, "chat_template_kwargs": {"messages": []})"); });
  expect_400("chat_template_kwargs", [&] { read(hi, R"(, "chat_template_kwargs": [])"); });
  expect_400("reasoning_effort", [&] { read(hi, R"(, "reasoning_effort": 1)"); });
}

TEST_F(ConversationTest, EchoedReasoningIsKeptWhereTheTemplateCan) {
  const std::string turns = R"([{"role": "assistant", "content": "a", "reasoning_content": "r"}])";
  EXPECT_FALSE(read(turns).kwargs.contains("preserve_thinking"));
  const TextModel other = test::byte_model("{% if preserve_thinking %}{% endif %}{{ messages[0].content }}");
  defaults_.model = &other;
  EXPECT_EQ(read(turns).kwargs["preserve_thinking"], true);
  EXPECT_EQ(read(turns, R"(, "chat_template_kwargs": {"preserve_thinking": false})").kwargs["preserve_thinking"],
            false);
}

class JsonTest : public RequestTest {};

TEST_F(JsonTest, BrokenBodies) {
  for (const char* bad : {"", "{", "{\"a\":}", "[]", "5", "null", "\"x\"", "{} {}", "{\"a\": NaN}", "{\"a\": 1e999}",
                          "{\"a\": \"\xFF\"}", "{\"a\": \"\\ud800\"}", "{'a': 1}"}) {
    expect_400("request body", [&] { parse_body(bad); });
  }
}

TEST_F(JsonTest, Limits) {
  expect_400("nested", [&] { parse_body("{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}"); });
  std::string many = "{\"a\": [1";
  for (int i = 0; i < 2'100'000; ++i) many += ",1";
  expect_400("too many", [&] { parse_body(many + "]}"); });
  std::string keys = "{\"k\": 0";
  for (int i = 0; i < 30'000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  expect_400("too many", [&] { parse_body(keys + "}"); });
  EXPECT_NO_THROW(parse_body("{\"brackets in text\": \"" + std::string(1000, '[') + "\\\"[\"}"));
}

}  // namespace
}  // namespace onebit
