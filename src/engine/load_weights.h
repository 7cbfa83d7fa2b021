// Weights from files to a device, read ahead of the device's own work on them.
#pragma once

#include <functional>
#include <span>

#include "backend/backend.h"
#include "gguf/file.h"

namespace onebit {

struct StoredWeight {
  const Weight* weight;
  const GgufFile* file;  // that holds its data
};

/// Loads all of them, in order; `on_progress` (may be empty) gets the share of the bytes that is done after each.
/// Whatever the backend or `on_progress` throws goes through.
void load_weights(Backend& backend, std::span<const StoredWeight> weights,
                  const std::function<void(double)>& on_progress);

}  // namespace onebit
