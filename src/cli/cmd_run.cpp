// `1bit run`: one prompt, its continuation streamed to stdout, or one JSON document about it.
#include <unistd.h>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "server/reply_format.h"

namespace onebit {
namespace {

constexpr int64_t kDefaultPredict = 256;

Prompt make_prompt(const Options& options, const TextModel& model, const std::string& text) {
  if (!options.chat) {
    if (!options.system.empty()) fail(ErrorKind::usage, "--system needs --chat");
    Prompt prompt;
    prompt.ids = text_prompt(model, text);
    return prompt;
  }
  TemplateInput input;
  if (!options.system.empty()) input.messages.push_back({{"role", "system"}, {"content", options.system}});
  input.messages.push_back({{"role", "user"}, {"content", text}});
  input.kwargs = template_kwargs(options);
  return chat_prompt(model, std::move(input));
}

Request make_request(const Options& options, const TextModel& model, std::vector<int32_t> ids) {
  Request request;
  request.prompt = std::move(ids);
  SamplingOptions base = model.sampling;
  base.temperature = 0;
  request.sampling = sampling_options(options, base);
  request.max_tokens = options.n_predict.value_or(kDefaultPredict);
  set_end_tokens(model.tokenizer, options.ignore_eos, request);
  return request;
}

Json document(const Answer& answer, const Engine& engine, int64_t n_prompt, const std::string& drafter) {
  Json speculation = speculation_of(answer.statistics, drafter);
  speculation["accepted_per_round"] = answer.statistics.accepted_per_round;
  return Json{{"text", answer.text},
              {"tokens", answer.tokens},
              {"prompt_tokens", n_prompt},
              {"generated_tokens", answer.tokens.size()},
              {"finish_reason", finish_name(answer.reason)},
              {"timings", timings_of(answer.statistics)},
              {"speculation", std::move(speculation)},
              {"device", engine.device().name}};
}

/// Speeds on stderr, when someone is there to read them.
void show_speeds(const Statistics& s) {
  if (::isatty(STDERR_FILENO) != 1) return;
  std::string line = fmt::format("prompt {} tokens, {:.1f}/s; answer {} tokens, {:.1f}/s", s.prompt_n,
                                 s.prompt_per_second(), s.predicted_n, s.predicted_per_second());
  if (s.rounds > 0) line += fmt::format(", {:.2f} tokens a step", s.tokens_per_step());
  notice("run", line);
}

}  // namespace

int cmd_run(Options options) {
  const StopSignals signals;
  const std::string text = prompt_text(options);
  EngineSetup setup = set_up_engine(options);
  const EngineAndText loaded = load_engine_and_text(setup, options, "run", signals);
  Engine& engine = *loaded.engine;
  const TextModel& model = loaded.text;
  const Prompt prompt = make_prompt(options, model, text);
  Scheduler scheduler(engine);
  const ShowText show = [](std::string_view piece) {
    print(piece);
    flush();
  };
  const TextStreamOptions stream{.stop = options.stops, .thinking = prompt.thinking};
  const Answer answer = generate(scheduler, model, make_request(options, model, prompt.ids), stream,
                                 options.json ? ShowText() : show, signals);
  if (options.json) {
    print_json(document(answer, engine, static_cast<int64_t>(prompt.ids.size()), setup.facts.drafter));
  } else {
    print("\n");
    show_speeds(answer.statistics);
  }
  return answer.reason == FinishReason::cancelled ? 1 : 0;
}

}  // namespace onebit
