// Chooses the instruction set.
#pragma once

#include <string>

#include "backend/cpu/kernels.h"

namespace onebit::cpu {

/// The table named by `isa` ("amx", "avx512", "avxvnni", "avx2", "dotprod", "portable"), or for "" the best that this machine
/// runs. Throws Error(usage) for an unknown name and Error(refused) for one that this build or machine lacks.
const Kernels& choose_kernels(const std::string& isa);

}  // namespace onebit::cpu
