// One op at work: its step, its operands in memory, and the batch's rows. Every op of this folder takes an OpCall.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/ref/act.h"
#include "backend/ref/states.h"
#include "backend/team.h"
#include "base/error.h"
#include "plan/batch.h"
#include "plan/plan.h"

namespace onebit::ref {

/// A token row of a batch and the sequence it belongs to.
struct TokenRow {
  int32_t row = 0;
  int32_t sequence = 0;  // index into Batch::sequences
};

struct OpCall {
  const Plan& plan;
  const Step& step;
  const Batch& batch;
  const std::vector<TokenRow>& tokens;              // [n_tok]
  const std::vector<int64_t>& offsets;              // of values in memory
  uint8_t* memory;                                  // values
  const std::vector<std::vector<float>>& operands;  // weights of this step decoded to f32; empty for matrices
  Memory* state;                                    // nullptr for ops without one
  const Membership& membership;

  const ValueInfo& info(Value v) const { return plan.info(v); }
  const ValueInfo& in_info(size_t i) const { return plan.info(step.in[i]); }
  const ValueInfo& out_info(size_t i) const { return plan.info(step.out[i]); }
  /// Rows of a value in this batch.
  int64_t n_row(Value v) const {
    return (info(v).rows == Rows::tokens ? batch.n_tok() : batch.n_out()) * info(v).multiple;
  }
  /// The token row that row r of a value belongs to.
  const TokenRow& token(Value v, int64_t r) const {
    const int64_t i = r / info(v).multiple;
    return tokens[static_cast<size_t>(info(v).rows == Rows::tokens ? i : batch.outputs[static_cast<size_t>(i)])];
  }
  const Sequence& sequence(const TokenRow& row) const { return batch.sequences[static_cast<size_t>(row.sequence)]; }
  int32_t position(const TokenRow& row) const { return sequence(row).pos + row.row - sequence(row).row; }

  template <class T>
  T* data(Value v) const {
    return reinterpret_cast<T*>(memory + offsets[static_cast<size_t>(v.id)]);
  }
  const float* in(size_t i) const { return data<float>(step.in[i]); }
  float* out(size_t i = 0) const { return data<float>(step.out[i]); }
  const Weight& weight(size_t i) const { return *step.weights[i]; }
  const float* operand(size_t i) const { return operands[i].data(); }
  template <class T>
  const T& params() const {
    return std::get<T>(step.params);
  }
  template <class T>
  T& memory_of() const {
    return std::get<T>(*state);
  }
};

// elementwise.cpp
void add(const OpCall& call);
void sigmoid_mul(const OpCall& call);
void swiglu(const OpCall& call);
void softcap(const OpCall& call);
void sum_devices(const OpCall& call);
void slice_heads(const OpCall& call);
// norm.cpp
void rms_norm(const OpCall& call);
void gated_norm(const OpCall& call);
// act.cpp
void quantize(const OpCall& call);
// matmul.cpp
void matmul(const OpCall& call);
void matmul_experts(const OpCall& call);
// route.cpp
void route(const OpCall& call);
void combine_experts(const OpCall& call);
// rows.cpp
void embed(const OpCall& call);
void gather_rows(const OpCall& call);
void store_rows(const OpCall& call);
void load_rows(const OpCall& call);
// rope.cpp
void rope(const OpCall& call);
// attention.cpp
void kv_store(const OpCall& call);
void attention(const OpCall& call);
void block_attention(const OpCall& call);
// delta_net.cpp
void delta_net(const OpCall& call);
// block_conv.cpp
void block_conv(const OpCall& call);
// select.cpp
void argmax(const OpCall& call);
void top_k(const OpCall& call);
void select_walk(const OpCall& call);

/// The op's function.
using OpFunction = void (*)(const OpCall& call);
OpFunction op_function(Op op);

/// 1 / (1 + exp(-x)), and x times it.
float sigmoid(float x);
float silu(float x);

}  // namespace onebit::ref
