// The table of kernels of one instruction set. dispatch.cpp picks a table when the backend is made; everything else in
// this folder (how ops are split over threads, how attention walks its pages) is written once, in terms of this table.
// Plain declarations only, for the same reason as in layout.h.
#pragma once

#include <cstdint>

#include "backend/cpu/layout.h"

namespace onebit::cpu {

/// c [m, n] (+)= a [m, k] * b [k, n]. Element (i, p) of a is a[i * a_row + p * a_col]; rows of b and c are b_row and
/// c_row elements apart. `add`: c is added to, else overwritten. Sums run over p in ascending order.
using GemmFn = void (*)(const float* a, int64_t a_row, int64_t a_col, const void* b, int64_t b_row, float* c,
                        int64_t c_row, int64_t m, int64_t n, int64_t k, bool add);

/// y [n_tok, 16] (+)= strip [16, 32 * n_block] times tile [n_tok, 32 * n_block]: exact integer sums per block, scaled
/// and summed in f32. `act` is a tile of exactly n_tok tokens (1..16).
using TileFn = void (*)(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out);

constexpr int64_t kAnyTokens = INT64_MAX;

/// The softmax of some queries with 64 more scores each, by query.
struct Softmax {
  float* scores;         // [n, 64]
  const uint64_t* seen;  // the scores that count, neighbours, lowest bit first
  float *peak, *sum;     // of all scores so far: the largest, and the sum of exp(score - peak)
  float* fade;           // out: the factor for what was added up before
};

struct Kernels {
  const char* isa;

  // matmul_*.cpp
  /// By packed form: strips as they are. nullptr: only by way of wide blocks.
  TileFn matmul[kStripForms];
  /// By packed form: up to so many tokens `matmul` is faster than the way over wide blocks.
  int64_t most_direct[kStripForms];
  TileFn matmul_wide[kWideKinds];
  /// On the calling thread, around calls of these; nullptr: nothing to do. `matmul` of fewer than `enter_from` tokens
  /// does without.
  void (*enter)();
  void (*leave)();
  int64_t enter_from;
  uint8_t wide_zero;  // what 0 is in wide blocks without a minimum: 128, or 0 (codes are signed)
  /// n_block blocks of a strip (whole groups) -> wide blocks.
  void (*unpack[kStripForms])(const uint8_t* strip, int64_t n_block, uint8_t* wide);
  /// x [32 * n_block] -> token `t` of a tile of n_tok tokens.
  void (*quantize)(const float* x, int64_t n_block, bool rotate, ActGrid grid, uint8_t* act, int n_tok, int t);
  GemmFn gemm_f32, gemm_f16, gemm_bf16;  // by the type of b

  // rows_*.cpp; y may be x where both are [n]
  float (*sum_squares)(const float* x, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  float (*max)(const float* x, int64_t n);  // -infinity for n = 0; NaN is ignored
  /// y = exp(x - peak); returns the sum.
  float (*exp_sum)(const float* x, float peak, int64_t n, float* y);
  /// scores = exp(score - peak), 0 where not seen; n is a multiple of 4. A query's results don't depend on the others.
  void (*soften)(const Softmax& queries, int64_t n);
  void (*scale)(const float* x, float s, int64_t n, float* y);
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*axpy)(float s, const float* x, int64_t n, float* y);                                         // y += s * x
  void (*mul_scaled)(const float* x, const float* w, float s, int64_t n, float* y);                   // y = x * s * w
  void (*gate_scaled)(const float* x, const float* w, const float* z, float s, int64_t n, float* y);  // ... * silu(z)
  void (*sigmoid_mul)(const float* x, const float* g, int64_t n, float* y);
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);
  void (*softcap)(const float* x, float s, float cap, int64_t n, float* y);
  /// (a, b) -> (a cos - b sin, a sin + b cos), in place.
  void (*rotate)(float* a, float* b, const float* cosine, const float* sine, int64_t n);
  /// y = silu(sum_m taps[m * tap_row + c] * rows[m][c]).
  void (*conv_silu)(const float* const* rows, const float* taps, int64_t tap_row, int64_t n_tap, int64_t n, float* y);
  /// y += (base + delta[c / group]) * x.
  void (*group_axpy)(const float* base, const float* delta, int64_t group, const float* x, int64_t n, float* y);
  /// First column in [from, n) whose value exceeds `limit`, or n.
  int64_t (*find_above)(const float* x, int64_t from, int64_t n, float limit);
  void (*to_f16)(const float* x, int64_t n, uint16_t* y);
  void (*from_f16)(const uint16_t* x, int64_t n, float* y);
  /// Codes and f16 scales -> f32. Columns: y[i * row + j] = scales[j] * codes[i * row + j], i < 32, j < n. Blocks: 32
  /// codes share a scale.
  void (*from_q8_columns)(const int8_t* codes, const uint16_t* scales, int64_t row, int64_t n, float* y);
  void (*from_q8_blocks)(const int8_t* codes, const uint16_t* scales, int64_t n_block, float* y);
  /// One step of the gated delta rule on s [d_k, d_v]: s *= decay; delta = b (v - s^T k); s += k delta^T; o = s^T q.
  void (*delta_step)(float* s, int64_t d_k, int64_t d_v, const float* q, const float* k, const float* v, float decay,
                     float b, float* o);
};

/// Tables of this build; nullptr when the build or the machine lacks the instruction set.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels* dotprod_kernels();

}  // namespace onebit::cpu
