// GPUs that add up values through NCCL (on AMD: RCCL), whose library is looked for when it is first wanted: neither
// building nor starting needs it.
#pragma once

#include <memory>
#include <span>

#include "backend/team.h"

namespace onebit::gpu {

/// Throws Error(refused) where the library is missing or can't connect the devices.
std::shared_ptr<Team> make_nccl_team(std::span<const int> ordinals);

}  // namespace onebit::gpu
