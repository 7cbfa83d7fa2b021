// Products and row lookup straight from the file's bytes: one correct kernel for every type, used by types and shapes
// that have no faster one. Semantics and arguments are those of matmul.h.
#pragma once

#include "backend/gpu/matmul.h"

namespace onebit::gpu {

void gather_plain(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream);
void quantize_plain(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                    const DeviceActs& acts, gpuStream_t stream);
void matmul_plain(const Product& product, const DeviceActs& acts, gpuStream_t stream);
void matmul_float_plain(const Product& product, const float* x, int64_t n_row, gpuStream_t stream);
/// ids, n_used and shared_input as in matmul_experts.
void matmul_experts_plain(const DeviceWeight& weight, const DeviceActs& acts, bool shared_input,
                          const ExpertGroups& groups, float* y, gpuStream_t stream);
void matmul_experts_float_plain(const DeviceWeight& weight, const float* x, bool shared_input,
                                const ExpertGroups& groups, float* y, gpuStream_t stream);

}  // namespace onebit::gpu
