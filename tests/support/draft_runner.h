// A drafter beside a Runner's target: encodes the taps of the target's last run and drafts blocks, without engine or
// scheduler.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/backend.h"
#include "model/drafter.h"

namespace onebit::test {

/// Results of one block for rows 1..B-1.
struct DraftedBlock {
  std::vector<int32_t> ids;         // [B - 1], the selector's walk
  std::vector<int32_t> candidates;  // [B - 1, k]
  std::vector<float> scores;        // [B - 1, k], along the walk
};

class DraftRunner {
 public:
  /// `target` must have been opened with the same backend object's device and stays the owner of the borrowed weights.
  DraftRunner(const std::string& path, Model& target, std::unique_ptr<Backend> backend, int64_t max_tok)
      : drafter_(Drafter::open(path, target)),
        backend_(std::move(backend)),
        target_plan_(target.plan(&drafter_->taps())) {
    const Plan encode = drafter_->encode_plan(), draft = drafter_->draft_plan();
    for (const Plan* plan : std::initializer_list<const Plan*>{&target_plan_, &encode, &draft}) {
      for (const Weight* w : plan->weights()) {
        if (std::find(loaded_.begin(), loaded_.end(), w) != loaded_.end()) continue;
        backend_->load(*w);
        loaded_.push_back(w);
      }
    }
    const int64_t n_pages = max_tok / kPageTokens + 2;
    states_ = backend_->make_states(target.states(),
                                    {.n_pages = n_pages, .n_slots = 1, .n_tape = 1, .cache = CacheType::f32});
    draft_states_ = backend_->make_states(drafter_->states(), {.n_pages = n_pages, .cache = CacheType::f32});
    tap_states_ = backend_->make_states({drafter_->taps().rows}, {.n_rows = max_tok});
    StatePool* const target_pools[] = {states_.get(), tap_states_.get()};
    StatePool* const draft_pools[] = {draft_states_.get(), tap_states_.get()};
    const int64_t block = drafter_->config().block_size;
    target_ = backend_->compile(target_plan_, target_pools, {max_tok, max_tok});
    encode_ = backend_->compile(encode, draft_pools, {max_tok, 1});
    draft_ = backend_->compile(draft, draft_pools, {block, block - 1});
    states_->clear_slot(0);
    pages_.resize(static_cast<size_t>(n_pages));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  const Drafter& drafter() const { return *drafter_; }

  /// Evaluates a prompt from position 0 with the target; logits of its last row.
  std::vector<float> read_prompt(std::span<const int32_t> tokens) {
    states_->clear_slot(0);
    const auto n = static_cast<int32_t>(tokens.size());
    const Sequence rows{0, n, 0, Phase::decode, 0, 0, pages_};
    const int32_t last = n - 1;
    Batch batch;
    batch.tokens = tokens;
    batch.sequences = {&rows, 1};
    batch.outputs = {&last, 1};
    std::vector<int32_t> sources(tokens.size());
    std::iota(sources.begin(), sources.end(), 0);
    batch.tap_rows = sources;
    target_->wait(target_->submit(batch));
    const Sequence fed{0, n, 0, Phase::draft, 0, 0, pages_};
    Batch feed;
    feed.sequences = {&fed, 1};
    feed.source_rows = sources;
    encode_->wait(encode_->submit(feed));
    std::vector<float> logits(static_cast<size_t>(target_plan_.info(target_plan_.outputs()[0].value).width));
    target_->read(0, 0, logits);
    return logits;
  }

  /// One block behind `n_past` tokens whose last, not yet evaluated, follower is `anchor`.
  DraftedBlock draft(int32_t anchor, int64_t n_past) {
    const DrafterConfig& c = drafter_->config();
    const auto block = static_cast<int32_t>(c.block_size);
    std::vector<int32_t> tokens(static_cast<size_t>(block), c.mask_token), outputs(static_cast<size_t>(block) - 1);
    tokens[0] = anchor;
    std::iota(outputs.begin(), outputs.end(), 1);
    const Sequence rows{0, block, static_cast<int32_t>(n_past), Phase::draft, 0, 0, pages_};
    Batch batch;
    batch.tokens = tokens;
    batch.sequences = {&rows, 1};
    batch.outputs = outputs;
    draft_->wait(draft_->submit(batch));
    const auto k = static_cast<size_t>(c.selector_top_k);
    DraftedBlock result{std::vector<int32_t>(outputs.size()), std::vector<int32_t>(outputs.size() * k),
                        std::vector<float>(outputs.size() * k)};
    draft_->read(0, 0, result.ids);
    draft_->read(2, 0, result.candidates);
    draft_->read(3, 0, result.scores);
    return result;
  }

 private:
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Backend> backend_;
  Plan target_plan_;
  std::vector<const Weight*> loaded_;
  std::vector<int32_t> pages_;
  std::unique_ptr<StatePool> states_, draft_states_, tap_states_;
  std::unique_ptr<Program> target_, encode_, draft_;
};

}  // namespace onebit::test
