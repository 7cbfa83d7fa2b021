// Where values live in a program's scratch buffer: first fit over lifetimes, largest row counts.
#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace onebit {
namespace {

constexpr int64_t kAlign = 64;

struct Block {
  int64_t begin, end;  // bytes
  int32_t last_step;   // last step that reads it
};

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// For every value the index of the last step that touches it; outputs live past the last step.
std::vector<int32_t> last_uses(const Plan& plan) {
  std::vector<int32_t> last(plan.values().size(), -1);
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    for (Value v : plan.steps()[s].out) last[v.id] = static_cast<int32_t>(s);
    for (Value v : plan.steps()[s].in) last[v.id] = static_cast<int32_t>(s);
  }
  for (const PlanOutput& output : plan.outputs()) last[output.value.id] = static_cast<int32_t>(plan.steps().size());
  return last;
}

/// The lowest gap of `bytes` among live blocks (kept sorted by begin).
int64_t first_fit(std::vector<Block>& live, int64_t bytes, int32_t last_step) {
  int64_t at = 0;
  size_t i = 0;
  for (; i < live.size() && live[i].begin - at < bytes; ++i) at = std::max(at, live[i].end);
  live.insert(live.begin() + static_cast<int64_t>(i), {at, at + bytes, last_step});
  return at;
}

bool same_storage(const ValueInfo& a, const ValueInfo& b) {
  return a.type == b.type && a.rows == b.rows && a.multiple == b.multiple && a.width == b.width;
}

}  // namespace

int64_t value_row_bytes(const ValueInfo& info) {
  return info.type == Dtype::act ? info.width / 32 * 44 : info.width * 4;
}

Arena place_values(const Plan& plan, const PlanLimits& limits) {
  CHECK(limits.n_tok > 0 && limits.n_out > 0);
  const std::vector<int32_t> last = last_uses(plan);
  Arena arena;
  arena.offset.assign(plan.values().size(), -1);
  std::vector<Block> live;
  const auto place = [&](Value v) {
    const int64_t bytes = aligned(max_rows(plan.info(v), limits) * value_row_bytes(plan.info(v)));
    int64_t& offset = arena.offset[static_cast<size_t>(v.id)];
    offset = first_fit(live, bytes, last[v.id]);
    arena.bytes = std::max(arena.bytes, offset + bytes);
  };
  for (Value v : plan.entries()) place(v);
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    const Step& step = plan.steps()[s];
    const auto now = static_cast<int32_t>(s);
    std::erase_if(live, [&](const Block& block) { return block.last_step < now; });
    for (size_t o = 0; o < step.out.size(); ++o) {
      const int32_t id = step.out[o].id;
      const ValueInfo& info = plan.info(step.out[o]);
      if (o == 0 && op_info(step.op).in_place && last[step.in[0].id] == now &&
          same_storage(info, plan.info(step.in[0]))) {
        arena.offset[id] = arena.offset[step.in[0].id];
        for (Block& block : live) {
          if (block.begin == arena.offset[id]) block.last_step = last[id];
        }
        continue;
      }
      place(step.out[o]);
    }
  }
  return arena;
}

}  // namespace onebit
