// Several devices as one: each holds some of a model's layers (plan/layout.h), and a batch goes through them in order.
// What travels between them goes from device to device where they can, else through the host.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace onebit {

/// "cuda" when all are, else "cuda+cpu"; memory is the sum of theirs.
DeviceInfo info_of(const std::vector<std::unique_ptr<Backend>>& devices);

/// `shares` of the layers by device; empty: by their free memory, or equal parts where that is unknown.
/// Throws Error(usage) when there are not as many shares as devices, or none is positive.
std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices, std::vector<double> shares);

}  // namespace onebit
