#include "measure/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "convert/tensor_stream.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace onebit {
namespace {

/// H (I x H32) on both sides: moments of rotated inputs.
void rotate_moments(std::vector<float>& h, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < i; ++j) h[static_cast<size_t>(i * k + j)] = h[static_cast<size_t>(j * k + i)];
  }
  for (int side = 0; side < 2; ++side) {
    hadamard32(h.data(), k * k);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < i; ++j) std::swap(h[static_cast<size_t>(i * k + j)], h[static_cast<size_t>(j * k + i)]);
    }
  }
}

/// Adds the squares of each column.
void add_column_squares(const Weight& weight, std::vector<double>& sums) {
  const int64_t k = weight.n_in(), bytes = row_bytes(weight.type, k);
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < weight.n_out() * weight.n_expert(); ++r) {
    decode_row(weight.type, weight.data.data() + r * bytes, row.data(), k);
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += static_cast<double>(row[j]) * row[j];
  }
}

}  // namespace

Calibration::Calibration(const GgufFile& file, MomentSource& source, CalibrationOptions options)
    : file_(file), source_(source), options_(std::move(options)), pool_(options_.threads) {}

void Calibration::begin_block(int64_t block) {
  if (block == block_) return;
  block_ = block;
  inputs_.clear();
  factors_.clear();
  if (block < 0 || block >= source_.blocks().n_block()) return;  // beside the blocks, or of a drafting head
  for (InputMoments& input : source_.block(block)) {
    inputs_.push_back({std::move(input.group), std::move(input.moments), nullptr, false});
  }
  if (options_.balance != 0) balance();
}

/// Inputs of one value, whatever reads it, are balanced together; those with a row per expert are left alone.
void Calibration::balance() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Moments& moments = inputs_[i].moments;
    const bool first = std::none_of(inputs_.begin(), inputs_.begin() + static_cast<int64_t>(i),
                                    [&](const Input& other) { return other.group.x.id == inputs_[i].group.x.id; });
    const int64_t multiple = source_.blocks().plan().info(inputs_[i].group.x).multiple;
    if (!first || !has_moments(inputs_[i].group) || multiple != 1) continue;
    BalancedInput input{inputs_[i].group.x, {}, {}, {}};
    std::vector<double> energy(static_cast<size_t>(moments.k)), norms(static_cast<size_t>(moments.k));
    for (const Input& reader : inputs_) {
      if (reader.group.x.id != input.x.id) continue;
      input.matrices.insert(input.matrices.end(), reader.group.matrices.begin(), reader.group.matrices.end());
      for (const std::vector<float>& sum : reader.moments.sums) {
        for (int64_t j = 0; j < moments.k && !sum.empty(); ++j) {
          energy[static_cast<size_t>(j)] += sum[static_cast<size_t>(j * moments.k + j)];
        }
      }
    }
    for (const Weight* matrix : input.matrices) {
      add_column_squares(*matrix, norms);
      file_.release(file_.tensor(matrix->name));
    }
    for (size_t j = 0; j < norms.size(); ++j) {
      input.rms.push_back(static_cast<float>(std::sqrt(energy[j])));
      input.column_norm.push_back(static_cast<float>(std::sqrt(norms[j])));
    }
    balance_input(source_.blocks().plan(), input, options_.balance, factors_);
  }
}

Calibration::Input* Calibration::input_of(const std::string& tensor) {
  for (Input& input : inputs_) {
    for (const Weight* weight : input.group.matrices) {
      if (weight->name == tensor) return &input;
    }
  }
  return nullptr;
}

std::vector<float> Calibration::moments_for(const Input& input, int64_t index, const std::string& tensor,
                                            bool rotated) const {
  const int64_t k = input.moments.k;
  std::vector<float> h = input.moments.mean(index);
  const auto factors = factors_.find(tensor);
  if (factors != factors_.end() && !factors->second.columns.empty()) {
    const std::vector<float>& columns = factors->second.columns;  // on the weights: the inputs take the inverse
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = i; j < k; ++j) {
        h[static_cast<size_t>(i * k + j)] /= columns[static_cast<size_t>(i)] * columns[static_cast<size_t>(j)];
      }
    }
  }
  if (rotated) rotate_moments(h, k);
  return h;
}

const GptqMetric& Calibration::metric_for(Input& input, const std::string& tensor, bool rotated) {
  if (!input.metric || input.metric_rotated != rotated) {
    input.metric =
        std::make_unique<GptqMetric>(moments_for(input, 0, tensor, rotated), input.moments.k, options_.damping, pool_);
    input.metric_rotated = rotated;
  }
  return *input.metric;
}

void Calibration::change_rows(const TensorInfo& tensor, int64_t begin, int64_t end, float* rows) const {
  const auto factors = factors_.find(tensor.name);
  if (factors == factors_.end()) return;
  const auto& [columns, row_factors] = factors->second;
  for (int64_t r = begin; r < end; ++r, rows += tensor.n_cols()) {
    const float row = row_factors.empty() ? 1.0f : row_factors[static_cast<size_t>(r)];
    for (int64_t i = 0; i < tensor.n_cols(); ++i) {
      rows[i] *= columns.empty() ? row : row * columns[static_cast<size_t>(i)];
    }
  }
}

std::vector<uint8_t> Calibration::encode(const TensorInfo& tensor, const TensorChoice& choice) {
  Input* input = choice.type == BlockType::q4_0 ? input_of(tensor.name) : nullptr;
  if (!input) return {};
  const int64_t k = tensor.n_cols(), n_matrix = input->group.n_matrix(), n = tensor.n_rows() / n_matrix;
  const int64_t bytes = row_bytes(BlockType::q4_0, k);
  std::vector<uint8_t> out(static_cast<size_t>(tensor.n_rows() * bytes));
  std::vector<float> w(static_cast<size_t>(n * k));
  const std::string label = file_.path() + ": tensor " + printable(tensor.name);
  for (int64_t m = 0; m < n_matrix; ++m) {
    options_.stop();
    decode_row(tensor.type, tensor.data.data() + m * n * tensor.row_bytes(), w.data(), n * k);
    change_rows(tensor, m * n, (m + 1) * n, w.data());
    check_values(w, choice.type, label);
    if (choice.rotated) hadamard32(w.data(), n * k);
    uint8_t* to = out.data() + m * n * bytes;
    if (n_matrix == 1) {
      gptq_q4_0(metric_for(*input, tensor.name, choice.rotated), w.data(), n, to, options_.gptq, pool_);
    } else {
      const GptqMetric metric(moments_for(*input, m, tensor.name, choice.rotated), k, options_.damping, pool_);
      gptq_q4_0(metric, w.data(), n, to, options_.gptq, pool_);
    }
  }
  return out;
}

}  // namespace onebit
