// The matmul kernels that need NVIDIA tensor cores, for weights in the forms of gpu/forms.h. gpu/matmul.cpp chooses.
#pragma once

#include "backend/gpu/acts.h"

namespace onebit::cuda {

using gpu::DeviceActs;
using gpu::DeviceWeight;
using gpu::ExpertGroups;
using gpu::ExpertProduct;
using gpu::gpuStream_t;
using gpu::Product;
using gpu::Workspace;

/// Most rows that the integer kernels take at once.
inline constexpr int64_t kIntegerMatmulRows = 32;

/// Integer sums of m16n8k32, for 1..kIntegerMatmulRows rows: the time of one pass over the weights up to 8 rows. A
/// row's result does not depend on the other rows.
void matmul_integer(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream);
void matmul_experts_integer(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                            const ExpertGroups& groups, gpuStream_t stream);

/// Multiprocessors of the current device.
int count_sms();
/// True on GPUs whose tensor cores multiply 4-bit integers: sm_80 to sm_89.
bool has_int4();
/// Integer sums of 4-bit m16n8k32, for acts with a nibble form and weights in the form n4. Right on every GPU since
/// sm_80, fast where has_int4().
void matmul_int4(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream);

/// Halves on the tensor cores, for acts with an f16 form. Weights are rounded to f16 after scaling: relative error of a
/// product at most 2^-10. `any_gpu`: the kernel for every GPU since sm_80, also where there is a faster one.
int64_t half_workspace(const DeviceWeight& weight, int64_t max_rows);
void matmul_half(std::span<const Product> products, const DeviceActs& acts, const Workspace& workspace,
                 gpuStream_t stream, bool any_gpu = false);
int64_t experts_half_workspace(const DeviceWeight& weight, int64_t max_rows);
void matmul_experts_half(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                         const ExpertGroups& groups, const Workspace& workspace, gpuStream_t stream);

/// f32, f16 and bf16 weights times f32 rows, both split into parts that the tensor cores multiply exactly.
void matmul_split(std::span<const Product> products, const float* x, int64_t n_row, gpuStream_t stream);

/// Rows sorted by expert, as ExpertGroups describes.
void group_rows(const ExpertGroups& groups, gpuStream_t stream);

}  // namespace onebit::cuda
