// Rounding of a matrix to q4_0 so that its outputs, not its elements, stay close: errors of a block of 32 columns are
// made up for by the columns that are still free (GPTQ). In: the matrix, the second moments of its inputs. Out: q4_0
// rows.
//
// With H the moments and E = W - Q the error of a row, the loss is E H E'. Blocks of 32 columns are rounded from left
// to right; the block's target is what minimises the loss for the errors so far with everything to the right free, its
// metric the Schur complement of H. Then every block is rounded once more against the errors of all others, with H
// itself as metric, which never increases the loss. Within a block the same idea works column by column, for each of a
// few scales, and the cheapest result is taken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace onebit {

inline constexpr int64_t kGptqBlock = 32;

/// The factors of one H, shared by all matrices that read the same input.
class GptqMetric {
 public:
  /// h [k, k] (the upper triangle counts, k a multiple of 32), `damping`: share of the mean of its diagonal that is
  /// added to the diagonal. Only zeros on the diagonal are fine.
  GptqMetric(std::vector<float> h, int64_t k, double damping, ThreadPool& pool);

  int64_t k() const { return k_; }

 private:
  friend class GptqRounder;
  struct Block {
    float u[kGptqBlock][kGptqBlock];  // unit upper, the block's metric is u diag(d) u'
    float d[kGptqBlock];
  };
  /// A metric per block and where errors of other blocks move its target: panel [n, 32] per block.
  struct Pass {
    std::vector<Block> blocks;
    std::vector<float> panels;
  };
  /// First row of block b's panel in `first_`: b earlier blocks have 0, 1, ... b-1 blocks of rows.
  static int64_t first_panel(int64_t b) { return b * (b - 1) / 2 * kGptqBlock * kGptqBlock; }

  int64_t k_;
  Pass first_, again_;
};

struct GptqOptions {
  int n_again = 2;  ///< further rounds over all blocks
};

/// Rounds w [n, k] into out [n, row_bytes(q4_0, k)].
void gptq_q4_0(const GptqMetric& metric, const float* w, int64_t n, uint8_t* out, const GptqOptions& options,
               ThreadPool& pool);

}  // namespace onebit
