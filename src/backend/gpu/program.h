// A plan compiled for a GPU: groups of kernels in one stream, its memory, and graphs of whole runs. In: batches. Out:
// results, of which the small ones (ids) are brought to the host with every run.
//
// A run's rows, sequences and pages go to the device in one copy. Runs of few rows are recorded as a graph the second
// time their shape comes up (counts of rows and sequences, phases, magnitude of the context) and replayed from then on:
// at decoding, enqueuing some 600 kernels one by one would take longer than running them.
#pragma once

#include <compare>
#include <list>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/bind.h"
#include "plan/batch_check.h"

namespace onebit::gpu {

class GpuProgram : public Program {
 public:
  GpuProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits, WeightStore& weights,
             const Chip& chip, Membership membership, std::shared_ptr<Stream> stream);
  ~GpuProgram() override;

  Ticket submit(const Batch& batch) override;
  void wait(Ticket ticket) override;
  void read(int index, int64_t row, std::span<float> to) override;
  void read(int index, int64_t row, std::span<int32_t> to) override;
  void write(int index, std::span<const float> rows) override;
  /// From another GPU of the same kind: one copy between the devices, ordered by events; the host does not wait.
  bool take(int index, Program& from, int output) override;
  /// Steps that run together are one entry. Runs are not recorded as graphs while they are measured.
  void measure_steps() override;
  std::vector<StepTime> step_times() const override;

 private:
  /// What two runs must share for one's graph to serve the other.
  struct Shape {
    int32_t n_tok = 0, n_out = 0, n_sequence = 0;
    int64_t context = 0;
    ActsMix mix = ActsMix::int8, mix_outputs = ActsMix::int8;
    bool taps = false;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    Shape shape;
    gpuGraphExec_t graph = nullptr;  // null: seen once
  };
  /// A result that is copied to the host with every run.
  struct SmallResult {
    Value value;
    int64_t at = 0;  // in results_
  };

  Shape shape_of(const Batch& batch) const;
  /// Writes the batch into pinned memory and starts its copy; gives what kernels see.
  BatchRows bring(const Batch& batch);
  void reserve_pages(int64_t n);
  void enqueue(const Run& run);
  void run_measured(const Run& run);
  void bring_results(const Run& run);
  void run_graph(const Run& run, const Shape& shape);
  gpuGraphExec_t record(const Run& run);
  void forget_graphs();
  int64_t rows_now(const ValueInfo& info) const {
    return (info.rows == Rows::tokens ? n_tok_ : n_out_) * info.multiple;
  }
  const uint8_t* small_result(Value value) const;
  void copy_out(int index, int64_t row, void* to, int64_t size, Dtype type);

  Plan plan_;
  PlanLimits limits_;
  std::shared_ptr<Stream> stream_;
  Binder binder_;
  std::vector<BoundGroup> groups_;
  std::vector<SmallResult> small_;

  PinnedMemory host_batch_;
  DeviceMemory batch_;
  int64_t most_pages_ = 0;  // room for the sequences' pages in both
  PinnedMemory results_;
  Event brought_;  // the pinned batch may be overwritten
  Event done_;
  Event taken_;                          // the last take() has read what it copied
  const GpuProgram* reached_ = nullptr;  // whose memory was last taken from

  std::vector<std::unique_ptr<Event>> marks_;  // before each group and after the last; empty: not measuring
  std::vector<StepTime> times_;                // by group
  std::list<Recorded> recorded_;               // most recently used first
  BatchCheck check_;
  int32_t n_tok_ = 0, n_out_ = 0;  // of the last run
  Ticket last_ = 0;
};

}  // namespace onebit::gpu
