// Which rows of which expert a block works on, found from the grouping (gpu/matmul.h) by one warp.
#pragma once

#include "backend/gpu/matmul.h"

namespace onebit::cuda {

/// Up to `cut` result rows of one expert: order[first .. first + count). atom: where they start when every expert's
/// rows are padded to atoms of 8 rows. expert -1: there is no such tile.
struct ExpertTile {
  int expert = -1, first = 0, count = 0, atom = 0;
};

/// Sum over lanes 0..lane.
__device__ inline int sum_upto(int x, int lane) {
#pragma unroll
  for (int step = 1; step < gpu::kWarp; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

/// Tile `index` of all experts' rows cut into pieces of kCut; called by whole warps, every lane gets it. A lane looks
/// at 4 experts at a time, so that up to 128 experts take one round of loads.
template <int kCut>
__device__ ExpertTile find_expert_tile(const int32_t* offsets, int n_expert, int index, int lane) {
  int tiles_before = 0, atoms_before = 0;
  for (int base = 0; base < n_expert; base += 4 * gpu::kWarp) {
    int first[5], tiles = 0, atoms = 0;
#pragma unroll
    for (int i = 0; i < 5; ++i) first[i] = offsets[min(base + 4 * lane + i, n_expert)];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tiles += (first[i + 1] - first[i] + kCut - 1) / kCut;
      atoms += (first[i + 1] - first[i] + 7) / 8;
    }
    const int tiles_upto = sum_upto(tiles, lane), atoms_upto = sum_upto(atoms, lane);
    int tile = tiles_before + tiles_upto - tiles, atom = atoms_before + atoms_upto - atoms;
    ExpertTile mine;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int count = first[i + 1] - first[i], skip = kCut * (index - tile);
      if (index >= tile && skip < count) {
        mine = {base + 4 * lane + i, first[i] + skip, min(kCut, count - skip), atom + skip / 8};
      }
      tile += (count + kCut - 1) / kCut;
      atom += (count + 7) / 8;
    }
    const unsigned found = __ballot_sync(0xffffffffu, mine.expert >= 0);
    if (found) {
      const int owner = __ffs(static_cast<int>(found)) - 1;
      return {gpu::shfl(mine.expert, owner), gpu::shfl(mine.first, owner), gpu::shfl(mine.count, owner),
              gpu::shfl(mine.atom, owner)};
    }
    tiles_before += gpu::shfl(tiles_upto, gpu::kWarp - 1);
    atoms_before += gpu::shfl(atoms_upto, gpu::kWarp - 1);
  }
  return {};
}

}  // namespace onebit::cuda
