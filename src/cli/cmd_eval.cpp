// `1bit eval`: perplexity on a text, and divergence from predictions that another run has saved.
#include "measure/evaluation.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"

namespace onebit {
namespace {

constexpr int64_t kDefaultChunk = 512;

Json document(const Evaluation& e) {
  Json json = {{"tokens", e.n_tok}, {"ppl", e.ppl}, {"ppl_err", e.ppl_err}};
  if (e.compared) {
    json["kld_mean"] = e.kld_mean;
    json["kld_err"] = e.kld_err;
    json["kld_p99"] = e.kld_p99;
    json["same_top"] = e.same_top;
    json["same_top_err"] = e.same_top_err;
  }
  json["chunks"] = e.n_chunk;
  return json;
}

void print_text(const Evaluation& e) {
  print(fmt::format("perplexity {:.4f} +- {:.4f} ({} tokens of {} chunks)\n", e.ppl, e.ppl_err, e.n_tok, e.n_chunk));
  if (!e.compared) return;
  print(fmt::format("divergence {:.6f} +- {:.6f}, 99th percentile {:.6f}\n", e.kld_mean, e.kld_err, e.kld_p99));
  print(fmt::format("same most likely token {:.2f} +- {:.2f} %\n", 100 * e.same_top, 100 * e.same_top_err));
}

}  // namespace

MeasureOptions measure_options(const Options& options) {
  MeasureOptions measure;
  measure.device = device_name(options.device);
  measure.backend = backend_options(options);
  measure.cache = cache_type(options);
  measure.memory_limit = options.memory_limit_mib << 20;
  return measure;
}

int cmd_eval(const Options& options) {
  if (options.model.empty()) fail(ErrorKind::usage, "-m FILE is missing: which model?");
  if (options.prompt_file.empty()) fail(ErrorKind::usage, "-f FILE is missing: which text?");
  const StopSignals signals;
  const int64_t n_ctx = options.n_ctx > 0 ? options.n_ctx : kDefaultChunk;
  if (n_ctx < 4) fail(ErrorKind::usage, "--ctx-size: expected at least 4 tokens, found {}", n_ctx);
  const std::string text = read_input(options.prompt_file);
  LoadedModel model(Model::open(options.model, w4a4_choice(options)), measure_options(options), n_ctx);
  const TextChunks chunks = cut_text(model.model(), text, n_ctx, options.n_chunks, options.prompt_file);
  Progress progress("evaluating");
  const Evaluation result = evaluate(model, chunks, {options.save_logits, options.against}, [&](double share) {
    progress.update(share);
    signals.check();
  });
  progress.clear();
  if (options.json) {
    print_json(document(result));
  } else {
    print_text(result);
  }
  return 0;
}

}  // namespace onebit
