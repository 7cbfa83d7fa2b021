#include "measure/evaluation.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/thread_pool.h"

namespace onebit {
namespace {

struct RowScore {
  double nll = 0, divergence = 0;
  bool same_top = false;
};

double log_sum(std::span<const float> logits, float peak) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - peak);
  return std::log(sum) + peak;
}

size_t top(std::span<const float> x) { return static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin()); }

struct Mean {
  double value = 0, error = 0;
};

/// Mean and its standard error.
template <class Get>
Mean mean_of(const std::vector<RowScore>& rows, Get get) {
  double sum = 0, squares = 0;
  for (const RowScore& row : rows) {
    sum += get(row);
    squares += get(row) * get(row);
  }
  const auto n = static_cast<double>(rows.size());
  const double mean = sum / n, variance = std::max(squares / n - mean * mean, 0.0);
  return {mean, n > 1 ? std::sqrt(variance / (n - 1)) : 0};
}

double percentile(const std::vector<RowScore>& rows, double share) {
  std::vector<double> values;
  for (const RowScore& row : rows) values.push_back(row.divergence);
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

Evaluation summarise(const std::vector<RowScore>& rows, const TextChunks& chunks, bool compared) {
  Evaluation result;
  result.n_chunk = chunks.n_chunk();
  result.n_tok = static_cast<int64_t>(rows.size());
  const Mean nll = mean_of(rows, [](const RowScore& r) { return r.nll; });
  result.ppl = std::exp(nll.value);
  result.ppl_err = nll.error * result.ppl;
  result.compared = compared;
  if (!compared) return result;
  const Mean kld = mean_of(rows, [](const RowScore& r) { return r.divergence; });
  const Mean same = mean_of(rows, [](const RowScore& r) { return r.same_top ? 1.0 : 0.0; });
  result.kld_mean = kld.value;
  result.kld_err = kld.error;
  result.kld_p99 = percentile(rows, 0.99);
  result.same_top = same.value;
  result.same_top_err = same.error;
  return result;
}

}  // namespace

double row_nll(std::span<const float> logits, int32_t next) {
  return log_sum(logits, *std::max_element(logits.begin(), logits.end())) - logits[static_cast<size_t>(next)];
}

double row_divergence(const CodeTable& table, std::span<const uint16_t> codes, std::span<const float> logits,
                      bool& same_top) {
  // sum p (ln p - ln q) with p = e(code) / z and q = exp(logit - log_q).
  const size_t best = top(logits);
  const double log_q = log_sum(logits, logits[best]);
  double z = 0, sum = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const double weight = table.probability[codes[i]];
    z += weight;
    sum += weight * (static_cast<double>(table.log[codes[i]]) - logits[i]);
  }
  same_top = codes[best] == 0;
  return sum / z - std::log(z) + log_q;
}

Evaluation evaluate(LoadedModel& model, const TextChunks& chunks, const EvaluationFiles& files,
                    const std::function<void(double)>& progress) {
  const int64_t n_vocab = model.model().config().n_vocab, per_chunk = scored_rows(chunks.n_ctx);
  std::unique_ptr<LogitsWriter> save;
  std::unique_ptr<LogitsReader> against;
  if (!files.against.empty()) against = std::make_unique<LogitsReader>(files.against, chunks, n_vocab);
  if (!files.save.empty()) {
    save = std::make_unique<LogitsWriter>(files.save, chunks, n_vocab, model.model().file().path());
  }
  const CodeTable table;
  ThreadPool pool(0);
  std::vector<RowScore> scores(static_cast<size_t>(chunks.n_chunk() * per_chunk));
  for (int64_t c = 0; c < chunks.n_chunk(); ++c) {
    model.run(chunks.evaluated(c), first_scored(chunks.n_ctx), [&](int64_t pos, std::span<const float> logits) {
      const int64_t n = std::min(static_cast<int64_t>(logits.size()) / n_vocab, chunks.n_ctx - 1 - pos);
      const int64_t row = c * per_chunk + pos - first_scored(chunks.n_ctx);
      std::atomic<int64_t> next{0};
      pool.run([&](int) {
        for (int64_t i = next++; i < n; i = next++) {
          RowScore& score = scores[static_cast<size_t>(row + i)];
          const auto one = logits.subspan(static_cast<size_t>(i * n_vocab), static_cast<size_t>(n_vocab));
          score.nll = row_nll(one, chunks.tokens[static_cast<size_t>(c * chunks.n_ctx + pos + i + 1)]);
          if (against) score.divergence = row_divergence(table, against->row(row + i), one, score.same_top);
        }
      });
      if (save) save->add(logits.first(static_cast<size_t>(n * n_vocab)));
    });
    progress(static_cast<double>(c + 1) / static_cast<double>(chunks.n_chunk()));
  }
  if (save) save->finish();
  return summarise(scores, chunks, against != nullptr);
}

}  // namespace onebit
