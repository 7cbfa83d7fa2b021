// Small dense products of f32 rows with f32, f16 or bf16 matrices: float weights, attention scores and values, and the
// chunks of the delta rule all come down to this. Written over Vec; included by kernels_*.cpp after its vec_*.h.
#pragma once

namespace onebit::cpu {
namespace {

ONEBIT_INLINE Vec load_b(const float* p, int n) { return load(p, n); }
/// Tells bf16 from f16, which have the same storage.
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
ONEBIT_INLINE Vec load_b(const F16* p, int n) { return load_f16(&p->bits, n); }
ONEBIT_INLINE Vec load_b(const Bf16* p, int n) { return load_bf16(&p->bits, n); }

/// c [M, 16 * NV] (+)= a [M, k] * b [k, 16 * NV], all sums in registers; `count` lanes of the last vector exist, which
/// is 16 unless NV is 1.
template <class B, int M, int NV>
ONEBIT_INLINE void gemm_tile(const float* a, int64_t a_row, int64_t a_col, const B* b, int64_t b_row, float* c,
                             int64_t c_row, int64_t k, bool add, int count) {
  Vec total[M][NV];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) total[i][j] = add ? load(c + i * c_row + 16 * j, count) : set(0);
  }
  for (int64_t p = 0; p < k; ++p, b += b_row, a += a_col) {
    Vec bv[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) bv[j] = load_b(b + 16 * j, count);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const Vec av = set(a[i * a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) total[i][j] = fma(av, bv[j], total[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) store(total[i][j], c + i * c_row + 16 * j, count);
  }
}

/// All columns of M rows.
template <class B, int M>
void gemm_rows(const float* a, int64_t a_row, int64_t a_col, const B* b, int64_t b_row, float* c, int64_t c_row,
               int64_t n, int64_t k, bool add) {
  int64_t j = 0;
  if constexpr (kGemmVecs > 1) {
    for (; j + 16 * kGemmVecs <= n; j += 16 * kGemmVecs) {
      gemm_tile<B, M, kGemmVecs>(a, a_row, a_col, b + j, b_row, c + j, c_row, k, add, 16);
    }
  }
  if constexpr (kGemmVecs > 2) {
    for (; j + 32 <= n; j += 32) gemm_tile<B, M, 2>(a, a_row, a_col, b + j, b_row, c + j, c_row, k, add, 16);
  }
  for (; j + 16 <= n; j += 16) gemm_tile<B, M, 1>(a, a_row, a_col, b + j, b_row, c + j, c_row, k, add, 16);
  if (j < n) gemm_tile<B, M, 1>(a, a_row, a_col, b + j, b_row, c + j, c_row, k, add, static_cast<int>(n - j));
}

/// Rows in groups of kGemmRows, then 4, 2, 1.
template <class B>
void gemm(const float* a, int64_t a_row, int64_t a_col, const void* b_bytes, int64_t b_row, float* c, int64_t c_row,
          int64_t m, int64_t n, int64_t k, bool add) {
  const B* b = static_cast<const B*>(b_bytes);
  int64_t i = 0;
  for (; i + kGemmRows <= m; i += kGemmRows) {
    gemm_rows<B, kGemmRows>(a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, n, k, add);
  }
  if constexpr (kGemmRows > 4) {
    for (; i + 4 <= m; i += 4) gemm_rows<B, 4>(a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, n, k, add);
  }
  if constexpr (kGemmRows > 2) {
    for (; i + 2 <= m; i += 2) gemm_rows<B, 2>(a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, n, k, add);
  }
  for (; i < m; ++i) gemm_rows<B, 1>(a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, n, k, add);
}

}  // namespace
}  // namespace onebit::cpu
