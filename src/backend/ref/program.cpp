// Compiles and runs plans: operands are bound and checked here, the ops themselves are in their own files.
#include "backend/ref/program.h"

#include <algorithm>
#include <cstring>

#include "gguf/blocks.h"

namespace onebit::ref {
namespace {

/// Weights that ops read as bytes, row by row; all others are small vectors, decoded once.
bool reads_matrix(Op op) {
  return op == Op::embed || op == Op::matmul || op == Op::matmul_experts || op == Op::select_walk;
}

std::vector<float> decoded(const Weight& weight) {
  const int64_t bytes = row_bytes(weight.type, weight.n_in());
  const int64_t n_row = static_cast<int64_t>(weight.data.size()) / bytes;
  std::vector<float> values(static_cast<size_t>(n_row * weight.n_in()));
  for (int64_t r = 0; r < n_row; ++r) {
    decode_row(weight.type, weight.data.data() + r * bytes, values.data() + r * weight.n_in(), weight.n_in());
  }
  return values;
}

}  // namespace

RefProgram::RefProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits,
                       const std::function<bool(const Weight*)>& loaded, Membership membership)
    : plan_(plan),
      limits_(limits),
      arena_(place_values(plan, limits)),
      membership_(std::move(membership)),
      check_(plan, limits) {
  for (const Step& step : plan_.steps()) {
    Bound bound;
    for (const Weight* weight : step.weights) {
      CHECK(loaded(weight));
      bound.operands.push_back(reads_matrix(step.op) ? std::vector<float>{} : decoded(*weight));
    }
    if (step.state) bind_state(step, pools, bound);
    bound_.push_back(std::move(bound));
  }
  for (const PlanOutput& output : plan_.outputs()) CHECK(plan_.info(output.value).type != Dtype::act);
  memory_.assign(static_cast<size_t>(arena_.bytes + 7) / 8, ~uint64_t{0});  // what no op has written reads as NaN
}

void RefProgram::bind_state(const Step& step, std::span<StatePool* const> pools, Bound& bound) {
  for (StatePool* pool : pools) {
    auto* states = dynamic_cast<States*>(pool);
    CHECK(states);
    bound.state = states->find(step.state);
    if (!bound.state) continue;
    check_.add_state(step, states->sizes());
    return;
  }
  CHECK(!"the state belongs to one of the pools");
}

Ticket RefProgram::submit(const Batch& batch) {
  check_.check(batch);
  tokens_.clear();
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    for (int32_t i = 0; i < batch.sequences[s].n_tok; ++i) {
      tokens_.push_back({batch.sequences[s].row + i, static_cast<int32_t>(s)});
    }
  }
  for (size_t i = 0; i < plan_.steps().size(); ++i) {
    const Step& step = plan_.steps()[i];
    const OpCall call{plan_,
                      step,
                      batch,
                      tokens_,
                      arena_.offset,
                      reinterpret_cast<uint8_t*>(memory_.data()),
                      bound_[i].operands,
                      bound_[i].state,
                      membership_};
    op_function(step.op)(call);
  }
  n_tok_ = batch.n_tok();
  n_out_ = batch.n_out();
  return ++last_;
}

void RefProgram::wait(Ticket ticket) { CHECK(ticket <= last_); }

template <class T>
void RefProgram::copy_out(int index, int64_t row, std::span<T> to, Dtype type) const {
  CHECK(last_ > 0 && index >= 0 && index < static_cast<int>(plan_.outputs().size()));
  const Value value = plan_.outputs()[static_cast<size_t>(index)].value;
  const ValueInfo& info = plan_.info(value);
  const int64_t n_row = (info.rows == Rows::tokens ? n_tok_ : n_out_) * info.multiple;
  const auto size = static_cast<int64_t>(to.size());
  CHECK(info.type == type && row >= 0 && size % info.width == 0 && row + size / info.width <= n_row);
  const auto* bytes = reinterpret_cast<const uint8_t*>(memory_.data()) + arena_.offset[static_cast<size_t>(value.id)];
  if (!to.empty()) std::memcpy(to.data(), bytes + row * info.width * 4, to.size_bytes());
}

void RefProgram::read(int index, int64_t row, std::span<float> to) { copy_out(index, row, to, Dtype::f32); }
void RefProgram::read(int index, int64_t row, std::span<int32_t> to) { copy_out(index, row, to, Dtype::i32); }

void RefProgram::write(int index, std::span<const float> rows) {
  const Value value = plan_.entries().at(static_cast<size_t>(index));
  const ValueInfo& info = plan_.info(value);
  CHECK(info.type == Dtype::f32 && static_cast<int64_t>(rows.size()) <= max_rows(info, limits_) * info.width);
  auto* bytes = reinterpret_cast<uint8_t*>(memory_.data()) + arena_.offset[static_cast<size_t>(value.id)];
  if (!rows.empty()) std::memcpy(bytes, rows.data(), rows.size_bytes());
}

OpFunction op_function(Op op) {
  switch (op) {
    case Op::embed:
      return embed;
    case Op::rms_norm:
      return rms_norm;
    case Op::add:
      return add;
    case Op::sigmoid_mul:
      return sigmoid_mul;
    case Op::swiglu:
      return swiglu;
    case Op::softcap:
      return softcap;
    case Op::slice_heads:
      return slice_heads;
    case Op::quantize:
      return quantize;
    case Op::matmul:
      return matmul;
    case Op::route:
      return route;
    case Op::matmul_experts:
      return matmul_experts;
    case Op::combine_experts:
      return combine_experts;
    case Op::gather_rows:
      return gather_rows;
    case Op::rope:
      return rope;
    case Op::kv_store:
      return kv_store;
    case Op::attention:
      return attention;
    case Op::block_attention:
      return block_attention;
    case Op::delta_net:
      return delta_net;
    case Op::gated_norm:
      return gated_norm;
    case Op::block_conv:
      return block_conv;
    case Op::store_rows:
      return store_rows;
    case Op::load_rows:
      return load_rows;
    case Op::argmax:
      return argmax;
    case Op::top_k:
      return top_k;
    case Op::select_walk:
      return select_walk;
    case Op::sum_devices:
      return sum_devices;
  }
  CHECK(!"the list of ops is closed");
  return nullptr;
}

}  // namespace onebit::ref
