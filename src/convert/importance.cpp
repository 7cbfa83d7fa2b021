#include "convert/importance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

std::vector<float> floats_of(const TensorInfo& tensor, const std::string& path) {
  if (tensor.type != BlockType::f32) refuse("{}: tensor {}: expected f32", path, printable(tensor.name));
  std::vector<float> values(static_cast<size_t>(tensor.n_elements()));
  std::memcpy(values.data(), tensor.data.data(), values.size() * 4);
  for (const float value : values) {
    if (!(value >= 0) || !std::isfinite(value)) {
      refuse("{}: tensor {}: expected sums of squares, found {}", path, printable(tensor.name), value);
    }
  }
  return values;
}

}  // namespace

Importance Importance::read(const std::string& path) {
  const GgufFile file = GgufFile::open(path);
  Importance all;
  all.path_ = path;
  for (const TensorInfo& sums : file.tensors()) {
    if (!sums.name.ends_with(imatrix::kSums)) continue;
    const std::string name = sums.name.substr(0, sums.name.size() - std::strlen(imatrix::kSums));
    const TensorInfo* counts = file.find(name + imatrix::kCounts);
    ChannelSquares squares{sums.n_cols(), floats_of(sums, path)};
    if (!counts || counts->n_elements() != squares.n_matrix()) {
      refuse("{}: tensor {}: expected {} counts beside it", path, printable(sums.name), squares.n_matrix());
    }
    const std::vector<float> n = floats_of(*counts, path);
    for (size_t i = 0; i < squares.mean.size(); ++i) {
      const float count = n[i / static_cast<size_t>(squares.k)];
      squares.mean[i] = count > 0 ? squares.mean[i] / count : 1;  // an expert that was never used: all alike
    }
    all.by_tensor_.emplace(name, std::move(squares));
  }
  if (all.by_tensor_.empty()) {
    refuse("{}: expected an importance matrix (tensors *{}), found none: make one with `1bit imatrix`", path,
           imatrix::kSums);
  }
  return all;
}

ChannelSquares* Importance::find(const TensorInfo& tensor) {
  const auto known = by_tensor_.find(tensor.name);
  if (known == by_tensor_.end()) return nullptr;
  ChannelSquares& squares = known->second;
  if (squares.k != tensor.n_cols() || tensor.n_rows() % squares.n_matrix() != 0) {
    refuse("{}: {}: expected sums for {}, found {} x {}: is it another model's?", path_, printable(tensor.name),
           shape_text(tensor.shape), squares.n_matrix(), squares.k);
  }
  return &squares;
}

void error_weights(const float* x, int64_t k, const float* squares, float* weights) {
  float mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += x[i] * x[i] / static_cast<float>(k);
  for (int64_t i = 0; i < k; ++i) weights[i] = squares[i] * std::sqrt(mean + x[i] * x[i]);
}

}  // namespace onebit
