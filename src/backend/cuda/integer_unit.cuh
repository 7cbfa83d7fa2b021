// The integer product of one unit of weights (16 outputs x 128 columns) with up to 8 * kTiles rows: what all integer
// kernels have in common. Rows of activations lie in shared memory, staged from the tiled form of gpu/acts.h.
//
// Weights are the A operand of m16n8k32 (16 outputs x 32 columns), activations the B operand (32 columns x 8 rows), so
// 1 to 8 rows cost the same. A block of 32 columns (16 for some forms) starts a new integer sum, which is scaled into
// f32 sums at once: integer sums are those of backend/ref exactly. Unsigned codes with a bias start their sum at -bias
// times the sum of the activations' codes; those of n4 are made signed, 16 times as large, and the rows' scales are
// taken 16 times as small, which changes no bit of the result. All other sums also starts at the bits of 1.5 * 2^23, so
// that its own bits are the float 1.5 * 2^23 + sum: a subtraction converts it, at full rate, where a conversion would
// take twice as long.
#pragma once

#include "backend/cuda/fragments.cuh"
#include "backend/gpu/acts.h"

namespace onebit::cuda {

inline constexpr int kMagicBits = 0x4b400000;
inline constexpr float kMagic = 12582912.0f;  // sums are below 2^22: 32 * 255 * 128

/// The activations in device memory: acts.h.
struct Acts {
  const uint8_t* codes;
  const float* scales;
  const int16_t* starts;
  const int16_t* half_sums;
  int t_rows;
};

inline Acts acts_of(const gpu::DeviceActs& acts) {
  return {reinterpret_cast<const uint8_t*>(acts.codes), acts.scales, acts.starts, acts.half_sums,
          static_cast<int>(gpu::padded_rows(acts.n_row))};
}

/// Forms whose codes are multiplied by 16.
constexpr bool is_sixteenfold(WeightForm form) { return form == WeightForm::n4; }
constexpr float row_factor(WeightForm form) { return is_sixteenfold(form) ? 0.0625f : 1.0f; }

/// What a form needs to know of a row for a block of 32 columns, beside its codes: a record of words, the scale last.
///   kBias   where the integer sum starts (two words for sums over 16)
///   kMin    -scale * (sum of codes), to be multiplied by the minimum (two words likewise)
template <WeightForm kForm>
struct RowRecord {
  using U = Unit<kForm>;
  static constexpr bool kStarts = U::kBias != 0 && !is_sixteenfold(kForm);
  static constexpr int kSums = kStarts || U::kMin ? (U::kBy16 ? 2 : 1) : 0;
  static constexpr int kBytes = kSums == 0 ? 4 : kSums == 1 ? 8 : 16;
};

/// Word h of a record; `at`: unit * t_rows + row.
template <WeightForm kForm>
__device__ inline uint32_t sum_word(const Acts& acts, int at, int block, int h, float scale) {
  using U = Unit<kForm>;
  const int sum = U::kBy16 ? acts.half_sums[at * 8 + block * 2 + h] : acts.starts[at * 4 + block] / -8;
  return RowRecord<kForm>::kStarts ? static_cast<uint32_t>(kMagicBits - U::kBias * sum)
                                   : __float_as_uint(static_cast<float>(-sum) * scale);
}

/// Rows in shared memory: codes [unit][pair of blocks][row][64], records [unit][block][row, their number made even].
template <WeightForm kForm>
struct StagedActs {
  static constexpr int kRecord = RowRecord<kForm>::kBytes;
  uint8_t *codes, *records;
  int n_row, record_rows;

  __host__ __device__ static int bytes(int n_unit, int n_row) {
    return n_unit * (n_row * 128 + (n_row + 1) / 2 * 2 * 4 * kRecord);
  }
  __device__ StagedActs(uint8_t* memory, int n_unit, int n_row)
      : codes(memory), records(memory + n_unit * n_row * 128), n_row(n_row), record_rows((n_row + 1) / 2 * 2) {}

  /// Addresses of shared memory, bytes from one unit to the next, from one pair of blocks or block to the next.
  __device__ uint32_t code_address() const { return shared_address(codes); }
  __device__ uint32_t record_address() const { return shared_address(records); }
  __device__ uint32_t code_pair() const { return static_cast<uint32_t>(n_row) * 64; }
  __device__ uint32_t record_block() const { return static_cast<uint32_t>(record_rows) * kRecord; }

  /// Copies units first_unit.. of `acts`; `threads` threads take part, and a barrier must follow. row_of(i): which row
  /// of acts staged row i is.
  template <class F>
  __device__ void stage(const Acts& acts, int first_unit, int n_unit, int threads, F row_of) const {
    const int chunks = n_row * 4;
    for (int i = threadIdx.x; i < n_unit * 2 * chunks; i += threads) {
      const int pair = i / chunks, in_row = i % chunks;
      reinterpret_cast<uint4*>(codes)[i] = *reinterpret_cast<const uint4*>(
          acts.codes + (static_cast<int64_t>(first_unit * 2 + pair) * acts.t_rows + row_of(in_row / 4)) * 64 +
          in_row % 4 * 16);
    }
    for (int i = threadIdx.x; i < n_unit * 4 * n_row; i += threads) {
      const int block = i / n_row, r = i % n_row;
      stage_record(acts, (first_unit + block / 4) * acts.t_rows + row_of(r), block % 4,
                   records + (block * record_rows + r) * kRecord);
    }
  }

 private:
  __device__ static void stage_record(const Acts& acts, int at, int block, uint8_t* to) {
    using R = RowRecord<kForm>;
    const float scale = acts.scales[at * 4 + block] * row_factor(kForm);
    if constexpr (R::kSums == 0) {
      *reinterpret_cast<float*>(to) = scale;
    } else {
      uint32_t words[4] = {};
#pragma unroll
      for (int h = 0; h < R::kSums; ++h) words[h] = sum_word<kForm>(acts, at, block, h, scale);
      words[R::kSums] = __float_as_uint(scale);
      if constexpr (R::kSums == 1) {
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
      } else {
        *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
};

/// The records of a lane's two rows (columns of the sums).
template <WeightForm kForm>
struct TwoRecords {
  using R = RowRecord<kForm>;
  uint32_t sums[2][R::kSums > 0 ? R::kSums : 1];
  float scales[2];

  /// In shared memory: of neighbouring rows, the first of them even.
  __device__ explicit TwoRecords(uint32_t first) {
    if constexpr (R::kSums == 0) {
      const uint2 two = read_shared_8(first);
      scales[0] = __uint_as_float(two.x);
      scales[1] = __uint_as_float(two.y);
    } else if constexpr (R::kSums == 1) {
      const uint4 two = read_shared_16(first);
      sums[0][0] = two.x;
      sums[1][0] = two.z;
      scales[0] = __uint_as_float(two.y);
      scales[1] = __uint_as_float(two.w);
    } else {
      set(0, first);
      set(1, first + 16);
    }
  }
  __device__ TwoRecords(uint32_t first, uint32_t second) {
    set(0, first);
    set(1, second);
  }
  /// Of rows first and second of a unit in device memory.
  __device__ TwoRecords(const Acts& acts, int unit, int first, int second, int block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = unit * acts.t_rows + (i == 0 ? first : second);
      scales[i] = acts.scales[at * 4 + block] * row_factor(kForm);
#pragma unroll
      for (int h = 0; h < R::kSums; ++h) sums[i][h] = sum_word<kForm>(acts, at, block, h, scales[i]);
    }
  }

 private:
  __device__ void set(int i, uint32_t from) {
    if constexpr (R::kSums == 0) {
      scales[i] = __uint_as_float(read_shared_4(from));
    } else if constexpr (R::kSums == 1) {
      const uint2 record = read_shared_8(from);
      sums[i][0] = record.x;
      scales[i] = __uint_as_float(record.y);
    } else {
      const uint4 record = read_shared_16(from);
      sums[i][0] = record.x;
      sums[i][1] = record.y;
      scales[i] = __uint_as_float(record.z);
    }
  }
};

/// sums [row g: rows 2c, 2c+1 of the activations; row g+8: the same] += block `block`'s products. `scale` and `min`: of
/// the weights, for each half.
template <WeightForm kForm>
__device__ inline void multiply_block(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      const TwoRecords<kForm>& records, const RowPair* scale, const RowPair* min,
                                      float (&sums)[4]) {
  using U = Unit<kForm>;
#pragma unroll
  for (int h = 0; h < (U::kBy16 ? 2 : 1); ++h) {
    int s[4];
    if constexpr (is_sixteenfold(kForm)) {
      mma_s8s8_new(s, a, b0, b1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = fmaf(__int2float_rn(s[i]) * (i < 2 ? scale[h].g : scale[h].g8), records.scales[i % 2], sums[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[i] = RowRecord<kForm>::kStarts ? static_cast<int>(records.sums[i % 2][h]) : kMagicBits;
      }
      if constexpr (kForm == WeightForm::n6k) {
        mma_u8s8_k16(s, a[2 * h], a[2 * h + 1], h ? b1 : b0);
      } else if constexpr (U::kBy16) {
        mma_s8s8_k16(s, a[2 * h], a[2 * h + 1], h ? b1 : b0);
      } else if constexpr (U::kBytes || U::kTable) {
        mma_s8s8(s, a, b0, b1);
      } else {
        mma_u8s8(s, a, b0, b1);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = __int_as_float(s[i]) - kMagic;
        sums[i] = fmaf(sum * (i < 2 ? scale[h].g : scale[h].g8), records.scales[i % 2], sums[i]);
        if constexpr (U::kMin) {
          sums[i] = fmaf(i < 2 ? min[h].g : min[h].g8, __uint_as_float(records.sums[i % 2][h]), sums[i]);
        }
      }
    }
  }
}

/// A unit with all tiles of rows. codes_of(tile, pair of blocks): the lane's 16 bytes of codes; records_of(tile,
/// block): its two records.
template <WeightForm kForm, int kTiles, class Codes, class Records>
__device__ inline void multiply_unit(const Unit<kForm>& weights, Codes codes_of, Records records_of,
                                     float (&sums)[kTiles][4]) {
  using U = Unit<kForm>;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint4 codes[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) codes[t] = codes_of(t, pair);
#pragma unroll
    for (int in_pair = 0; in_pair < 2; ++in_pair) {
      const int block = 2 * pair + in_pair;
      uint32_t a[4];
      if constexpr (is_sixteenfold(kForm)) {
        weights.sixteenfold_words(block, a);
      } else {
        weights.words(block, a);
      }
      RowPair scale[2], min[2];
#pragma unroll
      for (int h = 0; h < (U::kBy16 ? 2 : 1); ++h) {
        scale[h] = weights.scale(block, h);
        min[h] = weights.min(block, h);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_block<kForm>(a, in_pair ? codes[t].z : codes[t].x, in_pair ? codes[t].w : codes[t].y,
                              records_of(t, block), scale, min, sums[t]);
      }
    }
  }
}

/// Forms for which a row has nothing but a scale for every block of 32: kernels that know the count of rows when they
/// are compiled take their rows as they lie in device memory, PlainRows.
template <WeightForm kForm>
constexpr bool has_plain_rows() {
  return RowRecord<kForm>::kSums == 0 && !Unit<kForm>::kBy16;
}

/// kRows rows in shared memory: codes [unit][pair of blocks][kRows][64], scales [unit][kRows][4 blocks]. kRows: 1 or a
/// multiple of 8; rows past the batch's hold anything.
template <int kRows>
struct PlainRows {
  static constexpr int kTiles = (kRows + 7) / 8, kCodePair = kRows * 64, kCodeUnit = 2 * kCodePair;
  static constexpr int kScaleUnit = kRows * 16;
  uint8_t *codes, *scales;

  static constexpr int bytes(int n_unit) { return n_unit * (kCodeUnit + kScaleUnit); }
  __device__ PlainRows(uint8_t* memory, int n_unit) : codes(memory), scales(memory + n_unit * kCodeUnit) {}

  /// Copies units first_unit..; a barrier must follow.
  template <int kThreads>
  __device__ void stage(const Acts& acts, int first_unit, int n_unit) const {
    const uint8_t* from = acts.codes + static_cast<int64_t>(first_unit) * 2 * acts.t_rows * 64;
    copy<kThreads>(codes, n_unit * 2 * kRows * 4, [&](int i) {
      const int in_pair = i % (4 * kRows), pair = i / (4 * kRows);
      return from + (pair * acts.t_rows + min(in_pair / 4, acts.t_rows - 1)) * 64 + in_pair % 4 * 16;
    });
    const uint8_t* scales_from = reinterpret_cast<const uint8_t*>(acts.scales + first_unit * acts.t_rows * 4);
    copy<kThreads>(scales, n_unit * kRows, [&](int i) {
      return scales_from + (i / kRows * acts.t_rows + min(i % kRows, acts.t_rows - 1)) * 16;
    });
  }

 private:
  /// n pieces of 16 bytes, some of them under way at once.
  template <int kThreads, class F>
  __device__ static void copy(uint8_t* to, int n, F from_of) {
    constexpr int kAtOnce = 4;
    for (int first = threadIdx.x; first < n; first += kThreads * kAtOnce) {
      uint4 pieces[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        if (i < n) pieces[k] = *reinterpret_cast<const uint4*>(from_of(i));
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        if (i < n) reinterpret_cast<uint4*>(to)[i] = pieces[k];
      }
    }
  }
};

/// A unit with plain rows. code_at: of the unit and lane (g, c), row g, part c; scale_at: of the unit, row 2c. With one
/// row only the sums of column 0 are made. Sums are row_factor() too large.
template <WeightForm kForm, int kRows>
__device__ inline void multiply_plain(const Unit<kForm>& weights, uint32_t code_at, uint32_t scale_at,
                                      float (&sums)[PlainRows<kRows>::kTiles][4]) {
  using Rows = PlainRows<kRows>;
  constexpr int kStep = kRows == 1 ? 2 : 1;  // of a lane's sums
  uint4 scales[Rows::kTiles][2];
#pragma unroll
  for (int t = 0; t < Rows::kTiles; ++t) {
    scales[t][0] = read_shared_16(scale_at + t * 128);
    if constexpr (kRows > 1) scales[t][1] = read_shared_16(scale_at + t * 128 + 16);
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint4 codes[Rows::kTiles];
#pragma unroll
    for (int t = 0; t < Rows::kTiles; ++t) codes[t] = read_shared_16(code_at + pair * Rows::kCodePair + t * 512);
#pragma unroll
    for (int in_pair = 0; in_pair < 2; ++in_pair) {
      const int block = 2 * pair + in_pair;
      uint32_t a[4];
      if constexpr (is_sixteenfold(kForm)) {
        weights.sixteenfold_words(block, a);
      } else {
        weights.words(block, a);
      }
      const RowPair scale = weights.scale(block, 0);
#pragma unroll
      for (int t = 0; t < Rows::kTiles; ++t) {
        int s[4];
        mma_s8s8_new(s, a, in_pair ? codes[t].z : codes[t].x, in_pair ? codes[t].w : codes[t].y);
#pragma unroll
        for (int i = 0; i < 4; i += kStep) {
          sums[t][i] = fmaf(__int2float_rn(s[i]) * (i < 2 ? scale.g : scale.g8),
                            __uint_as_float(part(scales[t][i % 2], block)), sums[t][i]);
        }
      }
    }
  }
}

/// Sums of a strip that another warp stores.
template <int kTiles>
struct Piece {
  float4 sums[kTiles][gpu::kWarp];
};
template <int kTiles>
__device__ void put(Piece<kTiles>& piece, const float (&sums)[kTiles][4], int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) piece.sums[t][lane] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
}
template <int kTiles>
__device__ void add(const Piece<kTiles>& piece, float (&sums)[kTiles][4], int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const float4 more = piece.sums[t][lane];
    sums[t][0] += more.x;
    sums[t][1] += more.y;
    sums[t][2] += more.z;
    sums[t][3] += more.w;
  }
}

}  // namespace onebit::cuda
