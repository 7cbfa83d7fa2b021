// From groups of steps to functions that enqueue kernels: every op's operands, states and parameters are looked up
// once, when a program is compiled. In: a plan's groups. Out: one function a group, and how much scratch they need.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/gpu/groups.h"
#include "backend/gpu/kernels.h"
#include "backend/gpu/matmul.h"
#include "backend/gpu/states.h"
#include "backend/gpu/weights.h"
#include "backend/team.h"

namespace onebit::gpu {

/// What kernels are sized by.
struct Chip {
  int64_t n_multiprocessor = 0;
  int64_t shared_bytes = 0;  // most shared memory of a block
};

/// What the host knows of one run; equal runs (but for pointers' contents) enqueue equal kernels.
struct Run {
  BatchRows rows;
  gpuStream_t stream = nullptr;
  bool taps = false;
  int64_t context = 0;  // no row sees more positions than this
  ActsMix mix = ActsMix::int8, mix_outputs = ActsMix::int8;
};

using Enqueue = std::function<void(const Run&)>;

/// A group ready to run.
struct BoundGroup {
  std::string name;  // its ops, for products with the weights' type and shape
  Enqueue run;
};

/// Memory that groups share one after another.
struct Scratch {
  DeviceMemory memory;
  int64_t bytes = 0;  // wanted
};

/// The pool that owns the step's state.
const States& pool_of(const Step& step, std::span<StatePool* const> pools);

class Binder {
 public:
  Binder(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits, WeightStore& weights,
         const Chip& chip, Membership membership, gpuStream_t stream);

  /// The groups in their order, after what has to come before all of them.
  std::vector<BoundGroup> groups();
  /// Memory of the values; results are read from there.
  uint8_t* data(Value v) const { return arena_.data() + placement_.offset[static_cast<size_t>(v.id)]; }

 private:
  /// A value in memory.
  struct Operand {
    uint8_t* data = nullptr;
    ValueInfo info;
    int64_t max_rows = 0;

    float* f32() const { return reinterpret_cast<float*>(data); }
    int32_t* i32() const { return reinterpret_cast<int32_t*>(data); }
    int64_t n_row(const Run& run) const {
      return (info.rows == Rows::tokens ? run.rows.n_tok : run.rows.n_out) * info.multiple;
    }
    RowMap map(const Run& run) const {
      return {info.rows == Rows::tokens ? nullptr : run.rows.outputs, static_cast<int32_t>(info.multiple)};
    }
    DeviceActs acts(const Run& run, bool int4) const;
  };
  struct RopeTable {
    RopeParams params;
    const float* factors = nullptr;
    DeviceMemory turns, table;
  };

  const Step& step(int s) const { return plan_.steps()[static_cast<size_t>(s)]; }
  Operand operand(Value v) const;
  /// The quantisation that made an act value.
  const QuantizeParams& quantization(Value acts) const;
  template <class T>
  const T& memory_of(const Step& step) const;
  void want_scratch(int64_t bytes);
  Workspace workspace() const { return {scratch_->memory.data(), scratch_->memory.bytes()}; }

  Enqueue bind(const Group& group);
  Enqueue bind_acts(const Group& group);
  Enqueue bind_heads(const Group& group);
  std::string name_of(const Group& group) const;
  Enqueue bind_products(const Group& group);
  Enqueue bind_step(const Step& step);
  Enqueue bind_rows(const Step& step);
  Enqueue bind_elementwise(const Step& step);
  Enqueue bind_norm(const Step& step);
  Enqueue bind_rope(const Step& step);
  Enqueue bind_attention(const Step& step);
  Enqueue bind_delta_net(const Step& step);
  Enqueue bind_route(const Step& step);
  Enqueue bind_experts(const Group& group);
  Enqueue bind_float_experts(const Step& step);
  Enqueue bind_combine(const Group& group);
  Enqueue bind_select(const Step& step);
  Enqueue bind_walk(const Step& step);
  Enqueue bind_sum(const Step& step);
  ExpertGroups expert_groups(Value ids, int64_t n_expert);
  /// Counters of delta_net(), one memory for all layers of a size.
  int32_t* delta_counters(int64_t n);
  const RopeTable& rope_table(const RopeParams& params, const float* factors);

  const Plan& plan_;
  std::span<StatePool* const> pools_;
  PlanLimits limits_;
  WeightStore& weights_;
  Chip chip_;
  Membership membership_;
  gpuStream_t stream_;
  std::vector<Group> groups_;
  Placement placement_;
  DeviceMemory arena_;
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::vector<std::unique_ptr<RopeTable>> ropes_;
  std::vector<DeviceMemory> delta_counters_;
  std::map<int32_t, DeviceMemory> expert_groups_;  // by the value of ids
};

}  // namespace onebit::gpu
