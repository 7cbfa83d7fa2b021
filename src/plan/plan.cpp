// The verbs of a plan: each checks its operands, appends one step and names what it writes.
#include "plan/plan.h"

#include <algorithm>

#include "base/error.h"

namespace onebit {

Value Plan::make(const ValueInfo& info) {
  CHECK(info.width > 0 && info.multiple > 0);
  values_.push_back(info);
  return {static_cast<int32_t>(values_.size()) - 1};
}

void Plan::push(Op op, std::vector<Value> out, std::vector<Value> in, std::vector<const Weight*> weights,
                OpParams params, const State* state) {
  for (Value v : in) CHECK(v.id >= 0 && v.id < static_cast<int32_t>(values_.size()));
  steps_.push_back({op, std::move(out), std::move(in), std::move(weights), state, std::move(params)});
}

Value Plan::embed(const Weight& table) {
  CHECK(table.shape.size() == 2 && !table.rotated);
  const Value y = make({.width = table.n_in()});
  push(Op::embed, {y}, {}, {&table});
  return y;
}

Value Plan::rms_norm(Value x, const Weight& w, float eps) {
  CHECK(info(x).width % w.n_in() == 0);
  const Value y = like(x);
  push(Op::rms_norm, {y}, {x}, {&w}, NormParams{eps, w.n_in()});
  return y;
}

Value Plan::add(Value a, Value b) {
  CHECK(info(a).width == info(b).width && info(a).rows == info(b).rows);
  const Value y = like(a);
  push(Op::add, {y}, {a, b});
  return y;
}

Value Plan::sigmoid_mul(Value x, Value gate) {
  CHECK(info(gate).width == info(x).width || info(gate).width == 1);
  const Value y = like(x);
  push(Op::sigmoid_mul, {y}, {x, gate});
  return y;
}

Value Plan::swiglu(Value gate, Value up) {
  CHECK(info(gate).width == info(up).width);
  const Value y = like(gate);
  push(Op::swiglu, {y}, {gate, up});
  return y;
}

Value Plan::softcap(Value x, float scale, float cap) {
  const Value y = like(x);
  push(Op::softcap, {y}, {x}, {}, SoftcapParams{scale, cap});
  return y;
}

Value Plan::slice_heads(Value x, const SliceParams& params) {
  CHECK(params.n_group * params.stride <= info(x).width && params.offset + params.length <= params.stride);
  ValueInfo shape = info(x);
  shape.width = params.n_group * params.length;
  const Value y = make(shape);
  push(Op::slice_heads, {y}, {x}, {}, params);
  return y;
}

Value Plan::quantize(Value x, const QuantizeParams& params) {
  for (const Step& step : steps_) {  // q, k, v and gate share one quantised input
    const auto* known = std::get_if<QuantizeParams>(&step.params);
    if (known && step.in[0].id == x.id && *known == params) return step.out[0];
  }
  CHECK(info(x).type == Dtype::f32 && info(x).width % 32 == 0);
  ValueInfo shape = info(x);
  shape.type = Dtype::act;
  const Value y = make(shape);
  push(Op::quantize, {y}, {x}, {}, params);
  return y;
}

Value Plan::matmul(Value x, const Weight& w) {
  CHECK(w.shape.size() <= 2 && info(x).width == w.n_in());
  CHECK(info(x).type == (type_info(w.type).quantised ? Dtype::act : Dtype::f32));
  ValueInfo shape = info(x);
  shape.type = Dtype::f32;
  shape.width = w.n_out();
  const Value y = make(shape);
  push(Op::matmul, {y}, {x}, {&w});
  return y;
}

std::pair<Value, Value> Plan::route(Value logits, const RouteParams& params) {
  CHECK(params.n_used > 0 && params.n_used <= info(logits).width);
  ValueInfo shape = info(logits);
  shape.width = params.n_used;
  const Value weights = make(shape);
  shape.type = Dtype::i32;
  const Value ids = make(shape);
  push(Op::route, {ids, weights}, {logits}, {}, params);
  return {ids, weights};
}

Value Plan::matmul_experts(Value x, const Weight& w, Value ids) {
  const int64_t n_used = info(ids).width;
  CHECK(w.shape.size() == 3 && info(x).width == w.n_in());
  CHECK(info(x).multiple == 1 || info(x).multiple == n_used);
  CHECK(info(x).type == (type_info(w.type).quantised ? Dtype::act : Dtype::f32));
  ValueInfo shape = info(x);
  shape.type = Dtype::f32;
  shape.multiple = n_used;
  shape.width = w.n_out();
  const Value y = make(shape);
  push(Op::matmul_experts, {y}, {x, ids}, {&w});
  return y;
}

Value Plan::combine_experts(Value x, Value weights) {
  CHECK(info(x).multiple == info(weights).width);
  ValueInfo shape = info(x);
  shape.multiple = 1;
  const Value y = make(shape);
  push(Op::combine_experts, {y}, {x, weights});
  return y;
}

Value Plan::gather_rows(Value x) {
  CHECK(info(x).rows == Rows::tokens && info(x).multiple == 1);
  ValueInfo shape = info(x);
  shape.rows = Rows::outputs;
  const Value y = make(shape);
  push(Op::gather_rows, {y}, {x});
  return y;
}

Value Plan::rope(Value x, const RopeParams& params, const Weight* factors) {
  CHECK(info(x).width == params.n_head * params.d_head && params.n_rot <= params.d_head && params.n_rot % 2 == 0);
  CHECK(!factors || factors->n_in() == params.n_rot / 2);
  const Value y = like(x);
  push(Op::rope, {y}, {x}, factors ? std::vector<const Weight*>{factors} : std::vector<const Weight*>{}, params);
  return y;
}

void Plan::kv_store(Value k, Value v, const State& cache) {
  const auto& kv = std::get<KvState>(cache.kind);
  CHECK(info(k).width == kv.n_head_kv * kv.d_head && info(v).width == info(k).width);
  push(Op::kv_store, {}, {k, v}, {}, {}, &cache);
}

namespace {

void check_cache(const State& cache, const AttentionParams& params) {
  const auto& kv = std::get<KvState>(cache.kind);
  CHECK(kv.n_head_kv == params.n_head_kv && kv.d_head == params.d_head);
}

}  // namespace

Value Plan::attention(Value q, const State& cache, const AttentionParams& params) {
  check_cache(cache, params);
  CHECK(info(q).width == params.n_head * params.d_head && params.n_head % params.n_head_kv == 0);
  const Value y = like(q);
  push(Op::attention, {y}, {q}, {}, params, &cache);
  return y;
}

Value Plan::block_attention(Value q, Value k, Value v, const State& cache, const AttentionParams& params) {
  check_cache(cache, params);
  CHECK(info(q).width == params.n_head * params.d_head && info(k).width == params.n_head_kv * params.d_head);
  CHECK(info(v).width == info(k).width);
  const Value y = like(q);
  push(Op::block_attention, {y}, {q, k, v}, {}, params, &cache);
  return y;
}

Value Plan::delta_net(Value u, Value beta, Value alpha, const Weight& conv, const Weight& a, const Weight& dt,
                      const State& state, const DeltaNetParams& params) {
  const int64_t n_channel = 2 * params.n_k_head * params.d_k + params.n_v_head * params.d_v;
  CHECK(info(u).width == n_channel && info(beta).width == params.n_v_head && info(alpha).width == params.n_v_head);
  CHECK(params.n_v_head % params.n_k_head == 0 && params.n_tap <= kMaxConvTaps);
  const auto& net = std::get<DeltaNetState>(state.kind);
  CHECK(net.n_channel == n_channel && net.n_tap == params.n_tap && net.n_v_head == params.n_v_head);
  CHECK(net.d_k == params.d_k && net.d_v == params.d_v);
  CHECK(conv.shape == (std::vector<int64_t>{n_channel, params.n_tap}));
  CHECK(a.n_in() == params.n_v_head && dt.n_in() == params.n_v_head);
  const Value y = make({.width = params.n_v_head * params.d_v});
  push(Op::delta_net, {y}, {u, beta, alpha}, {&conv, &a, &dt}, params, &state);
  return y;
}

Value Plan::gated_norm(Value x, const Weight& w, Value z, float eps) {
  CHECK(info(x).width % w.n_in() == 0 && info(x).width == info(z).width);
  const Value y = like(x);
  push(Op::gated_norm, {y}, {x, z}, {&w}, NormParams{eps, w.n_in()});
  return y;
}

Value Plan::block_conv(Value x, const Weight& base, Value delta, const BlockConvParams& params) {
  const int64_t width = info(x).width;
  CHECK(width % params.group == 0 && base.shape == (std::vector<int64_t>{2, params.n_tap, width}));
  CHECK(info(delta).width == 2 * params.n_tap * (width / params.group));
  const Value y = like(x);
  push(Op::block_conv, {y}, {x, delta}, {&base}, params);
  return y;
}

void Plan::store_rows(Value x, const State& rows, int64_t offset) {
  CHECK(info(x).rows == Rows::tokens && offset + info(x).width <= std::get<RowsState>(rows.kind).width);
  push(Op::store_rows, {}, {x}, {}, RowsParams{offset}, &rows);
}

Value Plan::load_rows(const State& rows) {
  const Value y = make({.width = std::get<RowsState>(rows.kind).width});
  push(Op::load_rows, {y}, {}, {}, {}, &rows);
  return y;
}

Value Plan::argmax(Value x) {
  ValueInfo shape = info(x);
  shape.type = Dtype::i32;
  shape.width = 1;
  const Value y = make(shape);
  push(Op::argmax, {y}, {x});
  return y;
}

std::pair<Value, Value> Plan::top_k(Value x, int32_t k) {
  CHECK(k > 0 && k <= info(x).width);
  ValueInfo shape = info(x);
  shape.width = k;
  const Value values = make(shape);
  shape.type = Dtype::i32;
  const Value ids = make(shape);
  push(Op::top_k, {ids, values}, {x}, {}, TopKParams{k});
  return {ids, values};
}

Value Plan::sum_devices(Value x) {
  CHECK(info(x).type == Dtype::f32);
  const Value y = like(x);
  push(Op::sum_devices, {y}, {x});
  return y;
}

Plan::Walk Plan::select_walk(Value candidates, Value unary, Value gamma, const Weight& predecessor,
                             const Weight& successor) {
  CHECK(info(candidates).width == info(unary).width && info(candidates).type == Dtype::i32);
  CHECK(info(gamma).width == predecessor.n_in() && info(gamma).width == successor.n_in());
  ValueInfo shape = info(unary);
  const Value scores = make(shape);
  shape.width = 1;
  const Value confidence = make(shape);
  shape.type = Dtype::i32;
  const Value ids = make(shape);
  push(Op::select_walk, {ids, confidence, scores}, {candidates, unary, gamma}, {&predecessor, &successor},
       SelectParams{static_cast<int32_t>(info(gamma).width)});
  return {ids, confidence, scores};
}

Plan Plan::part(size_t begin, size_t end, Value entry, const Weight& table) const {
  CHECK(begin <= end && end <= steps_.size());
  CHECK(table.shape.size() == 2 && table.n_in() == info(entry).width && info(entry).multiple == 1);
  Plan part(name_);
  part.values_ = values_;
  part.push(Op::embed, {entry}, {}, {&table});
  std::vector<bool> known(values_.size());
  known[static_cast<size_t>(entry.id)] = true;
  for (size_t s = begin; s < end; ++s) {
    for (Value v : steps_[s].in) CHECK(known[static_cast<size_t>(v.id)]);
    for (Value v : steps_[s].out) known[static_cast<size_t>(v.id)] = true;
    part.steps_.push_back(steps_[s]);
  }
  return part;
}

Plan Plan::some(const std::vector<size_t>& steps, std::vector<Value> entries) const {
  Plan some(name_);
  some.values_ = values_;
  some.entries_ = std::move(entries);
  std::vector<bool> known(values_.size());
  for (Value v : some.entries_) {
    CHECK(info(v).type != Dtype::act);  // its layout is each backend's own
    known[static_cast<size_t>(v.id)] = true;
  }
  for (const size_t s : steps) {
    for (Value v : steps_[s].in) CHECK(known[static_cast<size_t>(v.id)]);
    for (Value v : steps_[s].out) known[static_cast<size_t>(v.id)] = true;
    some.steps_.push_back(steps_[s]);
  }
  return some;
}

void Plan::output(std::string name, Value value) {
  CHECK(find_output(name) < 0);
  outputs_.push_back({std::move(name), value});
}

int Plan::find_output(std::string_view name) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::vector<const Weight*> Plan::weights() const {
  std::vector<const Weight*> all;
  for (const Step& step : steps_) {
    for (const Weight* w : step.weights) {
      if (std::find(all.begin(), all.end(), w) == all.end()) all.push_back(w);
    }
  }
  return all;
}

}  // namespace onebit
