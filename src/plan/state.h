// What lives on a device between batches: attention caches, recurrent states with their tape, and buffers of rows.
// A State is a description; the backend's StatePool owns the memory.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace onebit {

/// Cached positions are kept in pages of this many tokens; a sequence lists the pages of its positions in order.
inline constexpr int64_t kPageTokens = 64;

/// How keys and values are kept. q8_0: blocks of 32 elements of a head, as gguf/blocks.h rounds them.
enum class CacheType : uint8_t { f32, f16, q8_0 };

/// Bytes of `n` elements; of q8_0 a multiple of 32.
int64_t cache_bytes(CacheType type, int64_t n);

/// Keys and values of one attention layer: [n_pages, kPageTokens, n_head_kv * d_head] each.
struct KvState {
  int64_t n_head_kv = 0, d_head = 0;
};
/// One gated delta net layer: per slot the convolution's last rows [n_tap-1, n_channel], S [n_v_head, d_v, d_k], both
/// f32, and a tape of at most StateSizes::n_tape rows of (u [n_channel], beta, alpha [n_v_head]).
struct DeltaNetState {
  int64_t n_channel = 0, n_tap = 4, n_v_head = 0, d_k = 0, d_v = 0;
};
/// Rows written by one program and read by another: [StateSizes::n_rows, width] f32.
struct RowsState {
  int64_t width = 0;
};

struct State {
  std::string name;
  std::variant<KvState, DeltaNetState, RowsState> kind;
};

/// How much of everything a pool holds.
struct StateSizes {
  int64_t n_pages = 0;  // pages of every KvState
  int64_t n_slots = 0;  // slots of every DeltaNetState
  int64_t n_tape = 0;   // tape rows per slot
  int64_t n_rows = 0;   // rows of every RowsState
  CacheType cache = CacheType::f16;
};

/// Bytes that `state` needs at `sizes`; the same formula that every backend allocates by.
int64_t state_bytes(const State& state, const StateSizes& sizes);
int64_t state_bytes(const std::vector<State>& states, const StateSizes& sizes);

}  // namespace onebit
