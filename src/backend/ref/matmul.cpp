// Matrix products y = x W^T. Quantised weights: an integer dot product per group of columns, scaled and summed in f32
// in ascending order. Float weights: f32 products summed in ascending order.
#include <vector>

#include "backend/ref/call.h"
#include "backend/ref/codes.h"
#include "gguf/blocks.h"

namespace onebit::ref {
namespace {

/// One row of weights, ready for dot products with rows of activations.
class WeightRow {
 public:
  explicit WeightRow(const Weight& weight) : type_(weight.type), n_(weight.n_in()), coded_(has_codes(weight.type)) {
    if (!coded_) values_.resize(static_cast<size_t>(n_));
  }
  bool coded() const { return coded_; }

  void read(const uint8_t* bytes) {
    if (coded_) {
      read_codes(type_, bytes, n_, codes_);
    } else {
      decode_row(type_, bytes, values_.data(), n_);
    }
  }

  /// x: [n] f32.
  float dot(const float* x) const {
    float sum = 0;
    for (int64_t i = 0; i < n_; ++i) sum += x[i] * values_[static_cast<size_t>(i)];
    return sum;
  }

  /// x: [n / 32] blocks.
  float dot(const ActBlock* x) const {
    const int64_t group = codes_.group;
    float total = 0;
    for (int64_t g = 0; g < n_ / group; ++g) {
      const ActBlock& block = x[g * group / kActBlock];
      const int8_t* a = block.codes + g * group % kActBlock;
      const int8_t* w = codes_.codes.data() + g * group;
      int32_t products = 0, sum = 0;
      for (int64_t i = 0; i < group; ++i) {
        products += a[i] * w[i];
        sum += a[i];
      }
      const auto at = static_cast<size_t>(g);
      total += static_cast<float>(products) * codes_.scale[at] * block.scale;
      if (!codes_.min.empty()) total -= static_cast<float>(sum) * codes_.min[at] * block.scale;
    }
    return total;
  }

 private:
  BlockType type_;
  int64_t n_;
  bool coded_;
  CodedRow codes_;
  std::vector<float> values_;
};

/// Dot product of a weight row with row r of value x.
float dot_row(const OpCall& call, const WeightRow& row, Value x, int64_t r) {
  const int64_t width = call.info(x).width;
  if (row.coded()) return row.dot(call.data<ActBlock>(x) + r * (width / kActBlock));
  return row.dot(call.data<float>(x) + r * width);
}

}  // namespace

void matmul(const OpCall& call) {
  const Weight& w = call.weight(0);
  const int64_t n_row = call.n_row(call.step.in[0]), n_out = w.n_out(), bytes = row_bytes(w.type, w.n_in());
  WeightRow row(w);
  for (int64_t n = 0; n < n_out; ++n) {
    row.read(w.data.data() + n * bytes);
    for (int64_t r = 0; r < n_row; ++r) call.out()[r * n_out + n] = dot_row(call, row, call.step.in[0], r);
  }
}

void matmul_experts(const OpCall& call) {
  const Weight& w = call.weight(0);
  const int32_t* ids = call.data<int32_t>(call.step.in[1]);
  const int64_t n_row = call.n_row(call.step.out[0]), n_used = call.in_info(1).width;
  const int64_t n_out = w.n_out(), bytes = row_bytes(w.type, w.n_in());
  const bool shared_input = call.in_info(0).multiple == 1;  // one row per token, else one per token and expert
  WeightRow row(w);
  for (int64_t r = 0; r < n_row; ++r) {
    CHECK(ids[r] >= 0 && ids[r] < w.n_expert());
    for (int64_t n = 0; n < n_out; ++n) {
      row.read(w.data.data() + (ids[r] * n_out + n) * bytes);
      call.out()[r * n_out + n] = dot_row(call, row, call.step.in[0], shared_input ? r / n_used : r);
    }
  }
}

}  // namespace onebit::ref
