// What the kernels on halves (matmul_mma.cu, matmul_wgmma.cu) are told, and how their results are written.
#pragma once

#include "backend/cuda/experts.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/matmul.h"

namespace onebit::cuda {

inline constexpr int kTileOuts = 128;  // outputs of a block: 8 strips
inline constexpr int kMaxProducts = 8;

struct HalfProduct {
  const uint8_t* data;
  float* y;  // with split > 1: [split, n_row, n_out], to be added up
  const float* add;
  int32_t n_out, first_tile;  // of kTileOuts outputs
  int64_t expert_bytes;       // from one expert to the next
};

/// Products of the same activations; with n_expert > 0, of each expert's rows.
struct HalfJob {
  HalfProduct products[kMaxProducts];
  int n_product, n_units;
  int n_tiles, n_row_tiles;  // of outputs (all products), of rows
  int split;                 // parts that a tile's units are cut into, a block each
  const uint8_t* halves;     // acts.h; for experts: sorted by expert, each padded to atoms of 8 rows
  const float* row_scales;
  int n_row;
  int64_t atoms;  // of all rows: from one 64 columns to the next
  int n_expert;
  const int32_t *offsets, *order;
};

/// What one block computes: outputs [first_out, +128) of a product for `count` rows from atom `atom` on, summed over
/// units [begin, end).
struct HalfTile {
  const HalfProduct* product;
  float* y;
  int begin, end;
  const uint8_t* strips;  // of its first output
  int first_out, atom, count, first;
  bool any;
};

/// Row tiles run fastest, so that blocks of a wave share weights through L2. kRows: rows of a tile.
template <WeightForm kForm, int kRows>
__device__ HalfTile find_half_tile(const HalfJob& job, int block, int lane) {
  const int part = block % job.split, row_tile = block / job.split % job.n_row_tiles;
  const int out_tile = block / job.split / job.n_row_tiles;
  int p = 0;
  while (p + 1 < job.n_product && out_tile >= job.products[p + 1].first_tile) ++p;
  HalfTile tile{};
  tile.product = &job.products[p];
  tile.first_out = (out_tile - tile.product->first_tile) * kTileOuts;
  tile.any = true;
  tile.begin = part * job.n_units / job.split;
  tile.end = (part + 1) * job.n_units / job.split;
  tile.y = tile.product->y + static_cast<int64_t>(part) * job.n_row * tile.product->n_out;
  int expert = 0;
  if (job.n_expert > 0) {
    const ExpertTile rows = find_expert_tile<kRows>(job.offsets, job.n_expert, row_tile, lane);
    tile.any = rows.expert >= 0;
    expert = max(rows.expert, 0);
    tile.atom = rows.atom;
    tile.first = rows.first;
    tile.count = rows.count;
  } else {
    tile.first = row_tile * kRows;
    tile.atom = tile.first / 8;
    tile.count = min(kRows, job.n_row - tile.first);
  }
  tile.strips = tile.product->data + expert * tile.product->expert_bytes +
                static_cast<int64_t>(tile.first_out / gpu::kStripRows) * job.n_units * gpu::unit_bytes(kForm);
  return tile;
}

/// Writes a lane's sums [tile of 8 rows][out g: rows 2c, 2c+1; out g+8: rows 2c, 2c+1] of one strip, 2 tiles at a time:
/// what is added is loaded before anything is stored, since y and add may be the same memory.
template <int kTiles>
__device__ void store_half(const HalfJob& job, const HalfTile& tile, const float* sums, int strip, int lane) {
  constexpr int kBatch = 4;  // pairs of results of 2 tiles
  const HalfProduct& product = *tile.product;
  const int n = tile.first_out + strip * gpu::kStripRows + lane / 4;
  const bool upper = n + 8 < product.n_out, lower = n < product.n_out;
#pragma unroll
  for (int first = 0; first < kTiles * 2; first += kBatch) {
    float y[kBatch][2];
    int64_t to[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int t = (first + b) / 2, i = b % 2, at = 8 * t + lane % 4 * 2 + i;
      if (at >= tile.count) continue;
      const float scale = job.row_scales[tile.atom * 8 + at];
      const int64_t row = job.n_expert > 0 ? job.order[tile.first + at] : tile.first + at;
      to[b] = row * product.n_out + n;
      y[b][0] = sums[4 * t + i] * scale;
      y[b][1] = sums[4 * t + 2 + i] * scale;
      if (!product.add) continue;
      if (lower) y[b][0] += product.add[to[b]];
      if (upper) y[b][1] += product.add[to[b] + 8];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = 8 * ((first + b) / 2) + lane % 4 * 2 + b % 2;
      if (at >= tile.count) continue;
      if (lower) tile.y[to[b]] = y[b][0];
      if (upper) tile.y[to[b] + 8] = y[b][1];
    }
  }
}

/// A kernel for halves.
struct HalfKernel {
  int rows;  // of a tile
  void (*run)(WeightForm form, const HalfJob& job, gpuStream_t stream);
};
/// For sm_90, and for anything from sm_80 on. The kernel for these row counts.
HalfKernel wgmma_kernel(int64_t n_row, bool experts);
HalfKernel mma_kernel();

}  // namespace onebit::cuda
