#include "measure/gptq.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/host_gemm.h"
#include "base/error.h"
#include "base/half.h"
#include "gguf/types.h"
#include "measure/gptq_block.h"

namespace onebit {
namespace {

constexpr int64_t kB = kGptqBlock;
constexpr int64_t kPanelRows = 64;  // rows of a product that one thread takes at a time

using Dense = double[kB][kB];

/// s = u diag(d) u' with u unit upper; a pivot that rounding has made useless becomes `least`.
void factor(const Dense& s, double least, Dense& u, double (&d)[kB]) {
  for (int64_t j = kB - 1; j >= 0; --j) {
    double pivot = s[j][j];
    for (int64_t m = j + 1; m < kB; ++m) pivot -= u[j][m] * u[j][m] * d[m];
    d[j] = pivot > least ? pivot : least;
    for (int64_t i = 0; i < kB; ++i) u[i][j] = i == j ? 1 : 0;
    for (int64_t i = 0; i < j; ++i) {
      double value = s[i][j];
      for (int64_t m = j + 1; m < kB; ++m) value -= u[i][m] * u[j][m] * d[m];
      u[i][j] = value / d[j];
    }
  }
}

/// inverse of u diag(d) u'.
void invert(const Dense& u, const double (&d)[kB], Dense& inverse) {
  Dense v;  // inverse of u
  for (int64_t j = 0; j < kB; ++j) {
    for (int64_t i = kB - 1; i >= 0; --i) {
      double value = i == j ? 1 : 0;
      for (int64_t m = i + 1; m < kB; ++m) value -= u[i][m] * v[m][j];
      v[i][j] = value;
    }
  }
  for (int64_t i = 0; i < kB; ++i) {
    for (int64_t j = 0; j < kB; ++j) {
      double value = 0;
      for (int64_t m = 0; m < kB; ++m) value += v[m][i] * v[m][j] / d[m];
      inverse[i][j] = value;
    }
  }
}

/// Calls f(begin, end) for pieces of [0, n) on all threads.
template <class F>
void in_pieces(ThreadPool& pool, int64_t n, int64_t piece, F f) {
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t i = next.fetch_add(piece); i < n; i = next.fetch_add(piece)) f(i, std::min(i + piece, n));
  });
}

/// Metric and inverse of the block at `at` of the symmetric matrix a [k, k], of which the upper triangle is read.
template <class Block>
void block_metric(const std::vector<float>& a, int64_t k, int64_t at, double least, Block& block, float* inverse) {
  Dense s, u, s_inverse;
  double d[kB];
  for (int64_t i = 0; i < kB; ++i) {
    for (int64_t j = 0; j < kB; ++j) s[i][j] = a[static_cast<size_t>((at + std::min(i, j)) * k + at + std::max(i, j))];
  }
  factor(s, least, u, d);
  invert(u, d, s_inverse);
  for (int64_t i = 0; i < kB; ++i) {
    block.d[i] = static_cast<float>(d[i]);
    for (int64_t j = 0; j < kB; ++j) {
      block.u[i][j] = static_cast<float>(u[i][j]);
      inverse[i * kB + j] = static_cast<float>(s_inverse[i][j]);
    }
  }
}

}  // namespace

GptqMetric::GptqMetric(std::vector<float> h, int64_t k, double damping, ThreadPool& pool) : k_(k) {
  CHECK(k % kB == 0 && static_cast<int64_t>(h.size()) == k * k);
  const int64_t n_block = k / kB;
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += h[static_cast<size_t>(i * k + i)] / static_cast<double>(k);
  if (!(mean > 0)) mean = 1;
  const double least = 1e-6 * mean;
  for (int64_t i = 0; i < k; ++i) h[static_cast<size_t>(i * k + i)] += static_cast<float>(damping * mean);
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < i; ++j) h[static_cast<size_t>(i * k + j)] = h[static_cast<size_t>(j * k + i)];
  }
  first_.blocks.resize(static_cast<size_t>(n_block));
  again_.blocks.resize(static_cast<size_t>(n_block));
  first_.panels.resize(static_cast<size_t>(first_panel(n_block)));
  again_.panels.resize(static_cast<size_t>(k * k));
  float inverse[kB * kB];
  // H[:, B] H_BB^-1, for the later rounds.
  for (int64_t b = 0; b < n_block; ++b) {
    block_metric(h, k, b * kB, least, again_.blocks[static_cast<size_t>(b)], inverse);
    float* panel = again_.panels.data() + b * k * kB;
    in_pieces(pool, k, kPanelRows, [&](int64_t begin, int64_t end) {
      host_gemm(h.data() + begin * k + b * kB, k, 1, inverse, kB, panel + begin * kB, kB, end - begin, kB, kB, false);
    });
  }
  // From the last block on: S_PB S_BB^-1 of the Schur complement S, which then loses its last block.
  std::vector<float> row(static_cast<size_t>(kB * k));
  for (int64_t b = n_block - 1; b >= 0; --b) {
    const int64_t at = b * kB;
    block_metric(h, k, at, least, first_.blocks[static_cast<size_t>(b)], inverse);
    float* panel = first_.panels.data() + first_panel(b);
    for (int64_t i = 0; i < at; ++i) {
      for (int64_t j = 0; j < kB; ++j) row[static_cast<size_t>(j * at + i)] = h[static_cast<size_t>(i * k + at + j)];
    }
    in_pieces(pool, at, kPanelRows, [&](int64_t begin, int64_t end) {
      host_gemm(h.data() + begin * k + at, k, 1, inverse, kB, panel + begin * kB, kB, end - begin, kB, kB, false);
      for (int64_t i = begin * kB; i < end * kB; ++i) panel[i] = -panel[i];  // the product below subtracts
      host_gemm(panel + begin * kB, kB, 1, row.data() + begin, at, h.data() + begin * k + begin, k, end - begin,
                at - begin, kB, true);
      for (int64_t i = begin * kB; i < end * kB; ++i) panel[i] = -panel[i];
    });
  }
}

/// Rounds a few rows at a time, all blocks after one another.
class GptqRounder {
 public:
  static constexpr int64_t kRows = 128;  // a multiple of kGptqLanes

  GptqRounder(const GptqMetric& metric) : metric_(metric), k_(metric.k_) {
    const auto size = static_cast<size_t>(kRows * k_);
    error_.resize(size);
    rounded_.resize(size);
    target_.resize(static_cast<size_t>(kRows * kB));
    codes_.resize(size);
    scales_.resize(size / kB);
  }

  /// Rows w [n, k], n up to kRows.
  void run(const float* w, int64_t n, uint8_t* out, const GptqOptions& options) {
    std::fill(error_.begin(), error_.end(), 0.0f);
    for (int64_t b = 0; b < k_ / kB; ++b) round_first(w, n, b);
    for (int i = 0; i < options.n_again; ++i) {
      for (int64_t b = 0; b < k_ / kB; ++b) round_again(w, n, b);
    }
    write(n, out);
  }

 private:
  void round_first(const float* w, int64_t n, int64_t b) {
    const float* panel = metric_.first_.panels.data() + GptqMetric::first_panel(b);
    for (int64_t r = 0; r < n; ++r) std::memcpy(&target_[idx(r * kB)], w + r * k_ + b * kB, kB * 4);
    if (b > 0) host_gemm(error_.data(), k_, 1, panel, kB, target_.data(), kB, n, kB, b * kB, true);
    round_block(w, n, b, metric_.first_.blocks[idx(b)], false);
  }

  void round_again(const float* w, int64_t n, int64_t b) {
    const float* panel = metric_.again_.panels.data() + b * k_ * kB;
    for (int64_t r = 0; r < n; ++r) std::memcpy(&target_[idx(r * kB)], &rounded_[idx(r * k_ + b * kB)], kB * 4);
    host_gemm(error_.data(), k_, 1, panel, kB, target_.data(), kB, n, kB, k_, true);
    round_block(w, n, b, metric_.again_.blocks[idx(b)], true);
  }

  /// `keep`: what the block has stays where nothing better is found.
  void round_block(const float* w, int64_t n, int64_t b, const GptqMetric::Block& metric, bool keep) {
    for (int64_t r = 0; r < n; r += kGptqLanes) {
      GptqLanes lanes;
      const int64_t count = std::min<int64_t>(kGptqLanes, n - r);
      for (int64_t l = 0; l < kGptqLanes; ++l) {
        const int64_t row = r + std::min(l, count - 1);
        for (int64_t j = 0; j < kB; ++j) {
          lanes.target[j][l] = target_[idx(row * kB + j)];
          lanes.code[j][l] = codes_[idx(row * k_ + b * kB + j)];
        }
        lanes.scale[l] = scales_[idx(row * (k_ / kB) + b)];
      }
      round_lanes(&metric.u[0][0], metric.d, keep, lanes);
      for (int64_t l = 0; l < count; ++l) {
        scales_[idx((r + l) * (k_ / kB) + b)] = lanes.scale[l];
        for (int64_t j = 0; j < kB; ++j) {
          const int64_t at = (r + l) * k_ + b * kB + j;
          codes_[idx(at)] = lanes.code[j][l];
          rounded_[idx(at)] = lanes.code[j][l] * lanes.scale[l];
          error_[idx(at)] = w[at] - rounded_[idx(at)];
        }
      }
    }
  }

  void write(int64_t n, uint8_t* out) const {
    for (int64_t i = 0; i < n * k_ / kB; ++i, out += 18) {
      const uint16_t scale = f32_to_f16(scales_[idx(i)]);
      std::memcpy(out, &scale, 2);
      for (int64_t j = 0; j < 16; ++j) {
        const auto low = static_cast<uint8_t>(codes_[idx(i * kB + j)] + 8);
        const auto high = static_cast<uint8_t>(codes_[idx(i * kB + 16 + j)] + 8);
        out[2 + j] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }

  static size_t idx(int64_t i) { return static_cast<size_t>(i); }

  const GptqMetric& metric_;
  int64_t k_;
  std::vector<float> error_, rounded_, target_, codes_, scales_;
};

void gptq_q4_0(const GptqMetric& metric, const float* w, int64_t n, uint8_t* out, const GptqOptions& options,
               ThreadPool& pool) {
  const int64_t k = metric.k(), bytes = row_bytes(BlockType::q4_0, k);
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    GptqRounder rounder(metric);
    for (int64_t r = next.fetch_add(GptqRounder::kRows); r < n; r = next.fetch_add(GptqRounder::kRows)) {
      rounder.run(w + r * k, std::min(GptqRounder::kRows, n - r), out + r * bytes, options);
    }
  });
}

}  // namespace onebit
