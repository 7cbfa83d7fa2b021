// Models that exist only by their sizes: files of random weights, made in memory, to see what a machine will do before
// anything is downloaded. In: "shape:NAME[@LAYERS][,type=T][,head=T][,vocab=N]". Out: a GgufFile like any other.
#pragma once

#include <string>
#include <string_view>

#include "gguf/file.h"

namespace onebit {

/// True for "shape:...".
bool is_shape(std::string_view path);

enum class Filling {
  none,     // zeros that take no memory: enough to read the numbers and sizes
  weights,  // random weights
};

/// The file at `path`, or the one that a shape describes. Throws Error(usage) for an unknown shape, naming the known.
GgufFile open_model_file(const std::string& path, Filling filling = Filling::weights);

/// Writes the file of a shape to disk, so that other programs can be measured with the same one.
void write_shape(const std::string& shape, const std::string& path);

}  // namespace onebit
