#include "engine/verify.h"

#include <algorithm>

namespace onebit {
namespace {

/// A round is over, whose answer goes on: what it says about the ones to come.
void learn(Drafting& drafting, int64_t n_kept) {
  const auto n_drafted = static_cast<int64_t>(drafting.tokens.size());
  drafting.account.round(static_cast<double>(n_kept), drafting.n_extra);
  if (drafting.source == DraftSource::lookup && n_drafted > 0) {
    drafting.lookup_length =
        n_kept == n_drafted ? 2 * drafting.lookup_length : std::max<int64_t>(drafting.lookup_length / 2, 2);
  }
  Acceptance& belief = drafting.source == DraftSource::model ? drafting.model : drafting.lookup;
  const std::span<const float> proposed = drafting.untested;
  belief.learn(n_drafted, n_kept, proposed.subspan(std::min(proposed.size(), drafting.tokens.size())));
}

}  // namespace

TokenEvent draw_token(Generation& generation, TargetRows& rows, int64_t row, std::span<float> scratch) {
  TokenEvent event;
  if (!generation.sampler().needs_logits()) {
    event.id = rows.next(row);
    return event;
  }
  rows.logits(row, scratch);
  const bool wants_logprobs = generation.request().sampling.n_logprobs >= 0;
  const std::vector<float> raw =
      wants_logprobs ? std::vector<float>(scratch.begin(), scratch.end()) : std::vector<float>{};
  event.id = generation.sampler().sample(scratch, generation.history(), generation.n_generated());
  if (wants_logprobs) generation.sampler().logprobs(raw, event.id, event);
  return event;
}

void verify_draft(Generation& generation, TargetRows& rows, int64_t row, std::span<float> scratch,
                  std::vector<int32_t>& kept) {
  Drafting& drafting = generation.drafting();
  kept.assign(1, generation.anchor());
  size_t n_accepted = 0;
  bool goes_on = true;
  while (true) {
    const TokenEvent event = draw_token(generation, rows, row + static_cast<int64_t>(n_accepted), scratch);
    const bool matches = n_accepted < drafting.tokens.size() && drafting.tokens[n_accepted] == event.id;
    goes_on = generation.take(event);
    if (matches) ++n_accepted;
    if (!matches || !goes_on) break;
    kept.push_back(event.id);
  }
  const auto n_kept = static_cast<int64_t>(n_accepted);
  generation.count_step(static_cast<int64_t>(drafting.tokens.size()), n_kept, 1 + drafting.n_extra);
  if (drafting.source == DraftSource::none) {
    drafting.account.plain_step();
  } else if (goes_on) {
    learn(drafting, n_kept);
  }
}

}  // namespace onebit
