// A tile of y = x W^T on gfx11's 4-bit matrix units: q4_0 rows times rows on the int4 grid (plan/op.h). Written once
// for the GPU (matmul_iu4.cu) and for the test that emulates one (tests/iu4_test.cpp); a Machine gives what differs.
//
// One instruction, v_wmma_i32_16x16x16_iu4, D += A B on the 32 lanes of a wave; each operand nibble is signed:
//   A [16 rows, 16 k]     lane l holds row l % 16: 16 nibbles in 2 registers, k = 0 in the lowest; lanes 16..31 repeat
//   B [16 k, 16 columns]  lane l holds column l % 16 in the same way
//   D [16, 16] i32        register r of lane l is row 2 r + l / 16, column l % 16
// Sources: AMD, "RDNA3 Instruction Set Architecture", section on WMMA; AMD GPUOpen, "How to accelerate AI applications
// on RDNA 3 using WMMA". A block of 32 columns is two of them. Rows of x are A, so a lane needs one scale of W a block.
//
// The order of k within a block is that of q4_0's bytes, byte j = column j and, above, column j + 16, on both sides; a
// sum over the block does not see it. A q4_0 nibble q means q - 8, which as a signed nibble is q xor 8.
#pragma once

#include <cstdint>

#if defined(__HIP__)
#define ONEBIT_LANE_CODE __device__ inline
#else
#define ONEBIT_LANE_CODE inline
#endif

namespace onebit::hip {

inline constexpr int kIu4Threads = 256, kIu4Waves = 8;
inline constexpr int kIu4Columns = 16 * kIu4Waves;  // outputs of a tile: 16 a wave
inline constexpr int kIu4RowTiles = 4;
inline constexpr int kIu4Rows = 16 * kIu4RowTiles;  // rows of a tile, shared by all waves
inline constexpr int kIu4Stage = 4;                 // blocks of 32 columns of x in shared memory at a time
inline constexpr int kQ4Bytes = 18;                 // of a q4_0 block: f16 scale, 16 bytes of nibbles

struct Iu4Job {
  const uint8_t* weights = nullptr;  // the file's rows, [n_out, n_block] blocks of q4_0
  const uint8_t* nibbles = nullptr;  // [n_row, n_block, 16]
  const float* scales = nullptr;     // [n_row, n_block]
  const float* add = nullptr;        // [n_row, n_out] or null
  float* y = nullptr;                // [n_row, n_out]
  int64_t n_out = 0, n_block = 0, n_row = 0;
};

/// Two stages of x in turn. Scales lie as D's registers want them: rows of a tile as [l / 16][r].
struct Iu4Shared {
  alignas(16) uint32_t nibbles[2][kIu4Stage][kIu4Rows][4];
  alignas(16) float scales[2][kIu4Stage][kIu4RowTiles][2][8];
};

/// What a thread brings of one stage: its row and block of x, and its column's blocks of W.
struct Iu4Fetch {
  uint32_t x[4], w[kIu4Stage][4];
  float x_scale;
  uint16_t w_scale[kIu4Stage];
};

/// `column`: this lane's output, in range. Blocks and rows past the end read as zero.
ONEBIT_LANE_CODE void fetch_iu4(const Iu4Job& job, int64_t first_block, int64_t first_row, int64_t column, int thread,
                                Iu4Fetch& to) {
  const int64_t row = first_row + thread % kIu4Rows, own = first_block + thread / kIu4Rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.x[i] = 0;
  to.x_scale = 0;
  if (row < job.n_row && own < job.n_block) {
    __builtin_memcpy(to.x, job.nibbles + (row * job.n_block + own) * 16, 16);
    to.x_scale = job.scales[row * job.n_block + own];
  }
#pragma unroll
  for (int b = 0; b < kIu4Stage; ++b) {
    // Past the end the last block is read again: its products meet zeros of x.
    const int64_t block = first_block + b < job.n_block ? first_block + b : job.n_block - 1;
    const uint8_t* from = job.weights + (column * job.n_block + block) * kQ4Bytes;
    __builtin_memcpy(&to.w_scale[b], from, 2);
    __builtin_memcpy(to.w[b], from + 2, 16);
  }
}

ONEBIT_LANE_CODE void store_iu4(const Iu4Fetch& from, int thread, int turn, Iu4Shared& shared) {
  const int row = thread % kIu4Rows, block = thread / kIu4Rows, in_tile = row % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) shared.nibbles[turn][block][row][i] = from.x[i];
  shared.scales[turn][block][row / 16][in_tile % 2][in_tile / 2] = from.x_scale;
}

/// The tile whose first row and column are given. All kIu4Threads threads of a block call it.
template <class Machine>
ONEBIT_LANE_CODE void multiply_iu4(Machine& machine, const Iu4Job& job, int64_t first_row, int64_t first_column) {
  const int thread = machine.thread(), lane = thread % 32, high = lane / 16;
  const int64_t column = first_column + thread / 32 * 16 + lane % 16;
  const int64_t read_column = column < job.n_out ? column : job.n_out - 1;
  Iu4Shared& shared = machine.shared();
  float sums[kIu4RowTiles][8] = {};
  Iu4Fetch now, next;
  fetch_iu4(job, 0, first_row, read_column, thread, now);
  store_iu4(now, thread, 0, shared);
  machine.barrier();
  for (int64_t stage = 0; stage * kIu4Stage < job.n_block; ++stage) {
    const int turn = static_cast<int>(stage % 2);
    const bool more = (stage + 1) * kIu4Stage < job.n_block;
    if (more) fetch_iu4(job, (stage + 1) * kIu4Stage, first_row, read_column, thread, next);
#pragma unroll
    for (int b = 0; b < kIu4Stage; ++b) {
      int w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = static_cast<int>(now.w[b][i] ^ 0x88888888u);
      const float w_scale = machine.half(now.w_scale[b]);
#pragma unroll
      for (int tile = 0; tile < kIu4RowTiles; ++tile) {
        const uint32_t* x = shared.nibbles[turn][b][tile * 16 + lane % 16];
        const int low[2] = {static_cast<int>(x[0]), static_cast<int>(x[1])};
        const int top[2] = {static_cast<int>(x[2]), static_cast<int>(x[3])};
        int products[8] = {};
        machine.wmma(low, {w[0], w[1]}, products);
        machine.wmma(top, {w[2], w[3]}, products);
        const float* x_scale = shared.scales[turn][b][tile][high];
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          sums[tile][r] = machine.fma(static_cast<float>(products[r]) * w_scale, x_scale[r], sums[tile][r]);
        }
      }
    }
    if (!more) break;
    store_iu4(next, thread, 1 - turn, shared);
    now = next;
    machine.barrier();
  }
  if (column >= job.n_out) return;
#pragma unroll
  for (int tile = 0; tile < kIu4RowTiles; ++tile) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int64_t row = first_row + tile * 16 + 2 * r + high;
      if (row >= job.n_row) continue;
      const int64_t at = row * job.n_out + column;
      job.y[at] = job.add ? sums[tile][r] + job.add[at] : sums[tile][r];
    }
  }
}

}  // namespace onebit::hip
