// The attention kernels of this folder, between their files: attention.cu chooses.
#pragma once

#include "backend/gpu/kernels.h"

namespace onebit::gpu {

/// True when attention_mma() serves this call.
bool attention_mma_fits(const AttentionCall& call, const AttentionParams& params, const KvMemory& memory,
                        const BatchRows& rows);
void attention_mma(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows,
                   const KvMemory& memory, gpuStream_t stream);

}  // namespace onebit::gpu
