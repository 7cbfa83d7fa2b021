// The token loop over all sequences: admits requests to slots, reads prompts in chunks beside running answers, drafts,
// verifies, samples, reports. submit() and cancel() may be called from any thread; step() from one.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/drafter_check.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/slot_tasks.h"

namespace onebit {

using RequestId = uint64_t;

struct SlotStatus {
  int32_t slot = 0;
  RequestId request = 0;  // 0: idle
  int64_t n_past = 0;     // positions evaluated
  int64_t n_prompt = 0, n_generated = 0;
};

class Generation;  // one request in a slot (generation.h)

class Scheduler {
 public:
  explicit Scheduler(Engine& engine);
  ~Scheduler();

  /// Queues a request. Throws Error(usage) when it can't be served (empty prompt, prompt as long as the context, an id
  /// outside the vocabulary). `listener` is called from step() until on_finish().
  RequestId submit(Request request, std::shared_ptr<Listener> listener);
  /// Ends a queued or running request with FinishReason::cancelled at the next step. Unknown ids are ignored.
  void cancel(RequestId id);

  /// One round for everybody. Returns false when there was nothing to do.
  bool step();
  /// Saves a slot's state to a file, restores it from one, or empties the slot and what is kept of it: by the thread
  /// that steps, as soon as the slot is idle. Throws Error(usage) for a slot that isn't there; the future throws what
  /// write_slot_file() and load_slot_file() throw, or Error(runtime) when the scheduler ends first.
  std::future<SlotFileReport> act_on_slot(int32_t slot, SlotAction action, std::string path);

  /// Blocks until there is work, `wake()` is called, or `milliseconds` have passed.
  void wait_for_work(int milliseconds);
  void wake();
  /// Ends all requests as cancelled.
  void cancel_all();

  /// Tries the drafter on `prompt`; nothing must run yet. Nothing is tried without one, or where a step takes longer
  /// than a few milliseconds. `at` is for tests of the check.
  DrafterCheck check_drafter(std::span<const int32_t> prompt, TapShift at = {});
  /// What steps cost, as far as it is known.
  const StepCosts& costs() const;

  int64_t n_queued() const;
  std::vector<SlotStatus> slots() const;
  PrefixCacheStatus prefix_cache() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onebit
