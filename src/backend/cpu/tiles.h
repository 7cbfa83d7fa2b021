// How quantised activations (tiles of 16 tokens, layout.h) and strips of weights are walked; shared by matmul and
// matmul_experts.
#pragma once

#include "backend/cpu/step.h"

namespace onebit::cpu {

/// Rows of activations of 32 * n_block columns, in Pages: behind the last, up to 512 bytes are read, but not used.
struct ActRows {
  uint8_t* data = nullptr;
  int64_t n_tok = 0, n_block = 0;

  int64_t n_tile() const { return (n_tok + kTileTokens - 1) / kTileTokens; }
  int tile_tokens(int64_t tile) const {
    const int64_t left = n_tok - tile * kTileTokens;
    return static_cast<int>(left < kTileTokens ? left : kTileTokens);
  }
  uint8_t* tile(int64_t tile) const { return data + tile * kTileTokens * n_block * kActBlockBytes; }
};

/// Where results go: row t of the product to y + t * y_row, or to y + rows[t] * y_row.
struct Results {
  float* y = nullptr;
  int64_t y_row = 0;
  const int32_t* rows = nullptr;

  float* row(int64_t t) const { return y + (rows ? rows[t] : t) * y_row; }
};

/// Scratch of a thread for multiply_strips().
int64_t strip_scratch_bytes();

/// Kernels::enter and leave of a thread around its products of `weight` with up to n_tok rows.
class Entered {
 public:
  Entered(const Kernels& kernels, const LoadedWeight& weight, int64_t n_tok);
  ~Entered() {
    if (leave_) leave_();
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  void (*leave_)() = nullptr;
};

/// Outputs of the strips in `strips` (16 rows of `weight` each) for all rows of `x`, within an Entered.
void multiply_strips(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const ActRows& x, const Results& to, uint8_t* scratch);

/// The same for float weights; x [n_tok, n_in] f32. `scratch`: [n_tok, 64] floats when `to` scatters rows.
void multiply_floats(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const float* x, int64_t n_tok, const Results& to, float* scratch);

/// Outputs of the strips of a matmul step for all its rows.
void multiply_claim(const CpuStep& step, Worker& worker, Range strips, const Results& to, uint8_t* scratch);

constexpr int64_t kMostStripsPerClaim = 16;
/// Strips to claim at a time: so that threads end together, and for prompts within a part of L2.
int64_t strips_per_claim(const LoadedWeight& weight, int64_t n_tok, int n_thread);

}  // namespace onebit::cpu
