#include "plan/state.h"

#include "gguf/types.h"

namespace onebit {
namespace {

int64_t bytes_of(const KvState& kv, const StateSizes& sizes) {
  return 2 * cache_bytes(sizes.cache, sizes.n_pages * kPageTokens * kv.n_head_kv * kv.d_head);
}

int64_t bytes_of(const DeltaNetState& net, const StateSizes& sizes) {
  const int64_t conv = (net.n_tap - 1) * net.n_channel;
  const int64_t matrix = net.n_v_head * net.d_v * net.d_k;
  const int64_t tape_row = net.n_channel + 2 * net.n_v_head;
  return sizes.n_slots * (conv + matrix + sizes.n_tape * tape_row) * 4;
}

int64_t bytes_of(const RowsState& rows, const StateSizes& sizes) { return sizes.n_rows * rows.width * 4; }

}  // namespace

int64_t cache_bytes(CacheType type, int64_t n) {
  switch (type) {
    case CacheType::f32:
      return 4 * n;
    case CacheType::f16:
      return 2 * n;
    case CacheType::q8_0:
      return row_bytes(BlockType::q8_0, n);
  }
  return 0;
}

int64_t state_bytes(const State& state, const StateSizes& sizes) {
  return std::visit([&](const auto& kind) { return bytes_of(kind, sizes); }, state.kind);
}

int64_t state_bytes(const std::vector<State>& states, const StateSizes& sizes) {
  int64_t total = 0;
  for (const State& state : states) total += state_bytes(state, sizes);
  return total;
}

}  // namespace onebit
