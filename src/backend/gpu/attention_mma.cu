// Attention over f16 caches on the matrix units (m16n8k16, f32 sums). A warp takes 16 queries that share a key head:
// rows x heads of one sequence, so several rows of a decode or verify batch and all heads of a group read a key once.
//
// Keys and values become operand registers 16 bytes a load: the order of columns in a
// contraction is free, so each lane's four operand words are 8 neighbouring columns of a key, or 8 neighbouring
// positions of a value (values are stored transposed in a page). Queries and weights are f32 split in two halves of
// f16 each, so products are exact to about 2^-22 and only the cache rounds.
//
// Two shapes of a block: its four warps share 16 queries and each page, which is copied to shared memory while another
// is worked on (decoding; pages are further divided over blocks, and a second launch adds the parts and the drafter's
// own rows), or each has 16 queries of its own (prompts; the pages that the four read are the same and come from L1).
// Cost: 4 x 64 x 16 x d multiply-adds a page, twice over for the two halves; bytes: a page of the cache per block.
#include <algorithm>

#include "backend/gpu/attention.h"
#include "backend/gpu/device.cuh"

namespace onebit::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kQueries = 16;  // of a warp
constexpr int kPage = static_cast<int>(kPageTokens);
constexpr int kPad =
    32;  // halves between rows of queries in shared memory: 16-byte loads of 8 lanes meet no bank twice
constexpr float kLog2e = 1.4426950408889634f;
constexpr int kMostOwnRows = 1024;  // of a sequence of block_attention

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if !defined(__HIP__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// x and y as f16, and what that loses as f16.
__device__ inline void split(float x, float y, uint32_t& high, uint32_t& low) {
  const __half2 h = __floats2half2_rn(x, y);
  const float2 back = __half22float2(h);
  const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
  high = *reinterpret_cast<const uint32_t*>(&h);
  low = *reinterpret_cast<const uint32_t*>(&l);
}

/// 16 queries of one sequence and key head.
struct Tile {
  int sequence = -1;  // -1: past the last tile
  int first = 0;      // index of its first query among the sequence's row x head-of-group queries

  __device__ static Tile find(int tile, const BatchRows& rows, int group) {
    for (int s = 0; s < rows.n_sequence; ++s) {
      const int n = (rows.sequences[s].n_tok * group + kQueries - 1) / kQueries;
      if (tile < n) return {s, tile * kQueries};
      tile -= n;
    }
    return {};
  }
};

/// Upper bound of the tiles of any batch with these counts; exact for one sequence up to the last.
__host__ __device__ inline int64_t most_tiles(int64_t n_tok, int64_t n_sequence, int64_t group) {
  return (n_tok * group + n_sequence * (kQueries - 1)) / kQueries;
}

template <int kD>
struct Shared {
  __half high[kQueries][kD + kPad], low[kQueries][kD + kPad];
};

/// The running result of a warp: lane l has rows l/4 and l/4 + 8.
template <int kD>
struct Result {
  float y[kD / 8][4] = {};
  float peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

template <int kD>
__device__ void load_queries(const AttentionCall& call, const AttentionParams& params, const DeviceSequence& s,
                             const Tile& tile, int kv_head, int group, Shared<kD>& to, int thread, int n_thread) {
#pragma unroll 8
  for (int i = thread; i < kQueries * kD / 2; i += n_thread) {
    const int m = i / (kD / 2), c = i % (kD / 2) * 2, query = tile.first + m;
    float2 q = make_float2(0, 0);
    if (query < s.n_tok * group) {
      const int64_t row = s.row + query / group, head = kv_head * group + query % group;
      q = *reinterpret_cast<const float2*>(call.q + (row * params.n_head + head) * kD + c);
    }
    uint32_t high, low;
    split(q.x, q.y, high, low);
    *reinterpret_cast<uint32_t*>(&to.high[m][c]) = high;
    *reinterpret_cast<uint32_t*>(&to.low[m][c]) = low;
  }
}

/// Positions [first, end) of the cache as one query sees them.
struct Range {
  int first, end;
};

__device__ inline Range range_of(const AttentionCall& call, const AttentionParams& params, const DeviceSequence& s,
                                 int query, int group) {
  const int pos = s.pos + min(query / group, s.n_tok - 1), window = static_cast<int>(params.window);
  return {window > 0 ? max(0, pos - window + 1) : 0, call.k ? s.pos : pos + 1};
}

/// scores [16 queries, 64 positions]: word w of half h of the page belongs to scores[4 h + w]; a lane has positions
/// 32 h + 8 (lane % 4) + 2 w, + 1 for rows lane / 4 (elements 0, 1) and lane / 4 + 8 (elements 2, 3).
template <int kD>
__device__ void score_page(const __half* keys, const Shared<kD>& q, float (&scores)[8][4]) {
  const int lane = threadIdx.x % kWarp, t = lane % 4, c = lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0;
#pragma unroll(kD > 128 ? 2 : 4)
  for (int i = 0; i < kD / 32; ++i) {
    const int column = 32 * i + 8 * t;
    uint4 k[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int position = 32 * (j / 4) + c / 2 * 8 + 2 * (j % 4) + c % 2;
      k[j] = *reinterpret_cast<const uint4*>(keys + position * kD + column);
    }
    const uint4 h0 = *reinterpret_cast<const uint4*>(&q.high[c][column]);
    const uint4 h1 = *reinterpret_cast<const uint4*>(&q.high[c + 8][column]);
    const uint4 l0 = *reinterpret_cast<const uint4*>(&q.low[c][column]);
    const uint4 l1 = *reinterpret_cast<const uint4*>(&q.low[c + 8][column]);
    const uint32_t high[2][4] = {{h0.x, h1.x, h0.y, h1.y}, {h0.z, h1.z, h0.w, h1.w}};
    const uint32_t low[2][4] = {{l0.x, l1.x, l0.y, l1.y}, {l0.z, l1.z, l0.w, l1.w}};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      mma(scores[j], high[0], k[j].x, k[j].y);
      mma(scores[j], low[0], k[j].x, k[j].y);
      mma(scores[j], high[1], k[j].z, k[j].w);
      mma(scores[j], low[1], k[j].z, k[j].w);
    }
  }
}

/// Scores of kTiles x 8 positions become weights; the result so far is scaled to the new peak. position_of(tile, e): of
/// the lane's element e of a tile.
template <int kD, int kTiles, class Position>
__device__ void weigh(float (&scores)[kTiles][4], float scale, Position position_of, const Range (&ranges)[2],
                      Result<kD>& result) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // row lane / 4, then lane / 4 + 8
    float top = result.peak[half];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int pos = position_of(j, e);
        float& score = scores[j][2 * half + e];
        score = pos >= ranges[half].first && pos < ranges[half].end ? score * scale : -INFINITY;
        top = fmaxf(top, score);
      }
    }
    top = fmaxf(top, shfl_xor(top, 1));
    top = fmaxf(top, shfl_xor(top, 2));
    const float base = top == -INFINITY ? 0.0f : top;  // nothing visible yet
    const float shrink = exp2f((result.peak[half] - base) * kLog2e);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[j][2 * half + e];
        score = exp2f((score - base) * kLog2e);
        sum += score;
      }
    }
    result.sum[half] = result.sum[half] * shrink + sum;
    result.peak[half] = top;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      result.y[n][2 * half] *= shrink;
      result.y[n][2 * half + 1] *= shrink;
    }
  }
}

/// A row's four lanes have parts of its sum.
template <int kD>
__device__ void finish_sums(Result<kD>& result) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    result.sum[half] += shfl_xor(result.sum[half], 1);
    result.sum[half] += shfl_xor(result.sum[half], 2);
  }
}

/// The words of `v` at positions from `end` on become zero: what lies there was never written by this sequence.
__device__ inline void clear_from(uint4& v, int position, int end) {
  uint32_t* words = reinterpret_cast<uint32_t*>(&v);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int p = position + 2 * w;
    words[w] = p >= end ? 0 : p + 1 >= end ? words[w] & 0xffffu : words[w];
  }
}

/// result += weights [16, 64] times the page's values; `seen`: positions of the page that were written.
template <int kD>
__device__ void add_values(const __half* values, const float (&weights)[8][4], int seen, Result<kD>& result) {
  const int lane = threadIdx.x % kWarp, t = lane % 4, c = lane / 4;
  uint32_t high[4][4], low[4][4];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int at = j % 2 * 2;
    split(weights[j][0], weights[j][1], high[j / 2][at], low[j / 2][at]);
    split(weights[j][2], weights[j][3], high[j / 2][at + 1], low[j / 2][at + 1]);
  }
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    const __half* column = values + (8 * n + c) * kPage + 8 * t;
    uint4 v0 = *reinterpret_cast<const uint4*>(column);
    uint4 v1 = *reinterpret_cast<const uint4*>(column + 32);
    if (seen < kPage) {
      clear_from(v0, 8 * t, seen);
      clear_from(v1, 32 + 8 * t, seen);
    }
    mma(result.y[n], high[0], v0.x, v0.y);
    mma(result.y[n], low[0], v0.x, v0.y);
    mma(result.y[n], high[1], v0.z, v0.w);
    mma(result.y[n], low[1], v0.z, v0.w);
    mma(result.y[n], high[2], v1.x, v1.y);
    mma(result.y[n], low[2], v1.x, v1.y);
    mma(result.y[n], high[3], v1.z, v1.w);
    mma(result.y[n], low[3], v1.z, v1.w);
  }
}

/// Pages [first, end) in steps of `stride` for the warp's 16 queries.
template <int kD>
__device__ void walk_pages(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows,
                           const KvMemory& memory, const DeviceSequence& s, const Tile& tile, int kv_head, int group,
                           const Shared<kD>& q, int first, int end, int stride, Result<kD>& result) {
  const int row = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  const Range ranges[2] = {range_of(call, params, s, tile.first + row, group),
                           range_of(call, params, s, tile.first + row + 8, group)};
  const int seen_end = range_of(call, params, s, tile.first + kQueries - 1, group).end;
  for (int i = first; i < end; i += stride) {
    const int64_t page = static_cast<int64_t>(rows.pages[s.first_page + i]) * memory.n_head_kv + kv_head;
    float scores[8][4];
    score_page<kD>(reinterpret_cast<const __half*>(memory.keys) + page * kPage * kD, q, scores);
    weigh<kD, 8>(
        scores, params.scale, [&](int j, int e) { return i * kPage + 32 * (j / 4) + 8 * t + 2 * (j % 4) + e; }, ranges,
        result);
    add_values<kD>(reinterpret_cast<const __half*>(memory.values) + page * kPage * kD, scores, seen_end - i * kPage,
                   result);
  }
  finish_sums<kD>(result);
}

/// Pages that any query of the tile sees, without missing ones at the front.
__device__ inline Range pages_of(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows,
                                 const DeviceSequence& s, const Tile& tile, int group) {
  Range pages{range_of(call, params, s, tile.first, group).first / kPage,
              (range_of(call, params, s, tile.first + kQueries - 1, group).end + kPage - 1) / kPage};
  while (pages.first < pages.end && rows.pages[s.first_page + pages.first] < 0) ++pages.first;
  return pages;
}

/// Prompts. Grid (tiles / kWarps, key heads).
template <int kD>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    attend_rows(AttentionCall call, AttentionParams params, BatchRows rows, KvMemory memory) {
  wait_for_previous();
  GPU_DYNAMIC_SHARED(uint8_t, bytes);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, kv_head = blockIdx.y;
  const int group = static_cast<int>(params.n_head / params.n_head_kv);
  Shared<kD>& q = reinterpret_cast<Shared<kD>*>(bytes)[warp];
  // Later tiles see more: they come first, so that the longest do not start last.
  const int tile_index = (static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x)) * kWarps + warp;
  const Tile tile = Tile::find(tile_index, rows, group);
  if (tile.sequence < 0) return;
  const DeviceSequence s = rows.sequences[tile.sequence];
  load_queries<kD>(call, params, s, tile, kv_head, group, q, lane, kWarp);
  sync_warp();
  Result<kD> result;
  const Range pages = pages_of(call, params, rows, s, tile, group);
  walk_pages<kD>(call, params, rows, memory, s, tile, kv_head, group, q, pages.first, pages.end, 1, result);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = tile.first + lane / 4 + 8 * half;
    if (query >= s.n_tok * group) continue;
    const int64_t row = s.row + query / group, head = kv_head * group + query % group;
    float* y = call.y + (row * params.n_head + head) * kD;
    const float factor = 1.0f / result.sum[half];
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      *reinterpret_cast<float2*>(y + 8 * n + 2 * (lane % 4)) =
          make_float2(result.y[n][2 * half] * factor, result.y[n][2 * half + 1] * factor);
    }
  }
}

/// What a block of attend_split leaves: sums not yet divided, and each query's peak and sum.
template <int kD>
struct Part {
  float y[kQueries][kD];
  float peak[kQueries], sum[kQueries];
};

/// A page of one key head. Rows keep their order; odd rows swap the halves of each 128 bytes, so that the lanes of a
/// read, which have two neighbouring rows, meet no bank twice.
template <int kD>
struct PageCopy {
  __half keys[kPage * kD];    // [position, d_head]
  __half values[kPage * kD];  // [d_head, position]

  __device__ static int chunk(int row, int i) { return i ^ (row & 1) << 2; }
  __device__ void start(const KvMemory& memory, int64_t page) {
    const __half* k = reinterpret_cast<const __half*>(memory.keys) + page * kPage * kD;
    const __half* v = reinterpret_cast<const __half*>(memory.values) + page * kPage * kD;
#pragma unroll 8
    for (int i = threadIdx.x; i < kPage * kD / 8; i += kWarps * kWarp) {
      const int key_row = i / (kD / 8), value_row = i / (kPage / 8);
      copy_async<16>(keys + key_row * kD + 8 * chunk(key_row, i % (kD / 8)), k + 8 * i);
      copy_async<16>(values + value_row * kPage + 8 * chunk(value_row, i % (kPage / 8)), v + 8 * i);
    }
  }
};

/// Warp w's 16 positions of a page: the two operand words 2 (w % 2), + 1 of half w / 2 (see score_page()).
__device__ inline int quarter_position(int warp, int word, int column) {
  return 32 * (warp / 2) + column / 2 * 8 + 2 * (2 * (warp % 2) + word) + column % 2;
}

template <int kD>
__device__ void score_quarter(const PageCopy<kD>& page, const Shared<kD>& q, int warp, float (&scores)[2][4]) {
  const int lane = threadIdx.x % kWarp, t = lane % 4, c = lane / 4;
#pragma unroll
  for (int w = 0; w < 2; ++w) scores[w][0] = scores[w][1] = scores[w][2] = scores[w][3] = 0;
#pragma unroll 4
  for (int i = 0; i < kD / 32; ++i) {
    const int column = 32 * i + 8 * t;
    const uint4 h0 = *reinterpret_cast<const uint4*>(&q.high[c][column]);
    const uint4 h1 = *reinterpret_cast<const uint4*>(&q.high[c + 8][column]);
    const uint4 l0 = *reinterpret_cast<const uint4*>(&q.low[c][column]);
    const uint4 l1 = *reinterpret_cast<const uint4*>(&q.low[c + 8][column]);
    const uint32_t high[2][4] = {{h0.x, h1.x, h0.y, h1.y}, {h0.z, h1.z, h0.w, h1.w}};
    const uint32_t low[2][4] = {{l0.x, l1.x, l0.y, l1.y}, {l0.z, l1.z, l0.w, l1.w}};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const int row = quarter_position(warp, w, c);
      const uint4 k = *reinterpret_cast<const uint4*>(page.keys + row * kD + 8 * page.chunk(row, 4 * i + t));
      mma(scores[w], high[0], k.x, k.y);
      mma(scores[w], low[0], k.x, k.y);
      mma(scores[w], high[1], k.z, k.w);
      mma(scores[w], low[1], k.z, k.w);
    }
  }
}

template <int kD>
__device__ void add_quarter(const PageCopy<kD>& page, const float (&weights)[2][4], int warp, int seen,
                            Result<kD>& result) {
  const int lane = threadIdx.x % kWarp, t = lane % 4, c = lane / 4;
  uint32_t high[4], low[4];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    split(weights[w][0], weights[w][1], high[2 * w], low[2 * w]);
    split(weights[w][2], weights[w][3], high[2 * w + 1], low[2 * w + 1]);
  }
  const int first = quarter_position(warp, 0, 2 * t);  // of the lane's 4 neighbouring positions
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    const int row = 8 * n + c;
    const __half* chunk = page.values + row * kPage + 8 * page.chunk(row, 4 * (warp / 2) + t);
    uint2 v = *reinterpret_cast<const uint2*>(chunk + 4 * (warp % 2));
    if (first + 4 > seen) {
      v.x = first >= seen ? 0 : first + 1 >= seen ? v.x & 0xffffu : v.x;
      v.y = first + 2 >= seen ? 0 : first + 3 >= seen ? v.y & 0xffffu : v.y;
    }
    mma(result.y[n], high, v.x, v.y);
    mma(result.y[n], low, v.x, v.y);
  }
}

/// The shares of a block's warps, and what they come to for the first `n` queries.
template <int kD>
struct BlockResult {
  float y[kWarps][kQueries][kD + 8];  // warps' shares; padded so that the rows of a store meet no bank twice
  float peaks[kWarps][kQueries], sums[kWarps][kQueries];
  float peak[kQueries], sum[kQueries];  // of all warps
  float factors[kWarps][kQueries];      // that shares are multiplied by

  __device__ void put(const Result<kD>& result) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0) {
        peaks[warp][row + 8 * half] = result.peak[half];
        sums[warp][row + 8 * half] = result.sum[half];
      }
#pragma unroll
      for (int i = 0; i < kD / 8; ++i) {
        *reinterpret_cast<float2*>(&y[warp][row + 8 * half][8 * i + 2 * (lane % 4)]) =
            make_float2(result.y[i][2 * half], result.y[i][2 * half + 1]);
      }
    }
    __syncthreads();
    if (threadIdx.x < kQueries) {
      const int m = threadIdx.x;
      float top = -INFINITY, total = 0;
      for (int w = 0; w < kWarps; ++w) top = fmaxf(top, peaks[w][m]);
      for (int w = 0; w < kWarps; ++w) {
        factors[w][m] = peaks[w][m] == -INFINITY ? 0.0f : exp2f((peaks[w][m] - top) * kLog2e);
        total += sums[w][m] * factors[w][m];
      }
      peak[m] = top;
      sum[m] = total;
    }
    __syncthreads();
  }
  /// Columns c..c+3 of query m, not yet divided by its sum.
  __device__ float4 four(int m, int c) const {
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 share = *reinterpret_cast<const float4*>(&y[w][m][c]);
      const float factor = factors[w][m];
      all = {all.x + share.x * factor, all.y + share.y * factor, all.z + share.z * factor, all.w + share.w * factor};
    }
    return all;
  }
};

/// Decoding. Grid (tiles, key heads, parts); a part is a share of the tile's pages. Two pages are on their way to
/// shared memory while one is worked on (one where shared memory is small); each warp takes 16 positions of every page.
template <int kD, int kStages>
__global__ void __launch_bounds__(kWarps* kWarp)
    attend_split(AttentionCall call, AttentionParams params, BatchRows rows, KvMemory memory) {
  GPU_DYNAMIC_SHARED(uint8_t, bytes);
  PageCopy<kD>* copies = reinterpret_cast<PageCopy<kD>*>(bytes);  // [kStages]
  Shared<kD>& q = *reinterpret_cast<Shared<kD>*>(bytes + kStages * sizeof(PageCopy<kD>));
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, kv_head = blockIdx.y;
  const int group = static_cast<int>(params.n_head / params.n_head_kv);
  const Tile tile = Tile::find(blockIdx.x, rows, group);  // batches are written before any kernel of theirs
  const DeviceSequence s = rows.sequences[max(tile.sequence, 0)];
  const Range pages = tile.sequence < 0 ? Range{0, 0} : pages_of(call, params, rows, s, tile, group);
  const int n = max(pages.end - pages.first, 0), parts = gridDim.z, part = blockIdx.z;
  const int first = pages.first + static_cast<int>(static_cast<int64_t>(n) * part / parts);
  const int end = pages.first + static_cast<int>(static_cast<int64_t>(n) * (part + 1) / parts);
  const auto bring = [&](int i) {
    if (i < end) {
      copies[(i - first) % kStages].start(
          memory, static_cast<int64_t>(rows.pages[s.first_page + i]) * memory.n_head_kv + kv_head);
    }
    commit_async();
  };
  // Pages of earlier runs alone are complete, the others once this run's keys and values are stored.
  const int n_early = min(kStages, max(s.pos / kPage - first, 0));
  for (int i = 0; i < n_early; ++i) bring(first + i);
  wait_for_previous();
  if (tile.sequence < 0) return;
  for (int i = n_early; i < kStages; ++i) bring(first + i);
  load_queries<kD>(call, params, s, tile, kv_head, group, q, threadIdx.x, blockDim.x);

  const int row = lane / 4, t = lane % 4;
  const Range ranges[2] = {range_of(call, params, s, tile.first + row, group),
                           range_of(call, params, s, tile.first + row + 8, group)};
  const int seen_end = range_of(call, params, s, tile.first + kQueries - 1, group).end;
  Result<kD> result;
  for (int i = first; i < end; ++i) {
    wait_async<kStages - 1>();
    __syncthreads();
    const PageCopy<kD>& page = copies[(i - first) % kStages];
    float scores[2][4];
    score_quarter<kD>(page, q, warp, scores);
    weigh<kD, 2>(
        scores, params.scale, [&](int w, int e) { return i * kPage + quarter_position(warp, w, 2 * t + e); }, ranges,
        result);
    add_quarter<kD>(page, scores, warp, seen_end - i * kPage, result);
    __syncthreads();
    bring(i + kStages);
  }
  finish_sums<kD>(result);
  wait_async<0>();
  __syncthreads();  // pages and queries are no longer needed: their memory takes the block's result
  BlockResult<kD>& block = *reinterpret_cast<BlockResult<kD>*>(bytes);
  block.put(result);
  const int n_query = min(kQueries, s.n_tok * group - tile.first);
  if (parts == 1 && !call.k) {
    for (int i = threadIdx.x; i < n_query * kD / 4; i += blockDim.x) {
      const int m = i / (kD / 4), c = i % (kD / 4) * 4, query = tile.first + m;
      const int64_t at = (s.row + query / group) * params.n_head + kv_head * group + query % group;
      const float4 y = block.four(m, c);
      const float sum = block.sum[m];
      *reinterpret_cast<float4*>(call.y + at * kD + c) = {y.x / sum, y.y / sum, y.z / sum, y.w / sum};
    }
    return;
  }
  Part<kD>& out = reinterpret_cast<Part<kD>*>(
      call.scratch)[(static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z];
  for (int i = threadIdx.x; i < n_query * kD / 4; i += blockDim.x) {
    const int m = i / (kD / 4), c = i % (kD / 4) * 4;
    *reinterpret_cast<float4*>(&out.y[m][c]) = block.four(m, c);
  }
  if (threadIdx.x < kQueries) {
    out.peak[threadIdx.x] = block.peak[threadIdx.x];
    out.sum[threadIdx.x] = block.sum[threadIdx.x];
  }
}

/// Adds the parts of a query, and for block_attention the sequence's own rows in f32. Grid (tiles, key heads, queries),
/// a thread a column.
template <int kD>
__global__ void __launch_bounds__(kD) combine(AttentionCall call, AttentionParams params, BatchRows rows, int parts) {
  wait_for_previous();
  __shared__ float scores[kMostOwnRows];
  const int m = blockIdx.z, c = threadIdx.x, kv_head = blockIdx.y;
  const int group = static_cast<int>(params.n_head / params.n_head_kv);
  const Tile tile = Tile::find(blockIdx.x, rows, group);
  if (tile.sequence < 0) return;
  const DeviceSequence s = rows.sequences[tile.sequence];
  const int query = tile.first + m;
  if (query >= s.n_tok * group) return;
  const Part<kD>* all = reinterpret_cast<const Part<kD>*>(call.scratch) +
                        (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * parts;
  const int64_t at = ((s.row + query / group) * params.n_head + kv_head * group + query % group) * kD;
  float peak = -INFINITY, sum = 0, y = 0;
  for (int i = 0; i < parts; ++i) peak = fmaxf(peak, all[i].peak[m]);
  if (call.k) {
    const int i0 = query / group, window = static_cast<int>(params.window), lane = c % kWarp;
    for (int i = c / kWarp; i < s.n_tok; i += kD / kWarp) {
      const float *q = call.q + at, *k = call.k + ((s.row + i) * params.n_head_kv + kv_head) * kD;
      float score = 0;
#pragma unroll
      for (int j = lane; j < kD; j += kWarp) score = fmaf(q[j], k[j], score);
      score = warp_sum(score) * params.scale;
      const bool seen = (window == 0 || abs(i - i0) < window) && (!params.causal || i <= i0);
      if (lane == 0) scores[i] = seen ? score : -INFINITY;
    }
    __syncthreads();
    for (int i = 0; i < s.n_tok; ++i) peak = fmaxf(peak, scores[i]);
    for (int i = 0; i < s.n_tok; ++i) {
      const float weight = exp2f((scores[i] - peak) * kLog2e);
      sum += weight;
      y = fmaf(weight, call.v[((s.row + i) * params.n_head_kv + kv_head) * kD + c], y);
    }
  }
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    const float top = all[i].peak[m], factor = top == -INFINITY ? 0.0f : exp2f((top - peak) * kLog2e);
    sum = fmaf(all[i].sum[m], factor, sum);
    y = fmaf(all[i].y[m][c], factor, y);
  }
  call.y[at + c] = y / sum;
}

int64_t tiles_of(const AttentionParams& params, const BatchRows& rows) {
  return most_tiles(rows.n_tok, rows.n_sequence, params.n_head / params.n_head_kv);
}

/// Decoding when prompts' blocks would not fill the device twice over.
bool splits(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows) {
  return tiles_of(params, rows) * params.n_head_kv <= 2 * call.n_multiprocessor;
}

/// Shared memory of attend_split.
template <int kD>
constexpr size_t split_bytes(size_t stages) {
  return std::max(stages * sizeof(PageCopy<kD>) + sizeof(Shared<kD>), sizeof(BlockResult<kD>));
}

template <class Kernel>
void start_split(Kernel kernel, size_t shared, dim3 grid, const AttentionCall& call, const AttentionParams& params,
                 const BatchRows& rows, const KvMemory& memory, gpuStream_t stream) {
  check(gpuFuncSetAttribute(reinterpret_cast<const void*>(kernel), gpuFuncAttributeMaxDynamicSharedMemorySize,
                            static_cast<int>(shared)),
        "attention");
  launch(kernel, grid, dim3(kWarps * kWarp), shared, stream, call, params, rows, memory);
}

template <int kD>
void run(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows, const KvMemory& memory,
         gpuStream_t stream) {
  const int64_t tiles = tiles_of(params, rows);
  const auto heads = static_cast<unsigned>(params.n_head_kv);
  if (!splits(call, params, rows)) {
    const size_t shared = kWarps * sizeof(Shared<kD>);
    check(gpuFuncSetAttribute(reinterpret_cast<const void*>(attend_rows<kD>),
                              gpuFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "attention");
    launch(attend_rows<kD>, dim3(blocks_for(tiles, kWarps), heads), dim3(kWarps * kWarp), shared, stream, call, params,
           rows, memory);
    return;
  }
  const int64_t pages = (call.context + kPage - 1) / kPage;
  // Blocks with 256 columns fill a multiprocessor's shared memory.
  const int64_t blocks = (kD > 128 ? 1 : 2) * call.n_multiprocessor;
  const int64_t most_parts = std::max<int64_t>(1, blocks / (tiles * params.n_head_kv));
  const auto parts = static_cast<unsigned>(std::clamp<int64_t>(pages, 1, most_parts));
  const dim3 grid(static_cast<unsigned>(tiles), heads, parts);
  if (call.shared_bytes >= static_cast<int64_t>(split_bytes<kD>(2))) {
    start_split(attend_split<kD, 2>, split_bytes<kD>(2), grid, call, params, rows, memory, stream);
  } else {
    start_split(attend_split<kD, 1>, split_bytes<kD>(1), grid, call, params, rows, memory, stream);
  }
  if (parts == 1 && !call.k) return;
  launch(combine<kD>, dim3(static_cast<unsigned>(tiles), heads, kQueries), dim3(kD), 0, stream, call, params, rows,
         static_cast<int>(parts));
}

}  // namespace

bool attention_mma_fits(const AttentionCall& call, const AttentionParams& params, const KvMemory& memory,
                        const BatchRows& rows) {
#if defined(__HIP__)
  return false;
#else
  const bool head = params.d_head == 64 || params.d_head == 128 || params.d_head == 256;
  // Own rows are added where parts are: a prompt-sized block goes the general way.
  return head && memory.type == CacheType::f16 && !call.map.outputs && call.map.multiple == 1 &&
         (!call.k || (splits(call, params, rows) && rows.n_tok <= kMostOwnRows));
#endif
}

int64_t attention_scratch_bytes(const AttentionParams& params, int64_t n_multiprocessor) {
  return 2 * n_multiprocessor * kQueries * (params.d_head + 2) * static_cast<int64_t>(sizeof(float));
}

void attention_mma(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows,
                   const KvMemory& memory, gpuStream_t stream) {
  if (params.d_head == 64) run<64>(call, params, rows, memory, stream);
  if (params.d_head == 128) run<128>(call, params, rows, memory, stream);
  if (params.d_head == 256) run<256>(call, params, rows, memory, stream);
}

}  // namespace onebit::gpu
