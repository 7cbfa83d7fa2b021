// Writes the tensors of a file one after another: rows are fetched, rotated where asked and encoded on all threads.
// In: the list of tensors with where their rows come from. Out: their bytes in a GgufWriter, progress on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "convert/importance.h"
#include "convert/mixture.h"
#include "gguf/writer.h"

namespace onebit {

/// Gives rows [begin, end) of a tensor as f32 into out [end - begin, n_cols]. Called from several threads at once.
using RowSource = std::function<void(int64_t begin, int64_t end, float* out)>;

struct StreamTensor {
  std::string name;
  TensorChoice choice;
  std::vector<int64_t> shape;                   ///< outermost first
  RowSource rows;                               ///< used when `raw` is empty
  std::span<const uint8_t> raw;                 ///< bytes to copy as they are
  const ChannelSquares* squares = nullptr;      ///< of the tensor's inputs, to weight its errors; may be null
  std::function<void()> release;                ///< called when the source is no longer needed; may be empty
  std::function<void()> begin;                  ///< called before anything else of the tensor; may be empty
  std::function<std::vector<uint8_t>()> whole;  ///< may give all bytes at once; none: `rows` are encoded

  int64_t n_cols() const { return shape.back(); }
  int64_t n_rows() const;
  int64_t bytes() const { return n_rows() * row_bytes(choice.type, n_cols()); }
};

struct StreamProgress {
  int64_t tensor, n_tensors;  ///< the tensor being written, from 0
  const std::string& name;
  int64_t bytes_done, bytes_total;  ///< of the output's tensor data
};

/// Called often; returns false to stop.
using ProgressCallback = std::function<bool(const StreamProgress&)>;

struct StreamOptions {
  int threads = 0;  ///< 0: all cores
  ProgressCallback progress;
  std::string source;  ///< path for messages
  bool search = true;  ///< for the scales of least error; else each type's plain rule
};

/// Refuses values that are not finite, or beyond f16 where the type's scales are halves; `label` names the tensor.
void check_values(std::span<const float> values, BlockType type, const std::string& label);

/// Declares and writes all tensors in order. Throws Error(refused) naming the tensor when a value is not finite or
/// beyond what its type can hold, Error(runtime) when the callback stops the work or writing fails.
void write_tensors(GgufWriter& writer, const std::vector<StreamTensor>& tensors, const StreamOptions& options);

}  // namespace onebit
