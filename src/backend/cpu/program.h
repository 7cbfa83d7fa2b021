// A plan bound to memory: steps with pointers, one arena for values, scratch for the threads. Running a batch is one
// visit of all threads to the list of steps; it happens inside submit(), on the caller's thread and the pool's.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/step.h"
#include "plan/batch_check.h"

namespace onebit::cpu {

class CpuProgram : public Program {
 public:
  CpuProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits, const Kernels& kernels,
             WeightStore& weights, ThreadPool& pool, Membership membership = {});

  Ticket submit(const Batch& batch) override;
  void wait(Ticket ticket) override;
  void read(int index, int64_t row, std::span<float> to) override;
  void read(int index, int64_t row, std::span<int32_t> to) override;
  void write(int index, std::span<const float> rows) override;
  void measure_steps() override { times_.assign(steps_.size(), {}); }
  std::vector<StepTime> step_times() const override;

 private:
  CpuStep bind(const Step& step, std::span<StatePool* const> pools);
  void bind_weights(const Step& step, CpuStep& bound);
  void bind_state(const Step& step, std::span<StatePool* const> pools, CpuStep& bound);
  const RopeTable* rope_table(const RopeParams& params, const float* factors);
  void allocate_scratch();
  void find_choices();
  void place_barriers();
  void find_next_matrices();
  const std::vector<bool>& barriers() const;
  void run_thread(int thread);
  void run_measured(Worker& worker);
  template <class T>
  void copy_out(int index, int64_t row, std::span<T> to, Dtype type) const;

  Plan plan_;
  PlanLimits limits_;
  WeightStore& weights_;
  ThreadPool& pool_;
  Arena placement_;
  Pages values_;
  std::vector<CpuStep> steps_;
  // Before each step: for batches of one token, of up to a tile (is_one_tile), and larger ones.
  std::vector<bool> single_row_barriers_, one_tile_barriers_, barriers_;
  std::vector<const LoadedWeight*> next_matrix_;  // by step: what the next product from there on reads
  std::vector<std::unique_ptr<RopeTable>> ropes_;
  std::vector<std::unique_ptr<Shortlists>> shortlists_;
  std::unique_ptr<std::atomic<int64_t>[]> claims_;  // [threads, steps]
  int64_t claims_stride_ = 0;
  Pages thread_scratch_, shared_scratch_;
  int64_t thread_bytes_ = 0;  // of each thread
  BatchCheck check_;
  std::vector<StepTime> times_;  // by step, of thread 0 with its waiting; empty: not measured
  Run run_;
  Ticket last_ = 0;
  bool choices_only_ = false;  // of the last batch
};

}  // namespace onebit::cpu
