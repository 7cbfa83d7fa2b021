// One unit of weights (16 x 128, backend/gpu/forms.h) in a lane's registers, and what the kernels take out of it: the
// operand words of a byte product, the fragments of a half product, scales and minimums.
#pragma once

#include "backend/cuda/mma.cuh"
#include "backend/gpu/forms.h"

namespace onebit::cuda {

using gpu::WeightForm;

__device__ inline float low_half(uint32_t x) { return __half2float(__ushort_as_half(static_cast<unsigned short>(x))); }
__device__ inline float high_half(uint32_t x) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(x >> 16)));
}
__device__ inline uint32_t part(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ inline int signed_byte(uint32_t x, int i) { return static_cast<int>(x << (24 - 8 * i)) >> 24; }
__device__ inline int unsigned_byte(uint32_t x, int i) { return static_cast<int>(x >> 8 * i & 255u); }

/// Scales (or minimums) of the lane's rows g and g + 8.
struct RowPair {
  float g, g8;
};

template <WeightForm kForm>
struct Unit {
  static constexpr bool kBytes = gpu::has_bytes(kForm), kTable = gpu::has_table(kForm);
  /// Scales for 16 columns; minimums; codes that are unsigned and kBias too large.
  static constexpr bool kBy16 = kForm == WeightForm::n6k || kForm == WeightForm::b8k || kForm == WeightForm::b8km;
  static constexpr bool kMin =
      kForm == WeightForm::n4k || kForm == WeightForm::n5k || kForm == WeightForm::b8f || kForm == WeightForm::b8km;
  static constexpr int kBias = kForm == WeightForm::n4 ? 8 : kForm == WeightForm::n6k ? 32 : 0;
  static constexpr int kLowLoads = kBytes ? 4 : 2;

  uint4 low[kLowLoads];
  uint4 high;  // n6k; n5k: two words
  uint4 scales[kForm == WeightForm::b8f ? 4 : 1];
  uint4 mins;  // b8km
  uint4 d;     // n4k, n5k, n6k, t4k, b8k: two words; b8km: four

  /// From device memory, read once.
  __device__ void load(const uint8_t* unit, int lane) {
    load_with([unit](int at) { return load_stream(unit + at); }, [unit](int at) { return load_stream_8(unit + at); },
              lane);
  }
  /// From shared memory.
  __device__ void load_shared(uint32_t unit, int lane) {
    load_with([unit](int at) { return read_shared_16(unit + at); }, [unit](int at) { return read_shared_8(unit + at); },
              lane);
  }
  template <class Load16, class Load8>
  __device__ void load_with(Load16 load_16, Load8 load_8, int lane) {
    using enum WeightForm;
    const int g = lane / 4;
#pragma unroll
    for (int i = 0; i < kLowLoads; ++i) low[i] = load_16(lane * 16 + i * 512);
    if constexpr (kForm == n6k) high = load_16(lane * 16 + gpu::low_bytes(kForm));
    if constexpr (kForm == n5k) set_two(high, load_8(lane * 8 + gpu::low_bytes(kForm)));
    constexpr int kAt = gpu::scales_at(kForm);
    if constexpr (kForm == t4k) {
      set_two(scales[0], load_8(g * 8 + kAt));
      set_two(d, load_8(g * 8 + kAt + 64));
    } else {
      scales[0] = load_16(g * 16 + kAt);
    }
    if constexpr (kForm == b8f) {
#pragma unroll
      for (int b = 1; b < 4; ++b) scales[b] = load_16(g * 16 + kAt + b * 128);
    }
    if constexpr (kForm == b8km) {
      mins = load_16(g * 16 + kAt + 128);
      d = load_16(g * 16 + kAt + 256);
    }
    if constexpr (kForm == n4k || kForm == n5k || kForm == n6k || kForm == b8k) {
      set_two(d, load_8(g * 8 + kAt + 128));
    }
  }

  /// Bytes of block b: rows g, g+8 at columns 4c.., then at 16+4c...
  __device__ void words(int b, uint32_t (&a)[4]) const {
    if constexpr (kBytes) {
      a[0] = low[b].x;
      a[1] = low[b].y;
      a[2] = low[b].z;
      a[3] = low[b].w;
      return;
    }
    const uint32_t w = part(low[b / 2], b % 2 * 2), w8 = part(low[b / 2], b % 2 * 2 + 1);
    if constexpr (kTable) {
      a[0] = look_up(w);
      a[1] = look_up(w8);
      a[2] = look_up(w >> 16);
      a[3] = look_up(w8 >> 16);
      return;
    }
    a[0] = w & 0x0f0f0f0fu;
    a[1] = w8 & 0x0f0f0f0fu;
    a[2] = w >> 4 & 0x0f0f0f0fu;
    a[3] = w8 >> 4 & 0x0f0f0f0fu;
    if constexpr (kForm == WeightForm::n5k) {
      const uint32_t h = b < 2 ? high.x : high.y;
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] |= (b % 2 ? h >> j : h << (4 - j)) & 0x10101010u;
    }
    if constexpr (kForm == WeightForm::n6k) {
      const uint32_t h = part(high, b);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] |= (j < 3 ? h << (4 - 2 * j) : h >> 2) & 0x30303030u;
    }
  }

  /// n4: bytes of block b as words() has them, but signed, 16 times the code without its bias.
  __device__ void sixteenfold_words(int b, uint32_t (&a)[4]) const {
    const uint32_t w = part(low[b / 2], b % 2 * 2), w8 = part(low[b / 2], b % 2 * 2 + 1);
    a[0] = upper_signed(w << 4);
    a[1] = upper_signed(w8 << 4);
    a[2] = upper_signed(w);
    a[3] = upper_signed(w8);
  }

  /// Of block b, half h (kBy16 only).
  __device__ RowPair scale(int b, int h) const {
    using enum WeightForm;
    if constexpr (kForm == n4 || kForm == t4 || kForm == b8) {
      const uint32_t x = part(scales[0], b / 2), y = part(scales[0], 2 + b / 2);
      return b % 2 ? RowPair{high_half(x), high_half(y)} : RowPair{low_half(x), low_half(y)};
    } else if constexpr (kForm == n4k || kForm == n5k) {
      return {low_half(d.x) * static_cast<float>(unsigned_byte(part(scales[0], b / 2), b % 2 * 2)),
              low_half(d.y) * static_cast<float>(unsigned_byte(part(scales[0], 2 + b / 2), b % 2 * 2))};
    } else if constexpr (kForm == t4k) {
      return {__uint_as_float(d.x) * static_cast<float>(signed_byte(scales[0].x, b)),
              __uint_as_float(d.y) * static_cast<float>(signed_byte(scales[0].y, b))};
    } else if constexpr (kForm == b8f) {
      return {__uint_as_float(scales[b].x), __uint_as_float(scales[b].y)};
    } else {
      const int i = b % 2 * 2 + h;
      const float dg = __uint_as_float(d.x), dg8 = __uint_as_float(kMin ? d.z : d.y);
      return {dg * static_cast<float>(signed_byte(part(scales[0], b / 2), i)),
              dg8 * static_cast<float>(signed_byte(part(scales[0], 2 + b / 2), i))};
    }
  }

  __device__ RowPair min(int b, int h) const {
    using enum WeightForm;
    if constexpr (kForm == n4k || kForm == n5k) {
      return {high_half(d.x) * static_cast<float>(unsigned_byte(part(scales[0], b / 2), b % 2 * 2 + 1)),
              high_half(d.y) * static_cast<float>(unsigned_byte(part(scales[0], 2 + b / 2), b % 2 * 2 + 1))};
    } else if constexpr (kForm == b8f) {
      return {__uint_as_float(scales[b].z), __uint_as_float(scales[b].w)};
    } else if constexpr (kForm == b8km) {
      const int i = b % 2 * 2 + h;
      return {__uint_as_float(d.y) * static_cast<float>(unsigned_byte(part(mins, b / 2), i)),
              __uint_as_float(d.w) * static_cast<float>(unsigned_byte(part(mins, 2 + b / 2), i))};
    } else {
      return {0, 0};
    }
  }

  /// Block b as halves: two fragments of k16, each (row g, even columns), (g+8, even), (g, odd), (g+8, odd).
  __device__ void halves(int b, uint32_t (&a)[8]) const {
    if constexpr (kForm == WeightForm::n4 || kForm == WeightForm::n4k) {
      const uint32_t w = part(low[b / 2], b % 2 * 2), w8 = part(low[b / 2], b % 2 * 2 + 1);
      const RowPair s = scale(b, 0), m = min(b, 0);
      nibble_halves(w, s.g, m.g, a[0], a[2], a[4], a[6]);
      nibble_halves(w8, s.g8, m.g8, a[1], a[3], a[5], a[7]);
    } else {
      uint32_t code[4];
      words(b, code);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const RowPair s = scale(b, h), m = min(b, h);
        byte_halves(code[2 * h], s.g, m.g, a[4 * h], a[4 * h + 2]);
        byte_halves(code[2 * h + 1], s.g8, m.g8, a[4 * h + 1], a[4 * h + 3]);
      }
    }
  }

 private:
  /// (x & 0xf0f0f0f0) ^ 0x80808080 in one instruction.
  static __device__ uint32_t upper_signed(uint32_t x) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(0xf0f0f0f0u), "r"(0x80808080u));
    return y;
  }
  static __device__ void set_two(uint4& to, uint2 two) {
    to.x = two.x;
    to.y = two.y;
  }
  static __device__ uint32_t bits(__half2 x) { return *reinterpret_cast<uint32_t*>(&x); }
  static __device__ __half2 halves_of(uint32_t x) { return *reinterpret_cast<__half2*>(&x); }
  static __device__ uint32_t scaled(__half2 code, float s, float m) {
    if constexpr (kMin) return bits(__hfma2(code, __float2half2_rn(s), __float2half2_rn(-m)));
    return bits(__hmul2(code, __float2half2_rn(s)));
  }

  /// Four nibbles of the low 16 bits -> four bytes of the table of iq4_nl: two selections of 8 entries by the low three
  /// bits, and one between them by the fourth.
  static __device__ uint32_t look_up(uint32_t nibbles) {
    const uint32_t at = nibbles & 0x7777u;
    const uint32_t small = __byte_perm(0xbfad9881u, 0xf6eaddcfu, at), large = __byte_perm(0x26190d01u, 0x71594535u, at);
    return __byte_perm(small, large, 0x3210u | (nibbles & 0x8888u) >> 1);
  }

  /// 8 nibbles of a row: a half with exponent 2^10 holds an integer in its low bits, so masks make 1024 + code (or
  /// 1024 + 16 code), and a subtraction (or a multiply-add) leaves the code, exactly.
  static __device__ void nibble_halves(uint32_t w, float s, float m, uint32_t& even0, uint32_t& odd0, uint32_t& even1,
                                       uint32_t& odd1) {
    const __half2 low = __float2half2_rn(-1024 - kBias), high = __float2half2_rn(-64 - kBias);
    const __half2 sixteenth = __float2half2_rn(0.0625f);
    const uint32_t v = w >> 8;
    even0 = scaled(__hadd2(halves_of((w & 0x000f000fu) | 0x64006400u), low), s, m);
    odd0 = scaled(__hadd2(halves_of((v & 0x000f000fu) | 0x64006400u), low), s, m);
    even1 = scaled(__hfma2(halves_of((w & 0x00f000f0u) | 0x64006400u), sixteenth, high), s, m);
    odd1 = scaled(__hfma2(halves_of((v & 0x00f000f0u) | 0x64006400u), sixteenth, high), s, m);
  }

  /// 4 codes of a row in bytes: int8, or unsigned from planes.
  static __device__ void byte_halves(uint32_t w, float s, float m, uint32_t& even, uint32_t& odd) {
    constexpr bool kSigned = kBytes || kTable;
    const __half2 zero = __float2half2_rn(kSigned ? -1024 - 128 : -1024 - kBias);
    const uint32_t u = kSigned ? w ^ 0x80808080u : w;
    even = scaled(__hadd2(halves_of(__byte_perm(u, 0x64646464u, 0x4240)), zero), s, m);
    odd = scaled(__hadd2(halves_of(__byte_perm(u, 0x64646464u, 0x4341)), zero), s, m);
  }
};

}  // namespace onebit::cuda
