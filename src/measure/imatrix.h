// Makes an importance matrix: sums of squares of every matrix's inputs over a text. In: a model, a text. Out: a GGUF
// file in llama.cpp's layout (convert/importance.h reads it).
#pragma once

#include <functional>
#include <string>

#include "measure/block_walk.h"

namespace onebit {

/// Writes `path`. `dataset` names the text in the file. `progress` gets 0..1 and may throw. Returns the number of
/// matrices.
int64_t write_imatrix(Model& model, const TextChunks& chunks, const MeasureOptions& options, const std::string& dataset,
                      const std::string& path, const std::function<void(double)>& progress);

}  // namespace onebit
