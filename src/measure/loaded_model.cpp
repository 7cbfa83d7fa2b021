#include "measure/loaded_model.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace onebit {

std::vector<int32_t> all_pages(int64_t n_tok) {
  std::vector<int32_t> pages(static_cast<size_t>((n_tok + kPageTokens - 1) / kPageTokens));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

LoadedModel::LoadedModel(std::unique_ptr<Model> model, const MeasureOptions& options, int64_t n_ctx)
    : model_(std::move(model)),
      backend_(make_backend(options.device, options.backend)),
      n_ctx_(n_ctx),
      pages_(all_pages(n_ctx)) {
  sizes_ = {.n_pages = static_cast<int64_t>(pages_.size()), .n_slots = 1, .n_tape = 1, .cache = options.cache};
  limits_ = {.n_tok = std::min(n_ctx, kBatch), .n_out = std::min(n_ctx, kBatch)};
  const Plan plan = model_->plan(nullptr);
  const Plan* const plans[] = {&plan};
  backend_->place(plans);
  check_memory(plan, options.memory_limit);
  for (const Weight* weight : plan.weights()) {
    backend_->load(*weight);
    if (!backend_->keeps_file_bytes(*weight)) model_->file().release(model_->file().tensor(weight->name));
  }
  check_cache(*backend_, model_->states(), options.cache);
  states_ = backend_->make_states(model_->states(), sizes_);
  recompile();
}

void LoadedModel::check_memory(const Plan& plan, int64_t limit) const {
  int64_t weights = 0, state = 0;
  for (const Weight* weight : plan.weights()) weights += backend_->weight_bytes(*weight);
  for (const State* s : model_->states()) state += state_bytes(*s, sizes_);
  const int64_t scratch = place_values(plan, limits_).bytes, need = weights + state + scratch;
  if (limit <= 0) limit = backend_->info().memory_bytes;
  if (limit <= 0 || need <= limit) return;
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fail(ErrorKind::out_of_memory,
       "{:.1f} MiB are needed (weights {:.1f}, state {:.1f}, scratch {:.1f}), {:.1f} MiB are "
       "free on {}; lower --ctx-size",
       mib(need), mib(weights), mib(state), mib(scratch), mib(limit), backend_->info().name);
}

void LoadedModel::recompile() {
  program_.reset();
  const Plan plan = model_->plan(nullptr);
  StatePool* const pools[] = {states_.get()};
  program_ = backend_->compile(plan, pools, limits_);
  logits_output_ = plan.find_output("logits");
}

void LoadedModel::run(std::span<const int32_t> tokens, int64_t first, const LogitsCallback& rows) {
  const auto n_tok = static_cast<int64_t>(tokens.size()), n_vocab = model_->config().n_vocab;
  CHECK(n_tok <= n_ctx_ && first >= 0);
  states_->clear_slot(0);
  for (int64_t pos = 0; pos < n_tok; pos += kBatch) {
    const auto n = static_cast<int32_t>(std::min(kBatch, n_tok - pos));
    const auto begin = static_cast<int32_t>(std::clamp<int64_t>(first - pos, 0, n));
    outputs_.resize(static_cast<size_t>(n - begin));
    std::iota(outputs_.begin(), outputs_.end(), begin);
    const Sequence sequence{0, n, static_cast<int32_t>(pos), Phase::prompt, 0, 0, pages_};
    Batch batch;
    batch.tokens = tokens.subspan(static_cast<size_t>(pos), static_cast<size_t>(n));
    batch.sequences = {&sequence, 1};
    batch.outputs = outputs_;
    program_->wait(program_->submit(batch));
    if (outputs_.empty()) continue;
    logits_.resize(outputs_.size() * static_cast<size_t>(n_vocab));
    program_->read(logits_output_, 0, logits_);
    rows(pos + begin, logits_);
  }
}

}  // namespace onebit
