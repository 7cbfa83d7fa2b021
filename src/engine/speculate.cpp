#include "engine/speculate.h"

#include <algorithm>

namespace onebit {

Speculator::Speculator(Engine& engine) : engine_(engine) {
  const PlanLimits& limits = engine.target_limits();
  const auto n_tok = static_cast<size_t>(limits.n_tok);
  const auto n_out = static_cast<size_t>(limits.n_out);
  logits_.resize(static_cast<size_t>(engine.config().n_vocab));
  tokens_.reserve(n_tok);
  outputs_.reserve(n_out);
  source_rows_.reserve(n_tok);
  ids_.resize(n_out);
  confidence_.resize(n_out);
  kept_.reserve(n_out);
  sequences_.reserve(static_cast<size_t>(engine.options().n_slots));
  encode_sequences_.reserve(static_cast<size_t>(engine.options().n_slots));
}

int64_t Speculator::draft_limit(const Generation& generation) const {
  if (!engine_.drafter()) return 0;
  const int64_t wanted = generation.request().draft_max.value_or(engine_.options().draft_max);
  return std::clamp<int64_t>(std::min<int64_t>(wanted, engine_.options().draft_max), 0, generation.n_left() - 1);
}

void Speculator::draft(std::span<Generation* const> generations) {
  const auto n_rows =
      static_cast<int32_t>(engine_.options().draft_max + 1);  // the whole block: rows depend on each other
  sequences_.clear(), tokens_.clear(), outputs_.clear();
  for (Generation* generation : generations) {
    const auto row = static_cast<int32_t>(tokens_.size());
    sequences_.push_back(generation->session().draft_rows(row, n_rows));
    tokens_.push_back(generation->anchor());
    tokens_.resize(tokens_.size() + static_cast<size_t>(n_rows) - 1, engine_.drafter()->config().mask_token);
    for (int32_t i = 1; i < n_rows; ++i) outputs_.push_back(row + i);
  }
  engine_.run_draft({.tokens = tokens_, .sequences = sequences_, .outputs = outputs_});
  engine_.read_draft(std::span(ids_).first(outputs_.size()), std::span(confidence_).first(outputs_.size()));
  size_t out = 0;
  for (Generation* generation : generations) {
    const float p_min = generation->request().draft_p_min.value_or(engine_.options().draft_p_min);
    const auto limit = static_cast<size_t>(draft_limit(*generation));
    size_t n = 0;
    while (n < limit && confidence_[out + n] >= p_min) ++n;
    generation->drafted().assign(ids_.begin() + static_cast<int64_t>(out),
                                 ids_.begin() + static_cast<int64_t>(out + n));
    out += static_cast<size_t>(n_rows) - 1;
  }
}

TokenEvent Speculator::sample(Generation& generation, int64_t out_row) {
  TokenEvent event;
  if (!generation.sampler().needs_logits()) {
    engine_.read_next(out_row, {&event.id, 1});
    return event;
  }
  engine_.read_logits(out_row, logits_);
  const bool wants_logprobs = generation.request().sampling.n_logprobs >= 0;
  const std::vector<float> raw = wants_logprobs ? logits_ : std::vector<float>{};
  event.id = generation.sampler().sample(logits_, generation.history(), generation.n_generated());
  if (wants_logprobs) generation.sampler().logprobs(raw, event.id, event);
  return event;
}

int64_t Speculator::accept(Generation& generation, int64_t out_row) {
  const std::vector<int32_t>& drafted = generation.drafted();
  kept_.clear();
  kept_.push_back(generation.anchor());
  size_t n_accepted = 0;
  while (true) {
    const TokenEvent event = sample(generation, out_row + static_cast<int64_t>(n_accepted));
    const bool matches = n_accepted < drafted.size() && drafted[n_accepted] == event.id;
    const bool goes_on = generation.take(event);
    if (matches) ++n_accepted;
    if (!matches || !goes_on) break;
    kept_.push_back(event.id);
  }
  generation.count_round(static_cast<int64_t>(drafted.size()), static_cast<int64_t>(n_accepted));
  generation.session().keep(kept_);
  return static_cast<int64_t>(kept_.size());
}

void Speculator::tap(Session& session, int64_t row, int64_t n_tok, int64_t pos) {
  const int64_t skipped = std::clamp<int64_t>(session.draft_begin() - pos, 0, n_tok);
  if (n_tok == skipped) return;
  const auto n_rows = static_cast<int32_t>(n_tok - skipped);
  encode_sequences_.push_back(session.encode_rows(static_cast<int32_t>(source_rows_.size()), n_rows, pos + skipped));
  for (int32_t i = 0; i < n_rows; ++i) source_rows_.push_back(static_cast<int32_t>(row + skipped) + i);
}

void Speculator::encode() {
  if (encode_sequences_.empty()) return;
  engine_.run_encode({.sequences = encode_sequences_, .source_rows = source_rows_});
  encode_sequences_.clear();
  source_rows_.clear();
}

}  // namespace onebit
