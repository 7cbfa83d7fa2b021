#include "measure/moments.h"

#include <algorithm>
#include <atomic>

#include "backend/host_gemm.h"
#include "base/error.h"
#include "measure/gptq.h"

namespace onebit {
namespace {

constexpr int64_t kPanel = 48;      // rows of a product of moments that one thread takes
constexpr int64_t kPriorRows = 64;  // weight of the average of all experts, in rows

}  // namespace

Moments Moments::none(int64_t k, int64_t n_matrix) {
  const auto n = static_cast<size_t>(n_matrix);
  return {k, std::vector<std::vector<float>>(n), std::vector<int64_t>(n)};
}

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

bool has_moments(const InputGroup& group) { return group.k % kGptqBlock == 0; }

TextMoments::TextMoments(Model& model, const TextChunks& chunks, const MeasureOptions& options,
                         std::function<void()> stop)
    : pool_(options.backend.n_threads), walk_(model, chunks, options), stop_(std::move(stop)) {}

std::vector<InputMoments> TextMoments::block(int64_t i) {
  CHECK(walk_.next() <= i);
  std::vector<InputMoments> inputs;
  for (const InputGroup& group : blocks().groups(i))
    inputs.push_back({group, Moments::none(group.k, group.n_matrix())});
  while (walk_.next() <= i) {
    const bool wanted = walk_.next() == i;
    walk_.run(
        [&](const InputGroup& group, const InputRows& rows) {
          if (!wanted || !has_moments(group)) return;
          const auto known = std::find_if(inputs.begin(), inputs.end(), [&](const InputMoments& input) {
            return input.group.x.id == group.x.id && input.group.n_used == group.n_used;
          });
          CHECK(known != inputs.end());
          add(rows, *known);
        },
        stop_);
  }
  return inputs;
}

void TextMoments::add(const InputRows& rows, InputMoments& to) {
  const InputGroup& group = to.group;
  if (group.n_used == 0) return to.moments.add(0, rows.x.data(), rows.n_row, pool_);
  for (int64_t expert = 0; expert < group.n_matrix(); ++expert) {
    gathered_.clear();
    for (size_t i = 0; i < rows.ids.size(); ++i) {
      if (rows.ids[i] != expert) continue;
      const auto row = static_cast<int64_t>(i) / (rows.multiple == 1 ? group.n_used : 1);
      const auto from = rows.x.begin() + row * group.k;
      gathered_.insert(gathered_.end(), from, from + group.k);
    }
    const auto n = static_cast<int64_t>(gathered_.size()) / group.k;
    if (n > 0) to.moments.add(expert, gathered_.data(), n, pool_);
  }
}

}  // namespace onebit
