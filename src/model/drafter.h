// What proposes the next tokens of a target: a DFlash drafter (dflash.h) or the target's multi-token head (mtp.h). It
// reads hidden states of the target, has caches of its own, and borrows the target's embedding and head.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace onebit {

class Drafter {
 public:
  /// Opens a drafter or a multi-token head and checks that it fits `target` (hidden size, vocabulary, tapped blocks);
  /// refused with both numbers. `path` may be the target's own file, for the head in it.
  static std::unique_ptr<Drafter> open(const std::string& path, Model& target);
  virtual ~Drafter() = default;
  Drafter(const Drafter&) = delete;

  virtual const char* kind() const = 0;  // "dflash", "dflash2", "mtp"
  virtual const GgufFile& file() const = 0;
  /// Whether `weight` lies in file().
  virtual bool owns(const Weight* weight) const = 0;
  const DrafterConfig& config() const { return config_; }
  /// One token a pass, each from the hidden state that the pass before it left in the taps' rows; else a block a pass.
  virtual bool chained() const { return false; }
  /// The caches of its layers.
  std::vector<const State*> states() const;
  /// What the target's plan must store; taps().rows is a state of its own (RowsState).
  const Taps& taps() const { return taps_; }

  /// Hidden states of accepted tokens -> keys and values in the caches. Rows are load_rows' source rows, of the same
  /// positions; a chained drafter's rows are tokens too, and take the hidden state of the position before. No outputs.
  virtual Plan encode_plan() = 0;
  /// Proposals: results "candidates" [out, k], descending by logit, and their "scores" [out, k]. Not chained: one
  /// block, rows [anchor, MASK, MASK ...] of each sequence, results for every row but the anchors. Chained: rows of one
  /// token with a source row; its own hidden state is stored like a tap. Version 2 also "ids" [out, 1], the selector's
  /// walk, and "confidence" [out, 1], its softmax over the scores, both first.
  virtual Plan draft_plan() = 0;
  /// Tensors of its file that no plan reads: it was trained to use them.
  virtual std::vector<std::string> unread() const { return {}; }

 protected:
  Drafter(Model& target, DrafterConfig config) : target_(target), config_(std::move(config)) {}
  const State& cache(int64_t index);

  Model& target_;
  DrafterConfig config_;
  std::deque<State> states_;
  State tap_rows_;
  Taps taps_;
};

}  // namespace onebit
