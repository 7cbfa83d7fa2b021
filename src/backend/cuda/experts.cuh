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

/// Tile `index` of all experts' rows cut into pieces of kCut; called by whole warps, every lane gets it.
template <int kCut>
__device__ ExpertTile find_expert_tile(const int32_t* offsets, int n_expert, int index, int lane) {
  int tiles_before = 0, atoms_before = 0;
  for (int base = 0; base < n_expert; base += gpu::kWarp) {
    const int e = base + lane;
    const int first = e < n_expert ? offsets[e] : 0, count = e < n_expert ? offsets[e + 1] - first : 0;
    const int tiles = (count + kCut - 1) / kCut, atoms = (count + 7) / 8;
    const int tiles_upto = sum_upto(tiles, lane), atoms_upto = sum_upto(atoms, lane);
    const int begin = tiles_before + tiles_upto - tiles;
    const unsigned found = __ballot_sync(0xffffffffu, index >= begin && index < begin + tiles);
    if (found) {
      const int owner = __ffs(static_cast<int>(found)) - 1, skip = kCut * (index - begin);
      const int atom = atoms_before + atoms_upto - atoms + skip / 8;
      return {gpu::shfl(e, owner), gpu::shfl(first + skip, owner), gpu::shfl(min(kCut, count - skip), owner),
              gpu::shfl(atom, owner)};
    }
    tiles_before += gpu::shfl(tiles_upto, gpu::kWarp - 1);
    atoms_before += gpu::shfl(atoms_upto, gpu::kWarp - 1);
  }
  return {};
}

}  // namespace onebit::cuda
