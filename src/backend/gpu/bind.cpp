#include "backend/gpu/bind.h"

#include <algorithm>

#include "base/error.h"
#include "plan/rope.h"

namespace onebit::gpu {
namespace {

/// A vector on the host from one on the device.
std::vector<float> read_floats(const float* from, int64_t n, gpuStream_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  check(gpuMemcpyAsync(values.data(), from, values.size() * 4, gpuMemcpyDeviceToHost, stream), "reading a weight");
  check(gpuStreamSynchronize(stream), "reading a weight");
  return values;
}

}  // namespace

Binder::Binder(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits, WeightStore& weights,
               const Chip& chip, Membership membership, gpuStream_t stream)
    : plan_(plan),
      pools_(pools),
      limits_(limits),
      weights_(weights),
      chip_(chip),
      membership_(std::move(membership)),
      stream_(stream),
      groups_(group_steps(plan)),
      placement_(place_groups(plan, groups_, limits)),
      arena_(placement_.bytes, "a program's values") {}

std::vector<BoundGroup> Binder::groups() {
  std::vector<BoundGroup> bound;
  for (const Group& group : groups_) bound.push_back({name_of(group), bind(group)});
  scratch_->memory = DeviceMemory(scratch_->bytes, "a program's scratch memory");
  std::vector<BoundGroup> all;
  for (const auto& rope : ropes_) {
    const double magnitude = rope_magnitude(rope->params);
    all.push_back({"rotary angles", [table = rope.get(), magnitude](const Run& run) {
                     gpu::rope_table(table->turns.as<double>(), table->params.n_rot / 2, magnitude, run.rows,
                                     table->table.as<float2>(), run.stream);
                   }});
  }
  all.insert(all.end(), bound.begin(), bound.end());
  return all;
}

Binder::Operand Binder::operand(Value v) const {
  const ValueInfo& info = plan_.info(v);
  const int64_t offset = placement_.offset[static_cast<size_t>(v.id)];
  CHECK(offset >= 0);
  return {arena_.data() + offset, info, max_rows(info, limits_)};
}

DeviceActs Binder::Operand::acts(const Run& run, bool int4) const {
  const ActsMix mix = !int4 ? ActsMix::int8 : info.rows == Rows::tokens ? run.mix : run.mix_outputs;
  return acts_at(data, max_rows, n_row(run), info.width, mix);
}

const QuantizeParams& Binder::quantization(Value acts) const {
  for (const Step& made : plan_.steps()) {
    if (made.op == Op::quantize && made.out[0].id == acts.id) return std::get<QuantizeParams>(made.params);
  }
  CHECK(!"an act value comes from quantize");
  std::abort();
}

const States& pool_of(const Step& step, std::span<StatePool* const> pools) {
  for (StatePool* pool : pools) {
    const auto* states = dynamic_cast<States*>(pool);
    CHECK(states);
    if (states->find(step.state)) return *states;
  }
  CHECK(!"the state belongs to one of the pools");
  std::abort();
}

template <class T>
const T& Binder::memory_of(const Step& step) const {
  return std::get<T>(*pool_of(step, pools_).find(step.state));
}

void Binder::want_scratch(int64_t bytes) { scratch_->bytes = std::max(scratch_->bytes, bytes); }

Enqueue Binder::bind(const Group& group) {
  switch (group.kind) {
    case Group::Kind::acts:
      return bind_acts(group);
    case Group::Kind::heads:
      return bind_heads(group);
    case Group::Kind::products:
      return bind_products(group);
    case Group::Kind::experts:
      return bind_experts(group);
    case Group::Kind::step:
      if (step(group.step).op == Op::combine_experts) return bind_combine(group);
      return bind_step(step(group.step));
  }
  return {};
}

Enqueue Binder::bind_acts(const Group& group) {
  const Step& quantize = step(group.step);
  const auto params = std::get<QuantizeParams>(quantize.params);
  ActsInput input;
  input.int4_rule = params.rule;
  if (group.before < 0) {
    input.x = operand(quantize.in[0]).f32();
  } else {
    const Step& before = step(group.before);
    input.x = operand(before.in[0]).f32();
    if (group.keep) input.keep = operand(before.out[0]).f32();
    if (before.op == Op::swiglu) input.up = operand(before.in[1]).f32();
    if (before.op == Op::sigmoid_mul) input.sigmoid_gate = operand(before.in[1]).f32();
    if (before.op == Op::gated_norm) input.silu_gate = operand(before.in[1]).f32();
    if (before.op == Op::rms_norm || before.op == Op::gated_norm) {
      const auto& norm = std::get<NormParams>(before.params);
      input.norm = weights_.plain(*before.weights[0]);
      input.group = norm.group;
      input.eps = norm.eps;
    }
  }
  const Operand to = operand(quantize.out[0]);
  return [=](const Run& run) {
    const uint8_t* int4_rows = to.info.rows == Rows::tokens ? run.rows.int4_rows : run.rows.int4_outputs;
    quantize_acts(input, params.rotate, int4_rows, to.info.multiple, to.acts(run, params.prompt_int4), run.stream);
  };
}

Enqueue Binder::bind_heads(const Group& group) {
  const Step& first = step(group.chains[0].rope);
  const auto params = std::get<RopeParams>(first.params);
  HeadsCall call;
  call.d_head = static_cast<int32_t>(params.d_head);
  call.n_rot = static_cast<int32_t>(params.n_rot);
  call.neox = params.style == RopeStyle::neox;
  call.table =
      rope_table(params, first.weights.empty() ? nullptr : weights_.plain(*first.weights[0])).table.as<float2>();
  const Step* store = group.store >= 0 ? &step(group.store) : nullptr;
  if (store) call.cache = memory_of<KvMemory>(*store);
  const auto job_of = [&](const Operand& x, int64_t offset, int64_t head_stride, int64_t n_head) {
    CHECK(call.n_job < HeadsCall::kMostJobs);
    HeadJob& job = call.jobs[call.n_job++];
    job.x = x.f32() + offset;
    job.row_stride = x.info.width;
    job.head_stride = head_stride;
    job.n_head = static_cast<int32_t>(n_head);
    return &job;
  };
  for (const Group::Chain& chain : group.chains) {
    const Operand x = operand(chain_input(plan_, chain));
    SliceParams slice{x.info.width / params.d_head, params.d_head, 0, params.d_head};
    if (chain.slice >= 0) slice = std::get<SliceParams>(step(chain.slice).params);
    HeadJob& job = *job_of(x, slice.offset, slice.stride, slice.n_group);
    if (chain.norm >= 0) {
      job.norm = weights_.plain(*step(chain.norm).weights[0]);
      job.eps = std::get<NormParams>(step(chain.norm).params).eps;
    }
    job.rotate = chain.rope >= 0;
    const Value made = chain_output(plan_, chain);
    const bool stored = store && store->in[0].id == made.id;
    if (stored) job.store = HeadJob::Store::key;
    if (!stored || read_again(plan_, group, made)) job.y = operand(made).f32();
  }
  if (store) {
    const Operand v = operand(store->in[1]);
    job_of(v, 0, params.d_head, v.info.width / params.d_head)->store = HeadJob::Store::value;
  }
  return [=](const Run& run) { prepare_heads(call, run.rows, run.stream); };
}

std::string Binder::name_of(const Group& group) const {
  std::string name;
  const auto add = [&](int s) {
    if (s >= 0) name += fmt::format("{}{}", name.empty() ? "" : "+", op_info(step(s).op).name);
  };
  const auto add_weight = [&](const Step& product) {
    const Weight& w = *product.weights[0];
    name += fmt::format(" {} [{}, {}]", type_name(w.type), w.n_out(), w.n_in());
  };
  if (group.kind == Group::Kind::heads) {
    for (const Group::Chain& chain : group.chains) add(chain.rope >= 0 ? chain.rope : chain.slice);
    add(group.store);
  } else if (!group.products.empty()) {
    name = op_info(step(group.products[0].step).op).name;
    for (const Group::Member& member : group.products) add_weight(step(member.step));
    if (group.products[0].add >= 0) name += " +add";
  } else {
    add(group.before);
    add(group.step);
    add(group.add);
  }
  return name;
}

Enqueue Binder::bind_products(const Group& group) {
  std::vector<Product> products;
  const Operand x = operand(step(group.products[0].step).in[0]);
  int64_t scratch = 0;
  for (const Group::Member& member : group.products) {
    const Step& product = step(member.step);
    const DeviceWeight& weight = weights_.get(*product.weights[0]);
    Product made{&weight, nullptr, nullptr};
    if (member.add < 0) {
      made.y = operand(product.out[0]).f32();
    } else {
      const Step& add = step(member.add);
      made.y = operand(add.out[0]).f32();
      made.add = operand(add.in[add.in[0].id == product.out[0].id ? 1 : 0]).f32();
    }
    products.push_back(made);
    scratch += matmul_workspace_bytes(weight, x.max_rows);
  }
  want_scratch(scratch);
  if (x.info.type != Dtype::act) {
    return [=, this](const Run& run) { matmul_float(products, x.f32(), x.n_row(run), workspace(), run.stream); };
  }
  const bool int4 = quantization(step(group.products[0].step).in[0]).prompt_int4;
  return [=, this](const Run& run) { matmul(products, x.acts(run, int4), workspace(), run.stream); };
}

Enqueue Binder::bind_step(const Step& step) {
  switch (step.op) {
    case Op::embed:
    case Op::gather_rows:
    case Op::store_rows:
    case Op::load_rows:
      return bind_rows(step);
    case Op::add:
    case Op::sigmoid_mul:
    case Op::swiglu:
    case Op::softcap:
    case Op::slice_heads:
    case Op::block_conv:
      return bind_elementwise(step);
    case Op::rms_norm:
    case Op::gated_norm:
      return bind_norm(step);
    case Op::rope:
      return bind_rope(step);
    case Op::kv_store:
    case Op::attention:
    case Op::block_attention:
      return bind_attention(step);
    case Op::delta_net:
      return bind_delta_net(step);
    case Op::route:
      return bind_route(step);
    case Op::matmul_experts:
      return bind_float_experts(step);
    case Op::argmax:
    case Op::top_k:
      return bind_select(step);
    case Op::sum_devices:
      return bind_sum(step);
    case Op::select_walk:
      return bind_walk(step);
    case Op::quantize:
    case Op::matmul:
    case Op::combine_experts:
      break;
  }
  CHECK(!"groups take these");
  return {};
}

Enqueue Binder::bind_rows(const Step& step) {
  if (step.op == Op::embed) {
    const DeviceWeight& table = weights_.get(*step.weights[0]);
    const Operand y = operand(step.out[0]);
    return [=, &table](const Run& run) { gather(table, run.rows.tokens, run.rows.n_tok, y.f32(), run.stream); };
  }
  if (step.op == Op::gather_rows) {
    const Operand x = operand(step.in[0]), y = operand(step.out[0]);
    return [=](const Run& run) {
      gpu::gather_rows(x.f32(), run.rows.outputs, y.f32(), run.rows.n_out, x.info.width, run.stream);
    };
  }
  const auto memory = memory_of<RowsMemory>(step);
  if (step.op == Op::load_rows) {
    const Operand y = operand(step.out[0]);
    return [=](const Run& run) { gpu::load_rows(memory, run.rows.source_rows, y.f32(), run.rows.n_tok, run.stream); };
  }
  const Operand x = operand(step.in[0]);
  const int64_t offset = std::get<RowsParams>(step.params).offset;
  return [=](const Run& run) {
    if (run.taps) gpu::store_rows(x.f32(), run.rows.tap_rows, x.n_row(run), x.info.width, memory, offset, run.stream);
  };
}

Enqueue Binder::bind_elementwise(const Step& step) {
  const Operand a = operand(step.in[0]), b = operand(step.in.back()), y = operand(step.out[0]);
  switch (step.op) {
    case Op::add:
      return [=](const Run& run) { gpu::add(a.f32(), b.f32(), y.f32(), y.n_row(run) * y.info.width, run.stream); };
    case Op::sigmoid_mul:
      return [=](const Run& run) {
        gpu::sigmoid_mul(a.f32(), b.f32(), y.f32(), y.n_row(run), y.info.width, b.info.width, run.stream);
      };
    case Op::swiglu:
      return [=](const Run& run) { gpu::swiglu(a.f32(), b.f32(), y.f32(), y.n_row(run) * y.info.width, run.stream); };
    case Op::softcap:
      return [=, params = std::get<SoftcapParams>(step.params)](const Run& run) {
        gpu::softcap(a.f32(), y.f32(), y.n_row(run) * y.info.width, params, run.stream);
      };
    case Op::slice_heads:
      return [=, params = std::get<SliceParams>(step.params)](const Run& run) {
        gpu::slice_heads(a.f32(), y.f32(), y.n_row(run), a.info.width, params, run.stream);
      };
    default:
      return [=, params = std::get<BlockConvParams>(step.params),
              base = weights_.plain(*step.weights[0])](const Run& run) {
        gpu::block_conv(a.f32(), b.f32(), base, y.f32(), run.rows, y.info.width, params, run.stream);
      };
  }
}

Enqueue Binder::bind_norm(const Step& step) {
  const auto params = std::get<NormParams>(step.params);
  const Operand x = operand(step.in[0]), z = operand(step.in.back()), y = operand(step.out[0]);
  const float* w = weights_.plain(*step.weights[0]);
  const bool gated = step.op == Op::gated_norm;
  return [=](const Run& run) {
    const int64_t n_group = x.n_row(run) * x.info.width / params.group;
    if (gated) {
      gpu::gated_norm(x.f32(), w, z.f32(), y.f32(), n_group, params.group, params.eps, run.stream);
    } else {
      gpu::rms_norm(x.f32(), w, y.f32(), n_group, params.group, params.eps, run.stream);
    }
  };
}

const Binder::RopeTable& Binder::rope_table(const RopeParams& params, const float* factors) {
  for (const auto& table : ropes_) {
    if (table->factors == factors && same_angles(table->params, params)) return *table;
  }
  auto made = std::make_unique<RopeTable>();
  made->params = params;
  made->factors = factors;
  std::vector<float> host;
  if (factors) host = read_floats(factors, params.n_rot / 2, stream_);
  const std::vector<double> turns = rope_frequencies(params, factors ? host.data() : nullptr);
  made->turns = DeviceMemory(static_cast<int64_t>(turns.size() * sizeof(double)), "rotary angles");
  made->table = DeviceMemory(limits_.n_tok * params.n_rot / 2 * static_cast<int64_t>(sizeof(float2)), "rotary angles");
  if (!turns.empty()) {
    check(
        gpuMemcpyAsync(made->turns.data(), turns.data(), turns.size() * sizeof(double), gpuMemcpyHostToDevice, stream_),
        "rotary angles");
    check(gpuStreamSynchronize(stream_), "rotary angles");  // `turns` goes
  }
  ropes_.push_back(std::move(made));
  return *ropes_.back();
}

Enqueue Binder::bind_rope(const Step& step) {
  const auto params = std::get<RopeParams>(step.params);
  const Operand x = operand(step.in[0]), y = operand(step.out[0]);
  const RopeTable& table = rope_table(params, step.weights.empty() ? nullptr : weights_.plain(*step.weights[0]));
  return [=, angles = table.table.as<float2>()](const Run& run) {
    gpu::rope(x.f32(), y.f32(), x.n_row(run), params, angles, x.map(run), run.stream);
  };
}

Enqueue Binder::bind_attention(const Step& step) {
  const auto memory = memory_of<KvMemory>(step);
  const Operand first = operand(step.in[0]);
  if (step.op == Op::kv_store) {
    const Operand v = operand(step.in[1]);
    return [=](const Run& run) { gpu::kv_store(first.f32(), v.f32(), run.rows, memory, run.stream); };
  }
  const auto params = std::get<AttentionParams>(step.params);
  if (!attention_fits(params)) {
    fail(ErrorKind::refused, "attention heads of {} columns are more than this device's kernels take", params.d_head);
  }
  want_scratch(attention_scratch_bytes(params, chip_.n_multiprocessor));
  AttentionCall call;
  call.q = first.f32();
  if (step.op == Op::block_attention) {
    call.k = operand(step.in[1]).f32();
    call.v = operand(step.in[2]).f32();
  }
  call.y = operand(step.out[0]).f32();
  call.n_multiprocessor = chip_.n_multiprocessor;
  call.shared_bytes = chip_.shared_bytes;
  return [=, this](const Run& run) {
    AttentionCall now = call;
    now.n_row = first.n_row(run);
    now.context = run.context;
    now.map = first.map(run);
    now.scratch = scratch_->memory.data();
    gpu::attention(now, params, run.rows, memory, run.stream);
  };
}

int32_t* Binder::delta_counters(int64_t n) {
  for (const DeviceMemory& made : delta_counters_) {
    if (made.bytes() == n * 4) return made.as<int32_t>();
  }
  delta_counters_.emplace_back(n * 4, "counters");
  check(gpuMemsetAsync(delta_counters_.back().data(), 0, static_cast<size_t>(n * 4), stream_), "clearing counters");
  return delta_counters_.back().as<int32_t>();
}

Enqueue Binder::bind_delta_net(const Step& step) {
  const auto memory = memory_of<DeltaMemory>(step);
  const auto params = std::get<DeltaNetParams>(step.params);
  if (!delta_net_fits(params)) {
    fail(ErrorKind::refused, "delta net heads of {}x{} are more than this device's kernels take", params.d_v,
         params.d_k);
  }
  want_scratch(delta_net_scratch_bytes(params, memory, limits_.n_tok));
  DeltaNetCall call;
  call.u = operand(step.in[0]).f32();
  call.beta = operand(step.in[1]).f32();
  call.alpha = operand(step.in[2]).f32();
  call.conv = weights_.plain(*step.weights[0]);
  call.a = weights_.plain(*step.weights[1]);
  call.dt = weights_.plain(*step.weights[2]);
  call.y = operand(step.out[0]).f32();
  call.counters = delta_counters(memory.n_slots * params.n_k_head);
  return [=, this](const Run& run) {
    DeltaNetCall now = call;
    now.scratch = scratch_->memory.as<float>();
    gpu::delta_net(now, params, run.rows, memory, run.stream);
  };
}

ExpertGroups Binder::expert_groups(Value ids, int64_t n_expert) {
  const Operand chosen = operand(ids);
  const int64_t most = chosen.max_rows * chosen.info.width;
  DeviceMemory& memory = expert_groups_[ids.id];
  if (!memory.data()) memory = DeviceMemory((n_expert + 1 + most) * 4, "the experts' rows");
  ExpertGroups groups;
  groups.n_used = chosen.info.width;
  groups.n_expert = n_expert;
  groups.ids = chosen.i32();
  groups.offsets = memory.as<int32_t>();
  groups.order = groups.offsets + n_expert + 1;
  return groups;
}

Enqueue Binder::bind_route(const Step& step) {
  const auto params = std::get<RouteParams>(step.params);
  const Operand logits = operand(step.in[0]), ids = operand(step.out[0]), weights = operand(step.out[1]);
  const ExpertGroups groups = expert_groups(step.out[0], logits.info.width);
  return [=](const Run& run) {
    gpu::route(logits.f32(), ids.i32(), weights.f32(), logits.n_row(run), logits.info.width, params, run.stream);
    ExpertGroups now = groups;
    now.n_row = ids.n_row(run) * ids.info.width;
    group_experts(now, run.stream);
  };
}

Enqueue Binder::bind_experts(const Group& group) {
  const Step& first = step(group.products[0].step);
  const Operand x = operand(first.in[0]), ids = operand(first.in[1]);
  std::vector<ExpertProduct> products;
  for (const Group::Member& member : group.products) {
    const Operand y = operand(step(member.step).out[0]);
    products.push_back({&weights_.get(*step(member.step).weights[0]), y.f32()});
    want_scratch(matmul_workspace_bytes(*products.back().weight, y.max_rows));
  }
  const ExpertGroups groups = expert_groups(first.in[1], products[0].weight->n_expert);
  const bool shared_input = x.info.multiple == 1, int4 = quantization(first.in[0]).prompt_int4;
  return [=, this](const Run& run) {
    ExpertGroups now = groups;
    now.n_row = ids.n_row(run) * ids.info.width;
    matmul_experts(products, x.acts(run, int4), shared_input, now, workspace(), run.stream);
  };
}

Enqueue Binder::bind_float_experts(const Step& step) {
  const DeviceWeight& weight = weights_.get(*step.weights[0]);
  const Operand x = operand(step.in[0]), ids = operand(step.in[1]), y = operand(step.out[0]);
  const ExpertGroups groups = expert_groups(step.in[1], weight.n_expert);
  const bool shared_input = x.info.multiple == 1;
  want_scratch(matmul_workspace_bytes(weight, y.max_rows));
  return [=, this, &weight](const Run& run) {
    ExpertGroups now = groups;
    now.n_row = ids.n_row(run) * ids.info.width;
    matmul_experts_float(weight, x.f32(), shared_input, now, y.f32(), workspace(), run.stream);
  };
}

Enqueue Binder::bind_combine(const Group& group) {
  const Step& combine = step(group.step);
  const Operand x = operand(combine.in[0]), weights = operand(combine.in[1]);
  const float* add = nullptr;
  Value made = combine.out[0];
  if (group.add >= 0) {
    const Step& addition = step(group.add);
    add = operand(addition.in[addition.in[0].id == made.id ? 1 : 0]).f32();
    made = addition.out[0];
  }
  const Operand y = operand(made);
  return [=](const Run& run) {
    gpu::combine_experts(x.f32(), weights.f32(), add, y.f32(), y.n_row(run), weights.info.width, y.info.width,
                         run.stream);
  };
}

Enqueue Binder::bind_select(const Step& step) {
  const Operand x = operand(step.in[0]), ids = operand(step.out[0]);
  const bool all = step.op == Op::top_k;
  const int32_t k = all ? std::get<TopKParams>(step.params).k : 1;
  float* values = all ? operand(step.out[1]).f32() : nullptr;
  want_scratch(top_k_scratch_bytes(x.max_rows, x.info.width, k));
  return [=, this](const Run& run) {
    gpu::top_k(x.f32(), x.n_row(run), x.info.width, k, ids.i32(), values, scratch_->memory.data(), run.stream);
  };
}

Enqueue Binder::bind_walk(const Step& step) {
  const DeviceWeight &before = weights_.get(*step.weights[0]), &after = weights_.get(*step.weights[1]);
  const Operand candidates = operand(step.in[0]), unary = operand(step.in[1]);
  const int64_t rank = before.n_in, k = candidates.info.width;
  // Scratch: ids of the anchors and candidates, then their codebook rows.
  const auto id_bytes = [](int64_t n) { return (n * 4 + 255) / 256 * 256; };
  const int64_t most = limits_.n_tok + unary.max_rows * k;
  want_scratch(id_bytes(most) + (most + unary.max_rows * k) * rank * 4);
  WalkCall call;
  call.candidates = candidates.i32();
  call.unary = unary.f32();
  call.gamma = operand(step.in[2]).f32();
  call.ids = operand(step.out[0]).i32();
  call.confidence = operand(step.out[1]).f32();
  call.scores = operand(step.out[2]).f32();
  return [=, this, &before, &after](const Run& run) {
    const int64_t n_row = unary.n_row(run), n = run.rows.n_sequence + n_row * k;
    if (n_row == 0) return;
    auto* ids = scratch_->memory.as<int32_t>();
    auto* rows = reinterpret_cast<float*>(scratch_->memory.data() + id_bytes(n));
    walk_ids(run.rows, call.candidates, n_row * k, ids, run.stream);
    gather(before, ids, n, rows, run.stream);
    gather(after, ids + run.rows.n_sequence, n_row * k, rows + n * rank, run.stream);
    WalkCall now = call;
    now.predecessors = rows;
    now.successors = rows + n * rank;
    gpu::select_walk(now, n_row, k, rank, run.rows, unary.map(run), run.stream);
  };
}

Enqueue Binder::bind_sum(const Step& step) {
  const Operand x = operand(step.in[0]), y = operand(step.out[0]);
  return [=, this](const Run& run) {
    const int64_t n = y.n_row(run) * y.info.width;
    if (n == 0) return;
    if (x.data != y.data) {
      check(gpuMemcpyAsync(y.data, x.data, static_cast<size_t>(n) * 4, gpuMemcpyDeviceToDevice, run.stream), "a sum");
    }
    membership_.sum(y.f32(), n, run.stream);
  };
}

}  // namespace onebit::gpu
