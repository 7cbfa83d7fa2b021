// The product of f32 rows with a bf16 matrix on AMX, for prompts: tdpbf16ps, whose sums are f32.
//
// Each row is split in two bf16 parts, x = high + low with an error of at most 2^-17 |x|, and both are multiplied: rows
// rounded to bf16 once would lose 2^-9. Two tdpbf16ps (16 cycles each for 16 x 16 x 32) make 256 multiply-adds a cycle
// where f32 vectors make 32. vdpbf16ps is no alternative: it takes two cycles on Sapphire Rapids for what two f32
// multiply-adds do in one, even with rows rounded once.
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"

namespace onebit::cpu {
namespace {

constexpr int kRows = 16;    // of a tile
constexpr int kDepth = 32;   // columns of a that one instruction takes
constexpr int kSlice = 128;  // columns that are split and interleaved at a time: 24 KB, half of L1
constexpr int kSteps = kSlice / kDepth;
constexpr int kColumns = 64;  // of the matrix at a time

/// Operand of ldtilecfg: eight full tiles. Registers 0..3: sums; 4, 5: high and low parts of rows; 6, 7: the matrix.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct alignas(64) Tile {
  uint16_t v[kRows * kDepth];
};
struct Buffers {
  Tile matrix[kSteps][kColumns / 16];  // [16 pairs of rows of b][16 columns][2]
  Tile high[kSteps], low[kSteps];      // [16 rows of a][32 columns]
  alignas(64) float sums[4][kRows * 16];
};

/// The first `n` of 16 or 32 elements; none for n <= 0.
ONEBIT_INLINE __mmask32 mask_of(int64_t n) { return n >= 32 ? ~__mmask32{0} : n <= 0 ? 0 : (__mmask32{1} << n) - 1; }

/// k <= kSlice rows and n columns of b, pairs of rows interleaved, 0 behind them.
void interleave(const uint16_t* b, int64_t b_row, int64_t n, int64_t k, Buffers& to) {
  alignas(64) uint16_t order[32];
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  const __m512i pairs = _mm512_load_si512(order);
  for (int64_t row = 0; row < k; row += 2) {
    const uint16_t* first = b + row * b_row;
    for (int64_t column = 0; column < n; column += 16) {
      const auto mask = static_cast<__mmask16>(mask_of(n - column) & 0xffff);
      const __m256i even = _mm256_maskz_loadu_epi16(mask, first + column);
      const __m256i odd = _mm256_maskz_loadu_epi16(row + 1 < k ? mask : 0, first + b_row + column);
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
      Tile& tile = to.matrix[row / kDepth][column / 16];
      _mm512_store_si512(tile.v + row % kDepth / 2 * 32, _mm512_permutexvar_epi16(pairs, both));
    }
  }
}

/// Splits m <= 16 rows of k <= kSlice columns, 0 behind them. The high part is cut off, so that the rest is exact. Rows
/// that aren't there keep whatever was there.
void split(const float* a, int64_t a_row, int64_t m, int64_t k, Buffers& to) {
  alignas(64) uint16_t upper[32];  // the upper halves of two vectors
  for (int i = 0; i < 32; ++i) upper[i] = static_cast<uint16_t>(2 * i + 1);
  const __m512i halves = _mm512_load_si512(upper), mask_high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t p = 0; p < k; p += kDepth) {
      const __mmask32 mask = mask_of(k - p);
      const __m512i x0 = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), a + t * a_row + p);
      const __m512i x1 = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask >> 16), a + t * a_row + p + 16);
      const auto rest = [mask_high](__m512i x) {
        return _mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(_mm512_and_si512(x, mask_high)));
      };
      _mm512_store_si512(to.high[p / kDepth].v + t * kDepth, _mm512_permutex2var_epi16(x0, halves, x1));
      const auto low = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(rest(x1), rest(x0)));
      _mm512_store_si512(to.low[p / kDepth].v + t * kDepth, low);
    }
  }
}

/// Sums of 16 rows and column tiles j and j + 1: of high parts [2][16][16], of low parts [2][16][16].
ONEBIT_INLINE void multiply(Buffers& buffers, int64_t n_step, int64_t j) {
  asm volatile("" ::: "memory");  // trap: the intrinsics that load tiles don't say that they read memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < n_step; ++step) {
    _tile_loadd(4, buffers.high[step].v, 64);
    _tile_loadd(6, buffers.matrix[step][j].v, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, buffers.matrix[step][j + 1].v, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, buffers.low[step].v, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, buffers.sums[0], 64);
  _tile_stored(1, buffers.sums[1], 64);
  _tile_stored(2, buffers.sums[2], 64);
  _tile_stored(3, buffers.sums[3], 64);
}

/// c [m, n] (+)= the sums of two column tiles; n <= 32.
void hand_out(const Buffers& buffers, float* c, int64_t c_row, int64_t m, int64_t n, bool add) {
  for (int64_t t = 0; t < m; ++t) {
    for (int j = 0; j < 2; ++j) {
      const auto mask = static_cast<__mmask16>(mask_of(n - 16 * j) & 0xffff);
      float* to = c + t * c_row + 16 * j;
      __m512 sum =
          _mm512_add_ps(_mm512_load_ps(buffers.sums[j] + 16 * t), _mm512_load_ps(buffers.sums[2 + j] + 16 * t));
      if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
  }
}

/// At most kSlice rows and kColumns columns of b.
void multiply_slice(const float* a, int64_t a_row, const uint16_t* b, int64_t b_row, float* c, int64_t c_row, int64_t m,
                    int64_t n, int64_t k, bool add, Buffers& buffers) {
  const int64_t n_step = (k + kDepth - 1) / kDepth;
  if (n < kColumns || k % kDepth != 0) {
    for (int64_t i = 0; i < n_step; ++i) {
      for (Tile& tile : buffers.matrix[i]) tile = {};
    }
  }
  interleave(b, b_row, n, k, buffers);
  for (int64_t t = 0; t < m; t += kRows) {
    const int64_t rows = m - t < kRows ? m - t : kRows;
    split(a + t * a_row, a_row, rows, k, buffers);
    for (int64_t j = 0; j < n; j += 32) {
      multiply(buffers, n_step, j / 16);
      hand_out(buffers, c + t * c_row + j, c_row, rows, n - j, add);
    }
  }
}

}  // namespace

void gemm_bf16_amx(const float* a, int64_t a_row, const uint16_t* b, int64_t b_row, float* c, int64_t c_row, int64_t m,
                   int64_t n, int64_t k, bool add) {
  static constexpr TileShapes kShapes;  // trap: of a local one GCC 12 stores only the first 8 bytes
  Buffers buffers;
  _tile_loadconfig(&kShapes);
  for (int64_t column = 0; column < n; column += kColumns) {
    const int64_t columns = n - column < kColumns ? n - column : kColumns;
    for (int64_t p = 0; p < k; p += kSlice) {
      multiply_slice(a + p, a_row, b + p * b_row + column, b_row, c + column, c_row, m, columns,
                     k - p < kSlice ? k - p : kSlice, add || p > 0, buffers);
    }
  }
  _tile_release();
}

}  // namespace onebit::cpu
