// A loaded model with its drafter on one device: weights, state memory and the three programs (target, encode, draft).
// The only floor that knows model AND backend. Not thread-safe: one thread runs it (through the scheduler).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/step_costs.h"
#include "model/drafter.h"
#include "model/model.h"

namespace onebit {

struct EngineOptions {
  std::string model_path;
  std::string drafter_path;  // empty: no drafter
  std::string device = "auto";
  BackendOptions backend;
  W4a4Choice w4a4;
  int64_t n_ctx = 0;      // longest sequence; 0: min(trained context, kDefaultContext)
  int32_t n_slots = 1;    // sequences at once
  int32_t n_batch = 512;  // most rows of one submission
  int64_t n_logits = 0;   // most rows with logits of one submission; 0: what the slots can ask for
  int32_t n_verify = 0;   // most rows of one sequence under test at once; 0: what drafting needs
  CacheType cache = CacheType::f16;
  int32_t draft_max = -1;      // most drafted tokens a step; -1: the drafter's block size less one; 0: never
  bool draft_adaptive = true;  // lengths up to draft_max are chosen for each step; false: always draft_max
  std::optional<StepCosts>
      costs;              // taken as they are; absent: measured when the scheduler starts, followed while it runs
  bool lookup = false;    // also draft what followed the same words before
  float draft_p_min = 0;  // 0: a block is kept whole
  int64_t cache_bytes =
      0;  // memory for prefixes that requests may start from; -1: a quarter of what is left, up to 8 GiB
  int64_t memory_limit = 0;                 // bytes; 0: what the device has free
  std::function<void(double)> on_progress;  // share of the weights loaded, 0..1
};

inline constexpr int64_t kDefaultContext = 8192;

/// One line of the memory table.
struct MemoryPool {
  std::string name;
  int64_t bytes = 0;
};

/// What the prefix cache may hold, beside the slots' own memory.
struct PrefixCacheSizes {
  int64_t n_entries = 0;                                         // at most; of recurrent models each has a state
  int64_t n_pages = 0, n_draft_pages = 0;                        // beside those that the slots need
  int64_t slot_bytes = 0, page_bytes = 0, draft_page_bytes = 0;  // of one recurrent state, one page
  int64_t entry_bytes = 0;                                       // of an entry's tokens and state
  int64_t every = 0;                                             // tokens between states kept of a long text

  int64_t bytes() const { return n_entries * entry_bytes + n_pages * page_bytes + n_draft_pages * draft_page_bytes; }
};

/// Rows of the tap buffer that one slot has to itself.
int64_t tap_ring_rows(const EngineOptions& options);

/// What opening the files decides, before anything is allocated: `1bit plan` prints it, Engine carries it out.
struct EnginePlan {
  EngineOptions options;  // every default filled in
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<Drafter> drafter;                 // may be null
  StateSizes target_sizes, draft_sizes, tap_sizes;  // the prefix cache's share included
  PrefixCacheSizes cache_sizes;
  PlanLimits target_limits, encode_limits, draft_limits;
  std::vector<MemoryPool> memory;
  std::vector<std::string> warnings;

  int64_t memory_bytes() const;
};
/// Opens the files and sizes every pool. Throws Error(refused) on files that are bad or do not fit each other.
EnginePlan plan_engine(const EngineOptions& options);

class Engine {
 public:
  /// Loads. Throws Error(out_of_memory) with the table of pools when they exceed the limit, before any is allocated.
  explicit Engine(EnginePlan plan);
  ~Engine();
  Engine(const Engine&) = delete;

  const EngineOptions& options() const { return plan_.options; }
  const ModelConfig& config() const { return plan_.model->config(); }
  const Model& model() const { return *plan_.model; }
  const Drafter* drafter() const { return plan_.drafter.get(); }
  const DeviceInfo& device() const { return plan_.backend->info(); }
  /// What the device can do at best; takes about a second.
  Peaks measure_peaks() { return plan_.backend->measure_peaks(); }
  const std::vector<MemoryPool>& memory() const { return plan_.memory; }
  const std::vector<std::string>& warnings() const { return plan_.warnings; }
  const StateSizes& target_sizes() const { return plan_.target_sizes; }
  const StateSizes& draft_sizes() const { return plan_.draft_sizes; }
  const PrefixCacheSizes& cache_sizes() const { return plan_.cache_sizes; }
  /// Whether slots hold states that can't be cut back.
  bool recurrent() const { return plan_.cache_sizes.slot_bytes > 0; }
  const PlanLimits& target_limits() const { return plan_.target_limits; }

  /// Runs the target on a batch; waits.
  void run_target(const Batch& batch);
  /// As run_target, but the hidden states for the drafter are taken `n_blocks` blocks later: for trying what it was
  /// made for. At most kPageTokens rows and one output; a program of its own, compiled at the first such call.
  void run_target_tapped(const Batch& batch, int64_t n_blocks);
  void read_logits(int64_t out_row, std::span<float> to);  // [n_vocab]
  void read_next(int64_t out_row, std::span<int32_t> to);  // argmax of consecutive rows
  /// Feeds tapped rows of the last run_target() to the drafter's caches.
  void run_encode(const Batch& batch);
  void run_draft(const Batch& batch);
  /// Drafted ids and their confidence for all outputs of the last run_draft() with these sequences, [n_out] each.
  void read_draft(std::span<const Sequence> sequences, std::span<int32_t> ids, std::span<float> confidence);
  /// Rows of answers whose taps wait to be fed to the drafter, for each slot; they are behind n_batch rows of prompts.
  int64_t tap_ring() const { return tap_ring_rows(plan_.options); }

  void clear_slot(int32_t slot);
  /// The programs and the target's plan, for those who measure them; encode and draft are null without a drafter.
  Program& target_program() { return *target_; }
  Program* encode_program() { return encode_.get(); }
  Program* draft_program() { return draft_.get(); }
  Plan model_plan() const { return plan_.model->plan(nullptr); }
  /// State memory: recurrent slots and pages of the target, pages of the drafter (null without one).
  StatePool& target_states() { return *target_states_; }
  StatePool* draft_states() { return draft_states_.get(); }

 private:
  EnginePlan plan_;
  std::unique_ptr<StatePool> target_states_, draft_states_, tap_states_;
  std::unique_ptr<Program> target_, encode_, draft_;
  std::map<int64_t, std::unique_ptr<Program>> shifted_;
  int logits_output_ = -1, next_output_ = -1;
  std::vector<float> draft_scores_;  // version 1: scores of a row's candidates
  std::vector<int32_t> draft_candidates_;
};

}  // namespace onebit
