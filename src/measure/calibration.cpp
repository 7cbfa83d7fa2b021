#include "measure/calibration.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "backend/host_gemm.h"
#include "base/error.h"
#include "convert/tensor_stream.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace onebit {
namespace {

constexpr int64_t kPanel = 48;      // rows of a product of moments that one thread takes
constexpr int64_t kPriorRows = 64;  // weight of the average of all experts, in rows

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

void Moments::add(int64_t index, const float* x, int64_t n, ThreadPool& pool) {
  std::vector<float>& sum = sums[static_cast<size_t>(index)];
  if (sum.empty()) sum.resize(static_cast<size_t>(k * k));
  counts[static_cast<size_t>(index)] += n;
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t i = next.fetch_add(kPanel); i < k; i = next.fetch_add(kPanel)) {
      host_gemm(x + i, 1, k, x + i, k, sum.data() + i * k + i, k, std::min(kPanel, k - i), k - i, n, true);
    }
  });
}

std::vector<float> Moments::mean(int64_t index) const {
  std::vector<float> mean(static_cast<size_t>(k * k));
  const auto add = [&](const std::vector<float>& sum, double factor) {
    for (size_t i = 0; i < sum.size(); ++i) mean[i] += static_cast<float>(factor * sum[i]);
  };
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  if (total == 0) return mean;
  const int64_t own = counts[static_cast<size_t>(index)], prior = counts.size() > 1 ? kPriorRows : 0;
  const double per_row = 1.0 / static_cast<double>(own + prior);
  add(sums[static_cast<size_t>(index)], per_row);
  for (const std::vector<float>& sum : sums) {
    if (prior > 0) add(sum, per_row * static_cast<double>(prior) / static_cast<double>(total));
  }
  return mean;
}

Calibration::Calibration(Model& model, const TextChunks& chunks, CalibrationOptions options)
    : model_(model),
      options_(std::move(options)),
      pool_(options_.measure.backend.n_threads),
      walk_(model, chunks, options_.measure) {}

void Calibration::begin_block(int64_t block) {
  if (block == block_) return;
  block_ = block;
  inputs_.clear();
  factors_.clear();
  while (walk_.next() <= block && walk_.next() < walk_.n_block()) {
    const bool wanted = walk_.next() == block;
    if (wanted) {
      for (InputGroup& group : walk_.groups(block)) {
        Input input;
        const auto n = static_cast<size_t>(group.n_matrix());
        input.moments = {group.k, std::vector<std::vector<float>>(n), std::vector<int64_t>(n)};
        input.group = std::move(group);
        inputs_.push_back(std::move(input));
      }
    }
    walk_.run(
        [&](const InputGroup& group, const InputRows& rows) {
          if (wanted) collect(group, rows);
        },
        options_.stop);
  }
  if (options_.balance != 0) balance();
}

/// Inputs of one value, whatever reads it, are balanced together; those with a row per expert are left alone.
void Calibration::balance() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Moments& moments = inputs_[i].moments;
    const bool first = std::none_of(inputs_.begin(), inputs_.begin() + static_cast<int64_t>(i),
                                    [&](const Input& other) { return other.group.x.id == inputs_[i].group.x.id; });
    if (!first || moments.k % kGptqBlock != 0 || walk_.plan().info(inputs_[i].group.x).multiple != 1) continue;
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
    for (const Weight* matrix : input.matrices) add_column_squares(*matrix, norms);
    for (size_t j = 0; j < norms.size(); ++j) {
      input.rms.push_back(static_cast<float>(std::sqrt(energy[j])));
      input.column_norm.push_back(static_cast<float>(std::sqrt(norms[j])));
    }
    balance_input(walk_.plan(), input, options_.balance, factors_);
  }
}

void Calibration::collect(const InputGroup& group, const InputRows& rows) {
  const auto known = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& input) {
    return input.group.x.id == group.x.id && input.group.n_used == group.n_used;
  });
  CHECK(known != inputs_.end());
  if (group.k % kGptqBlock != 0) return;
  if (group.n_used == 0) return known->moments.add(0, rows.x.data(), rows.n_row, pool_);
  for (int64_t expert = 0; expert < group.n_matrix(); ++expert) {
    gathered_.clear();
    for (size_t i = 0; i < rows.ids.size(); ++i) {
      if (rows.ids[i] != expert) continue;
      const auto row = static_cast<int64_t>(i) / (rows.multiple == 1 ? group.n_used : 1);
      const auto from = rows.x.begin() + row * group.k;
      gathered_.insert(gathered_.end(), from, from + group.k);
    }
    const auto n = static_cast<int64_t>(gathered_.size()) / group.k;
    if (n > 0) known->moments.add(expert, gathered_.data(), n, pool_);
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
  const std::string label = model_.file().path() + ": tensor " + printable(tensor.name);
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
