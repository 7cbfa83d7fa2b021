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
  static constexpr bool kNibbles = gpu::has_nibbles(kForm);
  static constexpr bool kBy16 = kForm == WeightForm::b8k || kForm == WeightForm::b8km;
  static constexpr bool kMin = kForm == WeightForm::n4k || kForm == WeightForm::b8f || kForm == WeightForm::b8km;
  static constexpr int kCodeLoads = kNibbles ? 2 : 4;

  uint4 codes[kCodeLoads];
  uint4 scales[kForm == WeightForm::b8f ? 4 : 1];
  uint4 more;  // b8km: minimums
  uint4 d;     // n4k, b8k: two words; b8km: four

  __device__ void load(const uint8_t* unit, int lane) {
    const int g = lane / 4;
#pragma unroll
    for (int i = 0; i < kCodeLoads; ++i) codes[i] = load_stream(unit + i * 512 + lane * 16);
    const uint8_t* at = unit + gpu::code_bytes(kForm) + g * 16;
    scales[0] = load_stream(at);
    if constexpr (kForm == WeightForm::b8f) {
#pragma unroll
      for (int b = 1; b < 4; ++b) scales[b] = load_stream(at + b * 128);
    }
    if constexpr (kForm == WeightForm::b8km) {
      more = load_stream(at + 128);
      d = load_stream(at + 256);
    }
    if constexpr (kForm == WeightForm::n4k || kForm == WeightForm::b8k) {
      const uint2 two = load_stream_8(unit + gpu::code_bytes(kForm) + 128 + g * 8);
      d.x = two.x;
      d.y = two.y;
    }
  }

  /// Bytes of block b: rows g, g+8 at columns 4c.., then at 16+4c... Nibbles are unsigned.
  __device__ void words(int b, uint32_t (&a)[4]) const {
    if constexpr (kNibbles) {
      const uint32_t w = part(codes[b / 2], b % 2 * 2), w8 = part(codes[b / 2], b % 2 * 2 + 1);
      a[0] = w & 0x0f0f0f0fu;
      a[1] = w8 & 0x0f0f0f0fu;
      a[2] = w >> 4 & 0x0f0f0f0fu;
      a[3] = w8 >> 4 & 0x0f0f0f0fu;
    } else {
      a[0] = codes[b].x;
      a[1] = codes[b].y;
      a[2] = codes[b].z;
      a[3] = codes[b].w;
    }
  }

  /// Of block b, half h (kBy16 only).
  __device__ RowPair scale(int b, int h) const {
    if constexpr (kForm == WeightForm::n4 || kForm == WeightForm::b8) {
      const uint32_t x = part(scales[0], b / 2), y = part(scales[0], 2 + b / 2);
      return b % 2 ? RowPair{high_half(x), high_half(y)} : RowPair{low_half(x), low_half(y)};
    } else if constexpr (kForm == WeightForm::n4k) {
      return {low_half(d.x) * static_cast<float>(unsigned_byte(part(scales[0], b / 2), b % 2 * 2)),
              low_half(d.y) * static_cast<float>(unsigned_byte(part(scales[0], 2 + b / 2), b % 2 * 2))};
    } else if constexpr (kForm == WeightForm::b8f) {
      return {__uint_as_float(scales[b].x), __uint_as_float(scales[b].y)};
    } else {
      const int i = b % 2 * 2 + h;
      const float dg = __uint_as_float(d.x), dg8 = __uint_as_float(kMin ? d.z : d.y);
      return {dg * static_cast<float>(signed_byte(part(scales[0], b / 2), i)),
              dg8 * static_cast<float>(signed_byte(part(scales[0], 2 + b / 2), i))};
    }
  }

  __device__ RowPair min(int b, int h) const {
    if constexpr (kForm == WeightForm::n4k) {
      return {high_half(d.x) * static_cast<float>(unsigned_byte(part(scales[0], b / 2), b % 2 * 2 + 1)),
              high_half(d.y) * static_cast<float>(unsigned_byte(part(scales[0], 2 + b / 2), b % 2 * 2 + 1))};
    } else if constexpr (kForm == WeightForm::b8f) {
      return {__uint_as_float(scales[b].z), __uint_as_float(scales[b].w)};
    } else if constexpr (kForm == WeightForm::b8km) {
      const int i = b % 2 * 2 + h;
      return {__uint_as_float(d.y) * static_cast<float>(unsigned_byte(part(more, b / 2), i)),
              __uint_as_float(d.w) * static_cast<float>(unsigned_byte(part(more, 2 + b / 2), i))};
    } else {
      return {0, 0};
    }
  }

  /// Block b as halves: two fragments of k16, each (row g, even columns), (g+8, even), (g, odd), (g+8, odd).
  __device__ void halves(int b, uint32_t (&a)[8]) const {
    if constexpr (kNibbles) {
      const uint32_t w = part(codes[b / 2], b % 2 * 2), w8 = part(codes[b / 2], b % 2 * 2 + 1);
      const RowPair s = scale(b, 0), m = min(b, 0);
      nibble_halves(w, s.g, m.g, a[0], a[2], a[4], a[6]);
      nibble_halves(w8, s.g8, m.g8, a[1], a[3], a[5], a[7]);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const RowPair s = scale(b, h), m = min(b, h);
        byte_halves(h ? codes[b].z : codes[b].x, s.g, m.g, a[4 * h], a[4 * h + 2]);
        byte_halves(h ? codes[b].w : codes[b].y, s.g8, m.g8, a[4 * h + 1], a[4 * h + 3]);
      }
    }
  }

 private:
  static __device__ uint32_t bits(__half2 x) { return *reinterpret_cast<uint32_t*>(&x); }
  static __device__ __half2 halves_of(uint32_t x) { return *reinterpret_cast<__half2*>(&x); }
  static __device__ uint32_t scaled(__half2 code, float s, float m) {
    if constexpr (kMin) return bits(__hfma2(code, __float2half2_rn(s), __float2half2_rn(-m)));
    return bits(__hmul2(code, __float2half2_rn(s)));
  }

  /// 8 nibbles of a row: a half with exponent 2^10 holds an integer in its low bits, so masks make 1024 + code (or
  /// 1024 + 16 code), and a subtraction (or a multiply-add) leaves the code, exactly.
  static __device__ void nibble_halves(uint32_t w, float s, float m, uint32_t& even0, uint32_t& odd0, uint32_t& even1,
                                       uint32_t& odd1) {
    constexpr float kZero = kForm == WeightForm::n4 ? 8 : 0;
    const __half2 low = __float2half2_rn(-1024 - kZero), high = __float2half2_rn(-64 - kZero);
    const __half2 sixteenth = __float2half2_rn(0.0625f);
    const uint32_t v = w >> 8;
    even0 = scaled(__hadd2(halves_of((w & 0x000f000fu) | 0x64006400u), low), s, m);
    odd0 = scaled(__hadd2(halves_of((v & 0x000f000fu) | 0x64006400u), low), s, m);
    even1 = scaled(__hfma2(halves_of((w & 0x00f000f0u) | 0x64006400u), sixteenth, high), s, m);
    odd1 = scaled(__hfma2(halves_of((v & 0x00f000f0u) | 0x64006400u), sixteenth, high), s, m);
  }

  /// 4 int8 codes of a row.
  static __device__ void byte_halves(uint32_t w, float s, float m, uint32_t& even, uint32_t& odd) {
    const __half2 zero = __float2half2_rn(-1152);  // 1024 + 128
    const uint32_t u = w ^ 0x80808080u;
    even = scaled(__hadd2(halves_of(__byte_perm(u, 0x64646464u, 0x4240)), zero), s, m);
    odd = scaled(__hadd2(halves_of(__byte_perm(u, 0x64646464u, 0x4341)), zero), s, m);
  }
};

}  // namespace onebit::cuda
