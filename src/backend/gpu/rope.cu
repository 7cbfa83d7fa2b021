#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {
namespace {

__global__ void fill_table(const double* turns, int n_pair, double magnitude, const int32_t* row_pos, float2* table) {
  wait_for_previous();
  const int r = blockIdx.x;
  for (int i = threadIdx.x; i < n_pair; i += blockDim.x) {
    double sine, cosine;
    sincos(row_pos[r] * turns[i], &sine, &cosine);
    table[static_cast<int64_t>(r) * n_pair + i] =
        make_float2(static_cast<float>(cosine * magnitude), static_cast<float>(sine * magnitude));
  }
}

/// One block a row; a thread a pair, or one of the columns that are not rotated.
__global__ void rotate(const float* x, float* y, int n_head, int d_head, int n_rot, bool neox, const float2* table,
                       RowMap map) {
  wait_for_previous();
  const int64_t r = blockIdx.x;
  const int n_pair = n_rot / 2, per_head = d_head - n_pair;
  const float2* angles = table + static_cast<int64_t>(map.token(r)) * n_pair;
  for (int c = threadIdx.x; c < n_head * per_head; c += blockDim.x) {
    const int64_t head = (r * n_head + c / per_head) * d_head;
    const int j = c % per_head;
    if (j >= n_pair) {
      y[head + n_pair + j] = x[head + n_pair + j];
      continue;
    }
    const int64_t first = head + (neox ? j : 2 * j), second = head + (neox ? j + n_pair : 2 * j + 1);
    const float2 turn = angles[j];
    const float a = x[first], b = x[second];
    y[first] = a * turn.x - b * turn.y;
    y[second] = a * turn.y + b * turn.x;
  }
}

}  // namespace

void rope_table(const double* turns, int64_t n_pair, double magnitude, const BatchRows& rows, float2* table,
                gpuStream_t stream) {
  if (rows.n_tok == 0 || n_pair == 0) return;
  launch(fill_table, dim3(static_cast<unsigned>(rows.n_tok)), dim3(64), 0, stream, turns, static_cast<int>(n_pair),
         magnitude, rows.row_pos, table);
}

void rope(const float* x, float* y, int64_t n_row, const RopeParams& params, const float2* table, const RowMap& map,
          gpuStream_t stream) {
  if (n_row == 0) return;
  launch(rotate, dim3(static_cast<unsigned>(n_row)), dim3(256), 0, stream, x, y, static_cast<int>(params.n_head),
         static_cast<int>(params.d_head), static_cast<int>(params.n_rot), params.style == RopeStyle::neox, table, map);
}

}  // namespace onebit::gpu
