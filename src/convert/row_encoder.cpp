// Batches of row ranges: each thread decodes, rotates and encodes ranges of its own, the caller writes them in order.
#include "convert/row_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace onebit {
namespace {

constexpr int64_t kRangeElements = 1 << 18;  // about 1 MiB of f32 per thread, so that a range stays in its cache
constexpr float kLargestHalf = 65504;        // block scales and f16 values are halves

/// Every value must be finite, and within f16 unless the type has the exponents of f32.
void check_values(std::span<const float> values, BlockType type, const std::string& label) {
  const bool wide = type == BlockType::f32 || type == BlockType::bf16;
  const float limit = wide ? INFINITY : kLargestHalf;
  for (const float value : values) {
    if (std::isfinite(value) && std::fabs(value) <= limit) continue;
    refuse("{}: expected finite values{}, found {}", label, wide ? "" : " of at most 65504", value);
  }
}

/// Keeps the first exception of any thread, to be thrown by the caller.
class FirstError {
 public:
  template <class Action>
  void guard(Action action) {
    try {
      action();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void encode_rows(ThreadPool& pool, const TensorChoice& choice, int64_t n_rows, int64_t n_cols, const RowSource& source,
                 const RowSink& sink, const std::string& label) {
  const int64_t rows_per_range = std::max<int64_t>(1, kRangeElements / n_cols);
  const int64_t bytes_per_row = row_bytes(choice.type, n_cols);
  const int64_t rows_per_batch = rows_per_range * pool.size() * 4;
  std::vector<uint8_t> encoded(static_cast<size_t>(std::min(rows_per_batch, n_rows) * bytes_per_row));
  for (int64_t first = 0; first < n_rows; first += rows_per_batch) {
    const int64_t last = std::min(first + rows_per_batch, n_rows);
    std::atomic<int64_t> next{first};
    FirstError error;
    pool.run([&](int) {
      error.guard([&] {
        std::vector<float> rows(static_cast<size_t>(rows_per_range * n_cols));
        for (int64_t begin; (begin = next.fetch_add(rows_per_range)) < last;) {
          const int64_t end = std::min(begin + rows_per_range, last), n = (end - begin) * n_cols;
          source(begin, end, rows.data());
          check_values(std::span(rows).first(static_cast<size_t>(n)), choice.type, label);
          if (choice.rotated) hadamard32(rows.data(), n);
          encode_row_search(choice.type, rows.data(), encoded.data() + (begin - first) * bytes_per_row, n);
        }
      });
    });
    error.rethrow();
    sink(std::span(encoded).first(static_cast<size_t>((last - first) * bytes_per_row)));
  }
}

}  // namespace onebit
