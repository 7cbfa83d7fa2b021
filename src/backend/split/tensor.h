// Several devices as one: each holds a part of every layer (plan/shard.h), and all of them run a batch at the same
// time.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace onebit {

/// Devices of one kind, with their ordinals. Throws Error(refused) where they can't sum up values together.
std::unique_ptr<Backend> make_tensor_backend(std::vector<std::unique_ptr<Backend>> devices,
                                             const std::vector<int>& ordinals);

}  // namespace onebit
