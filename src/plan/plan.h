// What to compute, on paper: a straight list of steps over values whose row count is symbolic, so that one plan serves
// prefill, decode and verify. A value is written by exactly one step. Knows no model and no device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/op.h"
#include "plan/state.h"
#include "plan/weight.h"

namespace onebit {

/// Handle of a value in one plan.
struct Value {
  int32_t id = -1;
};

enum class Dtype : uint8_t {
  f32,
  i32,
  act,  // quantised activations, see QuantizeParams; the layout is the backend's own
};
enum class Rows : uint8_t { tokens, outputs };

/// Shape of a value: [count(rows) * multiple, width].
struct ValueInfo {
  Dtype type = Dtype::f32;
  Rows rows = Rows::tokens;
  int64_t multiple = 1;
  int64_t width = 0;
};

struct Step {
  Op op;
  std::vector<Value> out;
  std::vector<Value> in;
  std::vector<const Weight*> weights;
  const State* state = nullptr;
  OpParams params;
};

struct PlanOutput {
  std::string name;
  Value value;
};

class Plan {
 public:
  explicit Plan(std::string name) : name_(std::move(name)) {}
  /// What another plan was turned into; nothing is checked.
  Plan(std::string name, std::vector<Step> steps, std::vector<ValueInfo> values, std::vector<PlanOutput> outputs)
      : name_(std::move(name)), steps_(std::move(steps)), values_(std::move(values)), outputs_(std::move(outputs)) {}

  // Each verb appends one step, checks its operands' shapes and returns what it writes.
  Value embed(const Weight& table);                     // [tok, n_embd]
  Value rms_norm(Value x, const Weight& w, float eps);  // x's shape; groups of w's length
  Value add(Value a, Value b);
  Value sigmoid_mul(Value x, Value gate);
  Value swiglu(Value gate, Value up);
  Value softcap(Value x, float scale, float cap);
  Value slice_heads(Value x, const SliceParams& params);
  Value quantize(Value x, const QuantizeParams& params);                   // act; reused while asked for again
  Value matmul(Value x, const Weight& w);                                  // [rows, w.n_out]
  std::pair<Value, Value> route(Value logits, const RouteParams& params);  // ids, weights [rows, n_used]
  Value matmul_experts(Value x, const Weight& w, Value ids);               // [tok*n_used, w.n_out]
  Value combine_experts(Value x, Value weights);                           // [tok, width]
  Value gather_rows(Value x);                                              // [out, width]
  Value rope(Value x, const RopeParams& params, const Weight* factors);
  void kv_store(Value k, Value v, const State& cache);
  Value attention(Value q, const State& cache, const AttentionParams& params);
  Value block_attention(Value q, Value k, Value v, const State& cache, const AttentionParams& params);
  Value delta_net(Value u, Value beta, Value alpha, const Weight& conv, const Weight& a, const Weight& dt,
                  const State& state,
                  const DeltaNetParams& params);  // [tok, n_v_head*d_v]
  Value gated_norm(Value x, const Weight& w, Value z, float eps);
  Value block_conv(Value x, const Weight& base, Value delta, const BlockConvParams& params);
  void store_rows(Value x, const State& rows, int64_t offset);
  Value load_rows(const State& rows);                 // [tok, state width]
  Value argmax(Value x);                              // i32 [rows, 1]
  std::pair<Value, Value> top_k(Value x, int32_t k);  // i32, f32 [rows, k]
  struct Walk {
    Value ids, confidence, scores;
  };
  Value sum_devices(Value x);
  Walk select_walk(Value candidates, Value unary, Value gamma, const Weight& predecessor, const Weight& successor);

  /// Steps [begin, end) as a plan of their own with the same values, no outputs. `entry` is the one value from before
  /// that they may read: it is looked up in `table` [n, width] by the rows' token ids.
  Plan part(size_t begin, size_t end, Value entry, const Weight& table) const;

  /// Some steps, in order, as a plan of their own with the same values, no outputs. `entries` are what others make of
  /// the values that they read.
  Plan some(const std::vector<size_t>& steps, std::vector<Value> entries) const;

  /// Names a value that callers may read after a run.
  void output(std::string name, Value value);

  const std::string& name() const { return name_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<ValueInfo>& values() const { return values_; }
  const std::vector<PlanOutput>& outputs() const { return outputs_; }
  /// Values that no step makes: callers write them before each run.
  const std::vector<Value>& entries() const { return entries_; }
  const ValueInfo& info(Value v) const { return values_[v.id]; }
  /// Index into outputs(), or -1.
  int find_output(std::string_view name) const;
  /// Every weight the steps use, once, in order of first use.
  std::vector<const Weight*> weights() const;

 private:
  Value make(const ValueInfo& info);
  Value like(Value x) { return make(info(x)); }
  void push(Op op, std::vector<Value> out, std::vector<Value> in, std::vector<const Weight*> weights = {},
            OpParams params = {}, const State* state = nullptr);

  std::string name_;
  std::vector<Step> steps_;
  std::vector<ValueInfo> values_;
  std::vector<PlanOutput> outputs_;
  std::vector<Value> entries_;
};

/// Largest row counts a program is compiled for.
struct PlanLimits {
  int64_t n_tok = 0;
  int64_t n_out = 0;
};

inline int64_t max_rows(const ValueInfo& info, const PlanLimits& limits) {
  return (info.rows == Rows::tokens ? limits.n_tok : limits.n_out) * info.multiple;
}

/// Bytes of one row of a value: 4 a column, or 44 a block of 32 columns for act (codes, scale, two words for sums).
int64_t value_row_bytes(const ValueInfo& info);

/// Where each value lives in one scratch buffer: values whose lifetimes do not meet share space. In-place ops reuse
/// their first input's space when that input dies with the step. Outputs live to the end of the run.
struct Arena {
  std::vector<int64_t> offset;  // by value id, 64-byte aligned
  int64_t bytes = 0;
};
Arena place_values(const Plan& plan, const PlanLimits& limits);

/// The listing of `1bit plan --ops`: one line a step with shapes, weights, types and parameters.
std::string print_plan(const Plan& plan);

}  // namespace onebit
