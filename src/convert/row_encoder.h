// Turns rows of a tensor into another block type on all threads: decode, rotate where asked, encode.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "convert/mixture.h"
#include "gguf/file.h"

namespace onebit {

/// Gives rows [begin, end) of a source as f32, into out [end - begin, n_cols].
using RowSource = std::function<void(int64_t begin, int64_t end, float* out)>;
/// Takes encoded rows in order.
using RowSink = std::function<void(std::span<const uint8_t> bytes)>;

/// Encodes `n_rows` rows of `n_cols` elements. `source` is called from several threads at once; `sink` from the
/// caller's. Throws Error(refused) naming `label` when a value is not finite or beyond what `type` can hold.
void encode_rows(ThreadPool& pool, const TensorChoice& choice, int64_t n_rows, int64_t n_cols, const RowSource& source,
                 const RowSink& sink, const std::string& label);

}  // namespace onebit
