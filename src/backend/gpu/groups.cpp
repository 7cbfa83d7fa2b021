#include "backend/gpu/groups.h"

#include <algorithm>

#include "backend/gpu/matmul.h"

namespace onebit::gpu {
namespace {

/// Who makes and who reads each value of a plan; an output of the plan has one more reader.
struct Uses {
  std::vector<int> made_by, n_reader;

  explicit Uses(const Plan& plan) : made_by(plan.values().size(), -1), n_reader(plan.values().size(), 0) {
    for (size_t s = 0; s < plan.steps().size(); ++s) {
      for (Value v : plan.steps()[s].out) made_by[index(v)] = static_cast<int>(s);
      for (Value v : plan.steps()[s].in) ++n_reader[index(v)];
    }
    for (const PlanOutput& output : plan.outputs()) ++n_reader[index(output.value)];
  }
  static size_t index(Value v) { return static_cast<size_t>(v.id); }
};

class Grouping {
 public:
  explicit Grouping(const Plan& plan) : plan_(plan), uses_(plan), taken_(plan.steps().size(), false) {}

  std::vector<Group> run() {
    find_chains();
    for (int s = 0; s < n_step(); ++s) {
      if (!taken_[static_cast<size_t>(s)]) groups_.push_back(group_at(s));
    }
    return std::move(groups_);
  }

 private:
  int n_step() const { return static_cast<int>(plan_.steps().size()); }
  const Step& step(int s) const { return plan_.steps()[static_cast<size_t>(s)]; }
  void take(int s) { taken_[static_cast<size_t>(s)] = true; }

  Group group_at(int s) {
    take(s);
    switch (step(s).op) {
      case Op::quantize:
        return {.kind = Group::Kind::acts, .step = s};
      case Op::rope:
        return heads_at(s);
      case Op::combine_experts:
        return {.step = s, .add = addition_to(s, s)};
      case Op::matmul:
        return products_at(s);
      case Op::matmul_experts:
        return experts_at(s);
      case Op::sigmoid_mul:
        if (plan_.info(step(s).in[1]).width != plan_.info(step(s).in[0]).width) return {.step = s};
        return before_quantisation(s);
      case Op::rms_norm:
      case Op::gated_norm:
      case Op::swiglu:
        return before_quantisation(s);
      default:
        return {.step = s};
    }
  }

  Group before_quantisation(int s) {
    const Value made = step(s).out[0];
    for (int q = s + 1; q < n_step(); ++q) {
      if (step(q).op != Op::quantize || step(q).in[0].id != made.id || taken_[static_cast<size_t>(q)]) continue;
      take(q);
      const bool keep = uses_.n_reader[Uses::index(made)] > 1;
      return {.kind = Group::Kind::acts, .step = q, .before = s, .keep = keep};
    }
    return {.step = s};
  }

  /// The step that makes `v`, if it is `op` and nothing else reads v; -1 otherwise.
  int only_from(Value v, Op op) const {
    const int s = uses_.made_by[Uses::index(v)];
    return s >= 0 && step(s).op == op && uses_.n_reader[Uses::index(v)] == 1 ? s : -1;
  }
  /// Kernels of heads know token rows only.
  bool by_tokens(Value v) const { return plan_.info(v).rows == Rows::tokens && plan_.info(v).multiple == 1; }

  /// For every rotation what only it reads: the norm of its heads, and their selection.
  void find_chains() {
    chains_.resize(plan_.steps().size());
    for (int s = 0; s < n_step(); ++s) {
      if (step(s).op != Op::rope || !by_tokens(step(s).in[0])) continue;
      const auto& rope = std::get<RopeParams>(step(s).params);
      Group::Chain& chain = chains_[static_cast<size_t>(s)];
      chain.rope = s;
      Value from = step(s).in[0];
      const int norm = only_from(from, Op::rms_norm);
      if (norm >= 0 && std::get<NormParams>(step(norm).params).group == rope.d_head) {
        chain.norm = norm;
        from = step(norm).in[0];
        take(norm);
      }
      const int slice = only_from(from, Op::slice_heads);
      if (slice >= 0 && std::get<SliceParams>(step(slice).params).length == rope.d_head) {
        chain.slice = slice;
        take(slice);
      }
    }
    gates_.resize(plan_.steps().size());
    for (const Group::Chain& chain : chains_) {
      if (chain.slice >= 0) find_gates(chain);
    }
  }

  /// Other selections of whole heads from what a chain selects from, taken by the chain's group: they are read later.
  void find_gates(const Group::Chain& chain) {
    const int64_t d_head = std::get<RopeParams>(step(chain.rope).params).d_head;
    const Value from = step(chain.slice).in[0];
    for (int s = 0; s < n_step(); ++s) {
      if (step(s).op != Op::slice_heads || step(s).in[0].id != from.id || taken_[static_cast<size_t>(s)]) continue;
      std::vector<int>& gates = gates_[static_cast<size_t>(chain.rope)];
      if (std::get<SliceParams>(step(s).params).length != d_head || gates.size() == 2) continue;
      if (first_reader(step(s).out[0]) < chain.rope) continue;
      take(s);
      gates.push_back(s);
    }
  }
  int first_reader(Value v) const {
    for (int s = 0; s < n_step(); ++s) {
      for (Value in : step(s).in) {
        if (in.id == v.id) return s;
      }
    }
    return n_step();
  }

  /// Rotations one after another, the store of what they made, and other heads of what they select from.
  Group heads_at(int first) {
    if (!by_tokens(step(first).in[0])) return {.step = first};
    Group group{.kind = Group::Kind::heads};
    group.chains.push_back(chains_[static_cast<size_t>(first)]);
    int next = next_free(first);
    if (next < n_step() && step(next).op == Op::rope && by_tokens(step(next).in[0]) && same_turns(first, next) &&
        ready(chain_input(plan_, chains_[static_cast<size_t>(next)]), first)) {
      take(next);
      group.chains.push_back(chains_[static_cast<size_t>(next)]);
      next = next_free(next);
    }
    for (const Group::Chain& chain : group.chains) {
      if (next < n_step() && step(next).op == Op::kv_store && step(next).in[0].id == step(chain.rope).out[0].id &&
          ready(step(next).in[1], first)) {
        group.store = next;
      }
    }
    if (group.store >= 0) take(group.store);
    for (size_t i = 0, n = group.chains.size(); i < n; ++i) {
      for (const int gate : gates_[static_cast<size_t>(group.chains[i].rope)]) group.chains.push_back({.slice = gate});
    }
    return group;
  }

  int next_free(int s) const {
    do {
      ++s;
    } while (s < n_step() && taken_[static_cast<size_t>(s)]);
    return s;
  }
  /// Whether a value is there when a group at step `at` runs: made by an earlier step, or by a product taken along.
  bool ready(Value v, int at) const {
    const int s = uses_.made_by[Uses::index(v)];
    return s < at || (taken_[static_cast<size_t>(s)] && step(s).op == Op::matmul);
  }

  bool same_turns(int a, int b) const {
    RopeParams p = std::get<RopeParams>(step(a).params);
    const auto& q = std::get<RopeParams>(step(b).params);
    return step(a).weights == step(b).weights && p.d_head == q.d_head && p.n_rot == q.n_rot && p.theta == q.theta &&
           p.style == q.style && p.linear_factor == q.linear_factor && p.yarn_factor == q.yarn_factor;
  }

  Group products_at(int first) {
    Group group{.kind = Group::Kind::products};
    for (int s = first; s < n_step(); ++s) {
      const bool free = s == first || !taken_[static_cast<size_t>(s)];
      if (step(s).op != Op::matmul || step(s).in[0].id != step(first).in[0].id || !free) continue;
      take(s);
      group.products.push_back({s, addition_to(s, first)});
    }
    return group;
  }

  /// Products of the same quantised input for the same experts.
  Group experts_at(int first) {
    if (plan_.info(step(first).in[0]).type != Dtype::act) return {.step = first};
    Group group{.kind = Group::Kind::experts};
    group.products.push_back({first});
    for (int s = first + 1; s < n_step(); ++s) {
      if (taken_[static_cast<size_t>(s)] || step(s).op != Op::matmul_experts) continue;
      if (step(s).in[0].id != step(first).in[0].id || step(s).in[1].id != step(first).in[1].id) continue;
      take(s);
      group.products.push_back({s});
    }
    return group;
  }

  /// The step that adds something made before step `first` to the product of step s, if nothing else reads it.
  int addition_to(int s, int first) {
    const Value made = step(s).out[0];
    if (uses_.n_reader[Uses::index(made)] != 1) return -1;
    for (int a = s + 1; a < n_step(); ++a) {
      const Step& add = step(a);
      if (add.op != Op::add || (add.in[0].id != made.id && add.in[1].id != made.id)) continue;
      const Value other = add.in[add.in[0].id == made.id ? 1 : 0];
      if (other.id == made.id || uses_.made_by[Uses::index(other)] >= first) return -1;
      take(a);
      return a;
    }
    return -1;
  }

  const Plan& plan_;
  Uses uses_;
  std::vector<bool> taken_;
  std::vector<Group::Chain> chains_;     // by the step of their rotation
  std::vector<std::vector<int>> gates_;  // likewise: selections that come along
  std::vector<Group> groups_;
};

/// A range of the arena that is in use.
struct Block {
  int64_t begin, end;
  int last_group;  // the last one that needs it
};

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// The lowest gap of `bytes` among the blocks in use, which are sorted by begin.
int64_t first_fit(std::vector<Block>& used, int64_t bytes, int last_group) {
  int64_t at = 0;
  size_t i = 0;
  for (; i < used.size() && used[i].begin - at < bytes; ++i) at = std::max(at, used[i].end);
  used.insert(used.begin() + static_cast<int64_t>(i), {at, at + bytes, last_group});
  return at;
}

int64_t value_bytes(const ValueInfo& info, const PlanLimits& limits) {
  const int64_t n_row = max_rows(info, limits);
  return aligned(info.type == Dtype::act ? acts_bytes(n_row, info.width) : n_row * info.width * 4);
}

bool same_storage(const ValueInfo& a, const ValueInfo& b) {
  return a.type == b.type && a.rows == b.rows && a.multiple == b.multiple && a.width == b.width;
}

}  // namespace

std::vector<Group> group_steps(const Plan& plan) { return Grouping(plan).run(); }

Value chain_input(const Plan& plan, const Group::Chain& chain) {
  const int first = chain.slice >= 0 ? chain.slice : chain.norm >= 0 ? chain.norm : chain.rope;
  return plan.steps()[static_cast<size_t>(first)].in[0];
}

Value chain_output(const Plan& plan, const Group::Chain& chain) {
  const int last = chain.rope >= 0 ? chain.rope : chain.slice;
  return plan.steps()[static_cast<size_t>(last)].out[0];
}

bool read_again(const Plan& plan, const Group& group, Value made) {
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    for (Value v : plan.steps()[s].in) {
      if (v.id == made.id && static_cast<int>(s) != group.store) return true;
    }
  }
  return std::any_of(plan.outputs().begin(), plan.outputs().end(),
                     [made](const PlanOutput& output) { return output.value.id == made.id; });
}

Access access_of(const Plan& plan, const Group& group) {
  const auto& steps = plan.steps();
  Access access;
  if (group.kind == Group::Kind::experts) {
    access.reads = steps[static_cast<size_t>(group.products[0].step)].in;
    for (const Group::Member& member : group.products) {
      access.writes.push_back(steps[static_cast<size_t>(member.step)].out[0]);
    }
    return access;
  }
  if (group.kind == Group::Kind::products) {
    for (const Group::Member& member : group.products) {
      const Step& product = steps[static_cast<size_t>(member.step)];
      access.reads.push_back(product.in[0]);
      if (member.add < 0) {
        access.writes.push_back(product.out[0]);
        continue;
      }
      const Step& add = steps[static_cast<size_t>(member.add)];
      const Value other = add.in[add.in[0].id == product.out[0].id ? 1 : 0];
      access.reads.push_back(other);
      access.writes.push_back(add.out[0]);
      if (group.products.size() == 1) access.over = other;
    }
    return access;
  }
  if (group.kind == Group::Kind::heads) {
    const Step* store = group.store >= 0 ? &steps[static_cast<size_t>(group.store)] : nullptr;
    for (const Group::Chain& chain : group.chains) {
      access.reads.push_back(chain_input(plan, chain));
      const Value made = chain_output(plan, chain);
      // A key that is only stored has no place of its own.
      if (!store || store->in[0].id != made.id || read_again(plan, group, made)) access.writes.push_back(made);
    }
    if (store) access.reads.push_back(store->in[1]);
    return access;
  }
  const Step& step = steps[static_cast<size_t>(group.step)];
  access.reads = step.in;
  access.writes = step.out;
  if (group.kind == Group::Kind::acts && group.before >= 0) {
    const Step& before = steps[static_cast<size_t>(group.before)];
    access.reads = before.in;
    if (group.keep) access.writes.push_back(before.out[0]);
  }
  if (group.add >= 0) {
    const Step& add = steps[static_cast<size_t>(group.add)];
    access.over = add.in[add.in[0].id == step.out[0].id ? 1 : 0];
    access.reads.push_back(access.over);
    access.writes = add.out;
  }
  if (group.kind == Group::Kind::step && op_info(step.op).in_place) access.over = step.in[0];
  return access;
}

Placement place_groups(const Plan& plan, const std::vector<Group>& groups, const PlanLimits& limits) {
  std::vector<int> last(plan.values().size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    const Access access = access_of(plan, groups[g]);
    for (Value v : access.reads) last[Uses::index(v)] = static_cast<int>(g);
    for (Value v : access.writes) last[Uses::index(v)] = static_cast<int>(g);
  }
  for (const PlanOutput& output : plan.outputs()) last[Uses::index(output.value)] = static_cast<int>(groups.size());

  Placement placement;
  placement.offset.assign(plan.values().size(), -1);
  std::vector<Block> used;
  const auto place = [&](Value v) {
    const int64_t bytes = value_bytes(plan.info(v), limits);
    int64_t& offset = placement.offset[Uses::index(v)];
    offset = first_fit(used, bytes, last[Uses::index(v)]);
    placement.bytes = std::max(placement.bytes, offset + bytes);
  };
  for (Value v : plan.entries()) place(v);
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto now = static_cast<int>(g);
    const Access access = access_of(plan, groups[g]);
    std::erase_if(used, [&](const Block& block) { return block.last_group < now; });
    for (size_t i = 0; i < access.writes.size(); ++i) {
      const size_t id = Uses::index(access.writes[i]);
      const ValueInfo& info = plan.values()[id];
      if (i == 0 && access.over.id >= 0 && last[Uses::index(access.over)] == now &&
          same_storage(info, plan.info(access.over))) {
        placement.offset[id] = placement.offset[Uses::index(access.over)];
        for (Block& block : used) {
          if (block.begin == placement.offset[id]) block.last_group = last[id];
        }
        continue;
      }
      place(access.writes[i]);
    }
  }
  return placement;
}

}  // namespace onebit::gpu
