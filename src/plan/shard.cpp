#include "plan/shard.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "gguf/blocks.h"

namespace onebit {
namespace {

size_t index(Value v) { return static_cast<size_t>(v.id); }

int64_t total(const ColumnRanges& ranges) {
  int64_t n = 0;
  for (const ColumnRange& range : ranges) n += range.end - range.begin;
  return n;
}

/// Each range times `factor` columns, from `offset` on.
ColumnRanges scaled(const ColumnRanges& ranges, int64_t factor, int64_t offset = 0) {
  ColumnRanges made;
  for (const ColumnRange& r : ranges) made.push_back({offset + r.begin * factor, offset + r.end * factor});
  return made;
}

/// The union, in the normal form.
ColumnRanges joined(ColumnRanges a, const ColumnRanges& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end(), [](const ColumnRange& x, const ColumnRange& y) { return x.begin < y.begin; });
  ColumnRanges made;
  for (const ColumnRange& r : a) {
    if (r.begin == r.end) continue;
    if (made.empty() || made.back().end < r.begin) {
      made.push_back(r);
    } else {
      made.back().end = std::max(made.back().end, r.end);
    }
  }
  return made;
}

/// Where a column of the whole is among the columns that are there.
int64_t local_column(const ColumnRanges& ranges, int64_t column) {
  int64_t before = 0;
  for (const ColumnRange& r : ranges) {
    if (column >= r.begin && column < r.end) return before + column - r.begin;
    before += r.end - r.begin;
  }
  check_failed("the column is there", __FILE__, __LINE__);
}

}  // namespace

/// The division of one plan: first which columns each value has here, forwards from the steps that are divided by their
/// nature, then backwards to what these read; then the steps.
class Division {
 public:
  Division(const Plan& plan, Shard& shard)
      : plan_(plan),
        shard_(shard),
        columns_(plan.values().size()),
        terms_(plan.values().size()),
        now_(plan.values().size()),
        infos_(plan.values()) {
    for (size_t i = 0; i < now_.size(); ++i) now_[i] = {static_cast<int32_t>(i)};
  }

  Plan run() {
    for (const Step& step : plan_.steps()) spread(step);
    for (size_t s = plan_.steps().size(); s-- > 0;) demand(plan_.steps()[s]);
    for (size_t v = 0; v < columns_.size(); ++v) {
      if (!columns_[v].empty()) infos_[v].width = total(columns_[v]);
    }
    for (const Step& step : plan_.steps()) add_step(step);
    std::vector<PlanOutput> outputs;
    if (shard_.device_ == 0) {
      for (const PlanOutput& output : plan_.outputs()) outputs.push_back({output.name, whole(output.value)});
    } else {
      drop_unused();
    }
    for (const Step& step : steps_) note_whole_weights(step);
    return Plan(plan_.name(), std::move(steps_), std::move(infos_), std::move(outputs));
  }

 private:
  const ColumnRanges& columns(Value v) const { return columns_[index(v)]; }
  bool divided(Value v) const { return !columns(v).empty(); }

  /// This device's of n things; every device must get one.
  ColumnRange share(int64_t n, const char* what) const {
    if (n < shard_.n_device_) {
      refuse("{} {} can't be divided among {} devices; use fewer, or --split-mode layer", n, what, shard_.n_device_);
    }
    return {n * shard_.device_ / shard_.n_device_, n * (shard_.device_ + 1) / shard_.n_device_};
  }

  /// Value heads of this device's key heads.
  ColumnRanges value_heads(const DeltaNetParams& p) const {
    const ColumnRange keys = share(p.n_k_head, "key heads");
    const int64_t n = p.n_v_head / p.n_k_head;
    if (p.map == HeadMap::grouped) return {{keys.begin * n, keys.end * n}};
    ColumnRanges heads;
    for (int64_t i = 0; i < n; ++i) heads.push_back({i * p.n_k_head + keys.begin, i * p.n_k_head + keys.end});
    return joined({}, heads);
  }

  /// Columns that a product must not cut: blocks of its activations, and of its weight.
  int64_t unit_of(Value v) const {
    int64_t unit = 1;
    std::vector<bool> follows(plan_.values().size());
    follows[index(v)] = true;
    for (const Step& step : plan_.steps()) {
      if (step.in.empty() || !follows[index(step.in[0])]) continue;
      if (step.op == Op::quantize || step.op == Op::sigmoid_mul) follows[index(step.out[0])] = true;
      if (step.op == Op::matmul || step.op == Op::matmul_experts) {
        const TypeInfo& type = type_info(step.weights[0]->type);
        if (type.quantised) unit = std::lcm(unit, std::lcm<int64_t>(32, type.block_elems));
      }
    }
    return unit;
  }

  void spread(const Step& step) {
    switch (step.op) {
      case Op::attention: {
        const auto& p = std::get<AttentionParams>(step.params);
        columns_[index(step.out[0])] = scaled({share(p.n_head_kv, "key heads")}, p.n_head / p.n_head_kv * p.d_head);
        return;
      }
      case Op::delta_net: {
        const auto& p = std::get<DeltaNetParams>(step.params);
        columns_[index(step.out[0])] = scaled(value_heads(p), p.d_v);
        return;
      }
      case Op::swiglu: {
        const int64_t unit = unit_of(step.out[0]), width = plan_.info(step.out[0]).width;
        ColumnRange range = scaled({share(width / unit, "blocks of columns")}, unit)[0];
        if (shard_.device_ + 1 == shard_.n_device_) range.end = width;
        columns_[index(step.out[0])] = {range};
        return;
      }
      case Op::quantize:
      case Op::gated_norm:
      case Op::sigmoid_mul:
      case Op::gather_rows:
      case Op::combine_experts:
        columns_[index(step.out[0])] = columns(step.in[0]);
        return;
      default:
        return;
    }
  }

  void want(Value v, const ColumnRanges& ranges) { columns_[index(v)] = joined(columns(v), ranges); }

  void demand(const Step& step) {
    const bool out_divided = !step.out.empty() && divided(step.out[0]);
    switch (step.op) {
      case Op::kv_store: {
        const auto& kv = std::get<KvState>(step.state->kind);
        for (Value v : step.in) want(v, scaled({share(kv.n_head_kv, "key heads")}, kv.d_head));
        return;
      }
      case Op::delta_net: {
        const auto& p = std::get<DeltaNetParams>(step.params);
        want(step.in[0], channels(p));
        want(step.in[1], value_heads(p));
        want(step.in[2], value_heads(p));
        return;
      }
      case Op::slice_heads:
        if (out_divided) want(step.in[0], sliced_from(std::get<SliceParams>(step.params), columns(step.out[0])));
        return;
      case Op::attention:
      case Op::rope:
      case Op::rms_norm:
      case Op::quantize:
      case Op::swiglu:
      case Op::gated_norm:
      case Op::sigmoid_mul:
        if (!out_divided) return;
        for (Value v : step.in) {
          if (plan_.info(v).width == plan_.info(step.out[0]).width) want(v, columns(step.out[0]));
        }
        return;
      default:
        return;
    }
  }

  /// Columns of u, [q | k | v].
  ColumnRanges channels(const DeltaNetParams& p) const {
    const ColumnRanges keys = {share(p.n_k_head, "key heads")};
    ColumnRanges all = scaled(keys, p.d_k);
    all = joined(all, scaled(keys, p.d_k, p.n_k_head * p.d_k));
    return joined(all, scaled(value_heads(p), p.d_v, 2 * p.n_k_head * p.d_k));
  }

  /// What a slice must find to give these columns: whole groups, or columns of the only one.
  static ColumnRanges sliced_from(const SliceParams& p, const ColumnRanges& out) {
    if (p.n_group == 1) return scaled(out, 1, p.offset);
    ColumnRanges groups;
    for (const ColumnRange& r : out) {
      CHECK(r.begin % p.length == 0 && r.end % p.length == 0);
      groups.push_back({r.begin / p.length * p.stride, r.end / p.length * p.stride});
    }
    return joined({}, groups);
  }

  // --- steps
  // ----------------------------------------------------------------------------------------------------------

  /// The value with all its terms.
  Value whole(Value v) {
    if (!terms_[index(v)]) return now_[index(v)];
    ValueInfo info = infos_[index(now_[index(v)])];
    infos_.push_back(info);
    const Value sum{static_cast<int32_t>(infos_.size()) - 1};
    steps_.push_back({Op::sum_devices, {sum}, {now_[index(v)]}, {}, nullptr, {}});
    now_[index(v)] = sum;
    terms_[index(v)] = false;
    return sum;
  }

  void add_step(const Step& from) {
    Step step = from;
    if (from.op == Op::add && add_to_terms(from)) return;
    const bool linear = from.op == Op::gather_rows || from.op == Op::combine_experts || from.op == Op::sigmoid_mul;
    for (size_t i = 0; i < step.in.size(); ++i) {
      step.in[i] = linear && i == 0 ? now_[index(from.in[i])] : whole(from.in[i]);
    }
    if (linear) terms_[index(from.out[0])] = terms_[index(from.in[0])];
    const bool product = from.op == Op::matmul || from.op == Op::matmul_experts;
    if (product && divided(from.in[0])) terms_[index(from.out[0])] = true;
    divide_step(from, step);
    steps_.push_back(std::move(step));
  }

  /// a + b where one of them is terms: the first device adds what all have, the others pass on their term.
  bool add_to_terms(const Step& from) {
    const bool a = terms_[index(from.in[0])], b = terms_[index(from.in[1])];
    terms_[index(from.out[0])] = a || b;
    if (!a && !b) return false;
    if ((a && b) || shard_.device_ == 0) {
      steps_.push_back({Op::add, from.out, {now_[index(from.in[0])], now_[index(from.in[1])]}, {}, nullptr, {}});
    } else {
      now_[index(from.out[0])] = now_[index(from.in[a ? 0 : 1])];
    }
    return true;
  }

  void divide_step(const Step& from, Step& step) {
    const bool out_divided = !from.out.empty() && divided(from.out[0]);
    switch (from.op) {
      case Op::matmul:
      case Op::matmul_experts:
        if (divided(from.in[0])) step.weights[0] = shard_.part_of(*from.weights[0], false, columns(from.in[0]));
        if (out_divided) step.weights[0] = shard_.part_of(*from.weights[0], true, columns(from.out[0]));
        return;
      case Op::rope:
        if (out_divided) {
          auto& p = std::get<RopeParams>(step.params);
          p.n_head = total(columns(from.out[0])) / p.d_head;
        }
        return;
      case Op::rms_norm:
        if (out_divided) CHECK(total(columns(from.out[0])) % std::get<NormParams>(step.params).group == 0);
        return;
      case Op::kv_store:
        step.state = kv_part(*from.state);
        return;
      case Op::attention: {
        auto& p = std::get<AttentionParams>(step.params);
        step.state = kv_part(*from.state);
        p.n_head = total(columns(from.out[0])) / p.d_head;
        p.n_head_kv = std::get<KvState>(step.state->kind).n_head_kv;
        return;
      }
      case Op::delta_net:
        return divide_delta_net(from, step);
      case Op::slice_heads:
        if (out_divided) divide_slice(from, step);
        return;
      default:  // nothing else may find columns where it wants all of them
        for (Value v : from.in) CHECK(!divided(v) || out_divided);
    }
  }

  const State* kv_part(const State& state) {
    KvState kv = std::get<KvState>(state.kind);
    const ColumnRange heads = share(kv.n_head_kv, "key heads");
    kv.n_head_kv = heads.end - heads.begin;
    return shard_.part_of(state, kv);
  }

  void divide_delta_net(const Step& from, Step& step) {
    const auto& p = std::get<DeltaNetParams>(from.params);
    auto& own = std::get<DeltaNetParams>(step.params);
    const ColumnRange keys = share(p.n_k_head, "key heads");
    own.n_k_head = keys.end - keys.begin;
    own.n_v_head = total(value_heads(p));
    step.weights = {shard_.part_of(*from.weights[0], true, channels(p)),
                    shard_.part_of(*from.weights[1], false, value_heads(p)),
                    shard_.part_of(*from.weights[2], false, value_heads(p))};
    DeltaNetState state = std::get<DeltaNetState>(from.state->kind);
    state.n_channel = total(channels(p));
    state.n_v_head = own.n_v_head;
    step.state = shard_.part_of(*from.state, state);
  }

  void divide_slice(const Step& from, Step& step) {
    auto& p = std::get<SliceParams>(step.params);
    const ColumnRanges &out = columns(from.out[0]), &in = columns(from.in[0]);
    if (p.n_group > 1) {
      p.n_group = total(out) / p.length;
      return;
    }
    CHECK(out.size() == 1);
    p.offset = local_column(in, p.offset + out[0].begin);
    p.length = total(out);
    p.stride = total(in);
  }

  /// Without what only results need: sums and states are kept, since all devices take part in them.
  void drop_unused() {
    std::vector<bool> read(infos_.size());
    std::vector<Step> kept;
    for (size_t s = steps_.size(); s-- > 0;) {
      const Step& step = steps_[s];
      const bool state = step.op == Op::kv_store || step.op == Op::delta_net || step.op == Op::sum_devices;
      const bool used = std::any_of(step.out.begin(), step.out.end(), [&](Value v) { return read[index(v)]; });
      if (!state && !used) continue;
      for (Value v : step.in) read[index(v)] = true;
      kept.push_back(step);
    }
    std::reverse(kept.begin(), kept.end());
    steps_ = std::move(kept);
  }

  void note_whole_weights(const Step& step) {
    for (const Weight* weight : step.weights) {
      const auto is_part = [&](const auto& entry) { return &entry.second.weight == weight; };
      if (std::none_of(shard_.weights_.begin(), shard_.weights_.end(), is_part)) shard_.whole_.insert(weight);
    }
  }

  const Plan& plan_;
  Shard& shard_;
  std::vector<ColumnRanges> columns_;  // by value of the plan; empty: all of them
  std::vector<bool> terms_;            // by value of the plan: it is a sum over devices that nobody has added up yet
  std::vector<Value> now_;             // by value of the plan: what stands for it
  std::vector<ValueInfo> infos_;
  std::vector<Step> steps_;
};

Plan Shard::divide(const Plan& plan) { return Division(plan, *this).run(); }

const WeightPart* Shard::part(const Weight& weight) const {
  const auto found = weights_.find(&weight);
  return found == weights_.end() ? nullptr : &found->second;
}

Weight& Shard::bytes_of(const Weight& weight, std::span<const uint8_t> bytes) {
  Weight& part = weights_.at(&weight).weight;
  part.data = bytes;
  return part;
}

const State* Shard::part(const State& state) const {
  const auto found = states_.find(&state);
  return found == states_.end() ? nullptr : &found->second;
}

const Weight* Shard::part_of(const Weight& weight, bool rows, const ColumnRanges& ranges) {
  WeightPart& part = weights_[&weight];
  const std::span<const uint8_t> bytes = part.weight.data;
  CHECK(!part.whole || (part.rows == rows && part.ranges == ranges));
  part.whole = &weight;
  part.rows = rows;
  part.ranges = ranges;
  part.weight = weight;  // marks may have changed since
  part.weight.data = bytes;
  part.weight.name += " (part)";
  part.weight.shape[part.weight.shape.size() - (rows ? 2 : 1)] = total(ranges);
  const int64_t block = type_info(weight.type).block_elems;
  for (const ColumnRange& r : ranges) {
    if (rows || (r.begin % block == 0 && r.end % block == 0)) continue;
    refuse("{}: blocks of {} columns ({}) can't be divided among {} devices; use --split-mode layer", weight.name,
           block, type_name(weight.type), n_device_);
  }
  return &part.weight;
}

const State* Shard::part_of(const State& state, decltype(State::kind) kind) {
  State& part = states_[&state];
  part = {state.name, std::move(kind)};
  return &part;
}

std::vector<uint8_t> WeightPart::bytes() const {
  const int64_t n_row = whole->n_expert() * whole->n_out(), row = row_bytes(whole->type, whole->n_in());
  std::vector<uint8_t> made;
  made.reserve(static_cast<size_t>(n_row * row / (rows ? whole->n_out() : whole->n_in()) * total(ranges) + row));
  const auto take = [&](int64_t at, int64_t n) { made.insert(made.end(), &whole->data[at], &whole->data[at] + n); };
  if (rows) {
    for (int64_t first = 0; first < n_row; first += whole->n_out()) {
      for (const ColumnRange& r : ranges) take((first + r.begin) * row, (r.end - r.begin) * row);
    }
    return made;
  }
  for (int64_t i = 0; i < n_row; ++i) {
    for (const ColumnRange& r : ranges)
      take(i * row + row_bytes(whole->type, r.begin), row_bytes(whole->type, r.end - r.begin));
  }
  return made;
}

}  // namespace onebit
