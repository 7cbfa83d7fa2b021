// The reference backend: the executable definition of every op, scalar, one thread, run at once. Slow on purpose.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace onebit {

/// Weights are used in place: a loaded weight's bytes must outlive the backend and its programs.
std::unique_ptr<Backend> make_ref_backend();

}  // namespace onebit
