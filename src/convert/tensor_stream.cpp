// Batches of row ranges: each thread fetches, rotates and encodes ranges of its own, the caller writes them in order.
#include "convert/tensor_stream.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/thread_pool.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace onebit {
namespace {

constexpr int64_t kRangeElements = 1 << 18;  // about 1 MiB of f32 per thread, so that a range stays in its cache
constexpr float kLargestHalf = 65504;        // block scales and f16 values are halves

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

class Stream {
 public:
  Stream(GgufWriter& writer, const std::vector<StreamTensor>& tensors, const StreamOptions& options)
      : writer_(writer), tensors_(tensors), options_(options), pool_(options.threads) {
    for (const StreamTensor& tensor : tensors_) {
      writer_.declare(tensor.name, tensor.choice.type, tensor.shape);
      bytes_total_ += tensor.bytes();
    }
  }

  void run() {
    for (current_ = 0; current_ < tensors_.size(); ++current_) {
      const StreamTensor& tensor = tensors_[current_];
      report();
      if (tensor.begin) tensor.begin();
      const std::vector<uint8_t> whole = tensor.whole ? tensor.whole() : std::vector<uint8_t>();
      if (!whole.empty()) {
        emit(tensor, whole);
      } else if (tensor.raw.empty()) {
        encode(tensor);
      } else {
        emit(tensor, tensor.raw);
      }
      if (tensor.release) tensor.release();
    }
  }

 private:
  void report() const {
    if (!options_.progress) return;
    const StreamProgress progress{static_cast<int64_t>(current_), static_cast<int64_t>(tensors_.size()),
                                  tensors_[current_].name, bytes_done_, bytes_total_};
    if (!options_.progress(progress)) fail(ErrorKind::runtime, "{}: stopped; nothing was written", options_.source);
  }

  void emit(const StreamTensor& tensor, std::span<const uint8_t> bytes) {
    writer_.write(tensor.name, bytes);
    bytes_done_ += static_cast<int64_t>(bytes.size());
    report();
  }

  void encode(const StreamTensor& tensor) {
    const int64_t rows_per_range = std::max<int64_t>(1, kRangeElements / tensor.n_cols());
    const int64_t rows_per_batch = rows_per_range * pool_.size() * 4;
    const int64_t bytes_per_row = row_bytes(tensor.choice.type, tensor.n_cols());
    encoded_.resize(static_cast<size_t>(std::min(rows_per_batch, tensor.n_rows()) * bytes_per_row));
    for (int64_t first = 0; first < tensor.n_rows(); first += rows_per_batch) {
      const int64_t last = std::min(first + rows_per_batch, tensor.n_rows());
      encode_batch(tensor, first, last, rows_per_range);
      emit(tensor, std::span(encoded_).first(static_cast<size_t>((last - first) * bytes_per_row)));
    }
  }

  /// Rows [begin, end), ready to be rounded.
  void encode_rows(const StreamTensor& tensor, int64_t begin, int64_t end, const float* rows, uint8_t* to) const {
    const int64_t n_cols = tensor.n_cols(), bytes = row_bytes(tensor.choice.type, n_cols);
    if (!options_.search) return encode_row(tensor.choice.type, rows, to, (end - begin) * n_cols);
    if (!tensor.squares) return encode_row_search(tensor.choice.type, rows, to, (end - begin) * n_cols);
    std::vector<float> weights(static_cast<size_t>(n_cols));
    const int64_t rows_per_matrix = tensor.n_rows() / tensor.squares->n_matrix();
    for (int64_t r = begin; r < end; ++r, rows += n_cols, to += bytes) {
      error_weights(rows, n_cols, tensor.squares->mean.data() + r / rows_per_matrix * n_cols, weights.data());
      encode_row_search(tensor.choice.type, rows, to, n_cols, weights.data());
    }
  }

  void encode_batch(const StreamTensor& tensor, int64_t first, int64_t last, int64_t rows_per_range) {
    const int64_t n_cols = tensor.n_cols(), bytes_per_row = row_bytes(tensor.choice.type, n_cols);
    const std::string label = options_.source + ": tensor " + printable(tensor.name);
    std::atomic<int64_t> next{first};
    FirstError error;
    pool_.run([&](int) {
      error.guard([&] {
        std::vector<float> rows(static_cast<size_t>(std::min(rows_per_range, last - first) * n_cols));
        for (int64_t begin; (begin = next.fetch_add(rows_per_range)) < last;) {
          const int64_t end = std::min(begin + rows_per_range, last), n = (end - begin) * n_cols;
          tensor.rows(begin, end, rows.data());
          check_values(std::span(rows).first(static_cast<size_t>(n)), tensor.choice.type, label);
          if (tensor.choice.rotated) hadamard32(rows.data(), n);
          encode_rows(tensor, begin, end, rows.data(), encoded_.data() + (begin - first) * bytes_per_row);
        }
      });
    });
    error.rethrow();
  }

  GgufWriter& writer_;
  const std::vector<StreamTensor>& tensors_;
  const StreamOptions& options_;
  ThreadPool pool_;
  std::vector<uint8_t> encoded_;
  size_t current_ = 0;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

}  // namespace

void check_values(std::span<const float> values, BlockType type, const std::string& label) {
  const bool wide = type == BlockType::f32 || type == BlockType::bf16;
  const float limit = wide ? std::numeric_limits<float>::max() : kLargestHalf;
  unsigned bad = 0;  // a sum instead of a way out, so that the loop becomes vectors
  for (const float value : values) bad |= std::fabs(value) <= limit ? 0u : 1u;
  if (bad == 0) return;
  for (const float value : values) {
    if (std::fabs(value) <= limit) continue;
    refuse("{}: expected finite values{}, found {}", label, wide ? "" : " of at most 65504", value);
  }
}

int64_t StreamTensor::n_rows() const {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

void write_tensors(GgufWriter& writer, const std::vector<StreamTensor>& tensors, const StreamOptions& options) {
  Stream(writer, tensors, options).run();
}

}  // namespace onebit
