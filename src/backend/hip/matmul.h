// The matmul kernel that needs AMD's matrix units. gpu/matmul.cpp chooses.
#pragma once

#include "backend/gpu/matmul.h"

namespace onebit::hip {

/// Fewer rows leave the tile of 64 too empty.
inline constexpr int64_t kIu4LeastRows = 16;

/// True on gfx11, whose matrix units multiply 4-bit integers.
bool has_iu4();
/// q4_0 weights as in the file, acts with nibbles; exact integer sums, scaled and added in f32.
void matmul_iu4(const gpu::Product& product, const gpu::DeviceActs& acts, gpu::gpuStream_t stream);

}  // namespace onebit::hip
