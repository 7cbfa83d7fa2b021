// Draft, verify, accept, roll back: the only place that knows how. One round serves several answers at once; each is
// exact on its own, whatever the others do.
//
// A draft is kept while the token that the target's sampler draws at that row equals it, so the text has the target's
// distribution, whatever is proposed; greedy text is the text without a drafter. At temperature > 0 drafts are drawn
// with the noise that the sampler will use for the same token, so that both mostly agree (base/gumbel.h).
//
// How much is drafted is chosen for each step (draft_choice.h) unless a request fixes it. Lengths depend on measured
// times and so differ from run to run; the text does not.
#pragma once

#include <span>
#include <vector>

#include "engine/draft_choice.h"
#include "engine/draft_feed.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/step_costs.h"
#include "engine/verify.h"

namespace onebit {

class Speculator {
 public:
  explicit Speculator(Engine& engine);

  /// Times passes of all widths on an empty session, whose slot is cleared afterwards. For adaptive drafting.
  void measure(Session& session);
  const StepCosts& costs() const { return costs_; }
  /// What an answer starts with.
  Drafting new_drafting() const;

  /// Drafts for all answers of the coming step, in which `n_prompt` rows of prompts take part too.
  void draft(std::span<Generation* const> answers, int64_t n_prompt);
  /// After the target ran on [anchor, drafted...] of an answer, whose logits begin at `out_row`: draws, reports, keeps
  /// the accepted rows in the session. Works for single decode rows too. Returns how many rows are kept.
  int64_t accept(Generation& generation, int64_t out_row);
  /// Draws one token from output row `out_row` (the end of a prompt, or a row of a verify batch).
  TokenEvent sample(Generation& generation, int64_t out_row);
  /// The target ran on so many rows, none of a prompt.
  void observe_target(int64_t rows, double ms) { costs_.observe_target(rows, ms); }

  /// The answer is over: what it taught counts a little for the ones to come.
  void finish(Generation& generation);
  /// What the drafter sees of the sessions.
  DraftFeed& feed() { return feed_; }

 private:
  struct Wish {
    Generation* generation;
    int64_t limit;  // most tokens
    bool adaptive;
    int64_t n = 0;     // tokens wanted of the drafter
    size_t first = 0;  // its first result
    std::vector<double> chances;
  };

  int64_t draft_limit(const Generation& generation) const;
  bool adaptive(const Generation& generation) const;
  void make_wishes(std::span<Generation* const> answers);
  void choose_lengths();
  void run_drafter();
  void draft_blocks();
  void draft_chains();
  void chain_step(int64_t step);
  double draft_pass_ms(std::span<const int64_t> lengths, int64_t n_waiting = 0) const;
  void take_drafts();
  void use_lookup(Wish& wish);
  void limit_loss(Wish& wish) const;
  void charge(const StepBase& bare);
  double draft_ms(std::span<const DraftOffer> offers) const;

  struct EngineRows : TargetRows {
    explicit EngineRows(Engine& e) : engine(e) {}
    int32_t next(int64_t row) override {
      int32_t id = 0;
      engine.read_next(row, {&id, 1});
      return id;
    }
    void logits(int64_t row, std::span<float> to) override { engine.read_logits(row, to); }
    Engine& engine;
  };

  Engine& engine_;
  DraftFeed feed_;
  EngineRows rows_;
  StepCosts costs_;
  RateWeights model_prior_;
  StepBase base_;
  double rate_ = 0;
  int64_t n_waiting_ = 0;  // rows fed to the drafter for this round
  std::vector<Wish> wishes_;
  std::vector<DraftOffer> offers_;
  std::vector<Wish*> offered_;

  std::vector<int64_t> lengths_;
  std::vector<float> logits_;
  std::vector<int32_t> tokens_, outputs_, source_rows_, own_rows_, ids_, kept_;
  std::vector<float> confidence_;
  std::vector<Sequence> sequences_;
};

}  // namespace onebit
