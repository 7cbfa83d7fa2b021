// `1bit chat`: a conversation in the terminal. A line is a message; Ctrl-C stops an answer, Ctrl-D ends.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"

namespace onebit {
namespace {

constexpr const char* kHelp = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer";

/// The next line, or nothing at the end of input.
std::optional<std::string> read_line(bool terminal) {
  if (terminal) print("> ");
  flush();
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

class Conversation {
 public:
  Conversation(const Options& options, const TextModel& model, Scheduler& scheduler, int64_t n_ctx,
               StopSignals& signals)
      : options_(options), model_(model), scheduler_(scheduler), n_ctx_(n_ctx), signals_(signals) {
    sampling_ = sampling_options(options, model.sampling);
    reset();
  }

  void reset() {
    messages_ = nlohmann::ordered_json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  void say(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    TemplateInput input;
    input.messages = messages_;
    input.kwargs = template_kwargs(options_);
    Prompt prompt = chat_prompt(model_, std::move(input));
    if (static_cast<int64_t>(prompt.ids.size()) >= n_ctx_) {
      notice("chat", "the conversation does not fit the context any more: /reset, or start with a larger --ctx-size");
      messages_.erase(messages_.size() - 1);
      return;
    }
    Request request;
    request.prompt = std::move(prompt.ids);
    request.sampling = sampling_;
    request.max_tokens = options_.n_predict.value_or(-1);
    set_end_tokens(model_.tokenizer, false, request);
    const ShowText show = [](std::string_view piece) {
      print(piece);
      flush();
    };
    TextStreamOptions text;
    text.thinking = prompt.thinking;
    const Answer answer = generate(scheduler_, model_, std::move(request), text, show, signals_);
    print("\n");
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    signals_.reset();
    if (answer.reason == FinishReason::length) notice("chat", "the answer is cut: -n or the context is reached");
  }

 private:
  const Options& options_;
  const TextModel& model_;
  Scheduler& scheduler_;
  int64_t n_ctx_;
  StopSignals& signals_;
  SamplingOptions sampling_;
  nlohmann::ordered_json messages_;
};

/// Until the end of input, /exit, or a signal between answers.
void converse(Conversation& conversation, const StopSignals& signals) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) notice("chat", kHelp);
  while (const std::optional<std::string> line = read_line(terminal)) {
    if (signals.requested() || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/reset") {
      conversation.reset();
    } else {
      conversation.say(*line);
    }
  }
  if (terminal) print("\n");
  flush();
}

}  // namespace

int cmd_chat(Options options) {
  StopSignals signals;
  EngineSetup setup = set_up_engine(options);
  const EngineAndText loaded = load_engine_and_text(setup, options, "chat", signals);
  Scheduler scheduler(*loaded.engine);
  Conversation conversation(options, loaded.text, scheduler, loaded.engine->options().n_ctx, signals);
  converse(conversation, signals);
  return 0;
}

}  // namespace onebit
