// The grouped dynamic causal convolution of DFlash2 drafters, inside each sequence's rows.
#include <algorithm>

#include "backend/ref/call.h"

namespace onebit::ref {

void block_conv(const OpCall& call) {
  const auto& params = call.params<BlockConvParams>();
  const int64_t width = call.out_info(0).width, n_group = width / params.group, n_tap = params.n_tap;
  const float *x = call.in(0), *delta = call.in(1), *base = call.operand(0);
  for (const Sequence& sequence : call.batch.sequences) {
    for (int64_t i = 0; i < sequence.n_tok; ++i) {
      const int64_t r = sequence.row + i;
      for (int64_t c = 0; c < width; ++c) {
        float sum = 0;
        for (int64_t t = 0; t < std::min(n_tap, i + 1); ++t) {
          const int64_t tap = params.side * n_tap + t;
          const float coefficient = base[tap * width + c] + delta[(r * 2 * n_tap + tap) * n_group + c / params.group];
          sum += coefficient * x[(r - t) * width + c];
        }
        call.out()[r * width + c] = sum;
      }
    }
  }
}

}  // namespace onebit::ref
