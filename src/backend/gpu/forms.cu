// Weights into and out of the forms of forms.h: packing while a file is loaded, and looking up single rows (a tied
// embedding). In: rows as in the file. Out: strips; rows of f32.
#include "backend/gpu/forms.h"

#include "backend/gpu/blocks.cuh"

namespace onebit::gpu {
namespace {

constexpr int kThreads = 128;

/// Scales of 32 columns in the parts in which a file has them.
struct ScaleParts {
  float d = 0, dmin = 0;
  int scale[2] = {}, min[2] = {};  // of 16 columns each
};

template <BlockType kType>
__device__ ScaleParts read_scale_parts(const uint8_t* row, int64_t g) {
  using enum BlockType;
  ScaleParts parts;
  const int s = static_cast<int>(g % 8);
  if constexpr (kType == q4_k || kType == q5_k) {
    const uint8_t* src = row + g / 8 * (kType == q4_k ? 144 : 176);
    parts.d = half_at(src);
    parts.dmin = half_at(src + 2);
    k_scale_min(src + 4, s, parts.scale[0], parts.min[0]);
    parts.scale[1] = parts.scale[0];
    parts.min[1] = parts.min[0];
  } else if constexpr (kType == q2_k) {
    const uint8_t* src = row + g / 8 * 84;
    parts.d = half_at(src + 80);
    parts.dmin = half_at(src + 82);
    for (int k = 0; k < 2; ++k) {
      parts.scale[k] = src[2 * s + k] & 15;
      parts.min[k] = src[2 * s + k] >> 4;
    }
  } else if constexpr (kType == q3_k) {
    const uint8_t *src = row + g / 8 * 110, *packed = src + 96;
    parts.d = half_at(src + 108);
    for (int k = 0; k < 2; ++k) {
      const int group = 2 * s + k;
      const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
      parts.scale[k] = (low | (packed[8 + group % 4] >> 2 * (group / 4) & 3) << 4) - 32;
    }
  } else if constexpr (kType == q6_k) {
    const uint8_t* src = row + g / 8 * 210;
    parts.d = half_at(src + 208);
    for (int k = 0; k < 2; ++k) parts.scale[k] = static_cast<int8_t>(src[192 + 2 * s + k]);
  } else if constexpr (kType == iq4_xs) {
    const uint8_t* src = row + g / 8 * 136;
    parts.d = half_at(src);
    const int high = (src[2] | src[3] << 8) >> 2 * s & 3;
    parts.scale[0] = parts.scale[1] = ((src[4 + s / 2] >> 4 * (s & 1) & 15) | high << 4) - 32;
  }
  return parts;
}

__device__ uint8_t* word_at(uint8_t* unit, WeightForm form, int b, int hi, int upper, int lane) {
  if (has_nibbles(form)) return unit + b / 2 * 512 + lane * 16 + (b % 2 * 2 + hi) * 4;
  return unit + b * 512 + lane * 16 + (upper * 2 + hi) * 4;
}

/// Codes of block b of a unit; row g + 8*hi.
template <WeightForm kForm>
__device__ void put_codes(const Codes32& codes, int b, int g, int hi, uint8_t* unit) {
  for (int c = 0; c < 4; ++c) {
    const auto low = static_cast<uint32_t>(codes.packed[c]), high = static_cast<uint32_t>(codes.packed[4 + c]);
    const int lane = 4 * g + c;
    if constexpr (has_nibbles(kForm)) {
      const uint32_t flip = kForm == WeightForm::n4 ? 0x08080808u : 0u;  // code -8..7 to 0..15
      *reinterpret_cast<uint32_t*>(word_at(unit, kForm, b, hi, 0, lane)) =
          ((low ^ flip) & 0x0f0f0f0fu) | ((high ^ flip) & 0x0f0f0f0fu) << 4;
    } else {
      *reinterpret_cast<uint32_t*>(word_at(unit, kForm, b, hi, 0, lane)) = low;
      *reinterpret_cast<uint32_t*>(word_at(unit, kForm, b, hi, 1, lane)) = high;
    }
  }
}

template <WeightForm kForm>
__device__ void put_scales(const Codes32& codes, const ScaleParts& parts, int b, int g, int hi, uint8_t* unit) {
  uint8_t* at = unit + code_bytes(kForm);
  if constexpr (kForm == WeightForm::n4 || kForm == WeightForm::b8) {
    reinterpret_cast<__half*>(at)[g * 8 + hi * 4 + b] = __float2half_rn(codes.scale[0]);
  } else if constexpr (kForm == WeightForm::n4k) {
    at[g * 16 + hi * 8 + b * 2] = static_cast<uint8_t>(parts.scale[0]);
    at[g * 16 + hi * 8 + b * 2 + 1] = static_cast<uint8_t>(parts.min[0]);
    if (b == 0) {
      reinterpret_cast<__half*>(at + 128)[g * 4 + hi * 2] = __float2half_rn(parts.d);
      reinterpret_cast<__half*>(at + 128)[g * 4 + hi * 2 + 1] = __float2half_rn(parts.dmin);
    }
  } else if constexpr (kForm == WeightForm::b8f) {
    float* to = reinterpret_cast<float*>(at) + (b * 8 + g) * 4 + hi;
    to[0] = codes.scale[0];
    to[2] = codes.min[0];
  } else {
    constexpr bool kMin = kForm == WeightForm::b8km;
    for (int k = 0; k < 2; ++k) {
      at[g * 16 + hi * 8 + b * 2 + k] = static_cast<uint8_t>(parts.scale[k]);
      if (kMin) at[128 + g * 16 + hi * 8 + b * 2 + k] = static_cast<uint8_t>(parts.min[k]);
    }
    if (b == 0) {
      float* to = reinterpret_cast<float*>(at + (kMin ? 256 : 128));
      to[(g * 2 + hi) * (kMin ? 2 : 1)] = parts.d;
      if (kMin) to[(g * 2 + hi) * 2 + 1] = parts.dmin;
    }
  }
}

/// A thread packs one row of one unit. Bytes: the file's once, the form's once; the bus that fills `rows` is slower.
template <BlockType kType>
__global__ void pack(const uint8_t* rows, int64_t n_row, int64_t row_bytes, int64_t n_in, int64_t n_units,
                     int64_t n_item, uint8_t* strips) {
  wait_for_previous();
  constexpr WeightForm kForm = form_of(kType);
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= n_item) return;
  const int64_t unit = item % n_units, row = item / n_units;
  const int g = static_cast<int>(row % 8), hi = static_cast<int>(row / 8 % 2);
  uint8_t* to = strips + (row / kStripRows * n_units + unit) * unit_bytes(kForm);
  for (int b = 0; b < 4; ++b) {
    const int64_t group = unit * 4 + b;
    Codes32 codes{};
    ScaleParts parts;
    if (row < n_row && group * 32 < n_in) {
      read_codes32<kType>(rows + row * row_bytes, group, codes);
      parts = read_scale_parts<kType>(rows + row * row_bytes, group);
    }
    put_codes<kForm>(codes, b, g, hi, to);
    put_scales<kForm>(codes, parts, b, g, hi, to);
  }
}

/// Column k of row r of a unit.
template <WeightForm kForm>
__device__ float value_at(const uint8_t* unit, int r, int k) {
  const int g = r % 8, hi = r / 8, b = k / 32, upper = k % 32 / 16, lane = 4 * g + k % 16 / 4;
  const uint8_t byte = word_at(const_cast<uint8_t*>(unit), kForm, b, hi, upper, lane)[k % 4];
  const uint8_t* at = unit + code_bytes(kForm);
  if constexpr (has_nibbles(kForm)) {
    const int code = byte >> 4 * upper & 15;
    if constexpr (kForm == WeightForm::n4) {
      return static_cast<float>(code - 8) * __half2float(reinterpret_cast<const __half*>(at)[g * 8 + hi * 4 + b]);
    } else {
      const __half* d = reinterpret_cast<const __half*>(at + 128) + g * 4 + hi * 2;
      const uint8_t* parts = at + g * 16 + hi * 8 + b * 2;
      return __half2float(d[0]) * static_cast<float>(parts[0]) * static_cast<float>(code) -
             __half2float(d[1]) * static_cast<float>(parts[1]);
    }
  } else {
    const float code = static_cast<float>(static_cast<int8_t>(byte));
    if constexpr (kForm == WeightForm::b8) {
      return code * __half2float(reinterpret_cast<const __half*>(at)[g * 8 + hi * 4 + b]);
    } else if constexpr (kForm == WeightForm::b8f) {
      const float* parts = reinterpret_cast<const float*>(at) + (b * 8 + g) * 4 + hi;
      return parts[0] * code - parts[2];
    } else {
      constexpr bool kMin = kForm == WeightForm::b8km;
      const int part = g * 16 + hi * 8 + b * 2 + upper;
      const float* d = reinterpret_cast<const float*>(at + (kMin ? 256 : 128)) + (g * 2 + hi) * (kMin ? 2 : 1);
      const float product = d[0] * static_cast<float>(static_cast<int8_t>(at[part])) * code;
      return kMin ? product - d[1] * static_cast<float>(at[128 + part]) : product;
    }
  }
}

template <WeightForm kForm>
__global__ void gather_rows(const uint8_t* data, int64_t n_out, int64_t expert_bytes, int64_t n_in, int64_t n_units,
                            const int32_t* ids, float* y) {
  wait_for_previous();
  const int64_t id = ids[blockIdx.x], row = id % n_out;
  const uint8_t* strip = data + id / n_out * expert_bytes + row / kStripRows * n_units * unit_bytes(kForm);
  for (int64_t k = threadIdx.x; k < n_in; k += blockDim.x) {
    const uint8_t* unit = strip + k / kUnitColumns * unit_bytes(kForm);
    y[blockIdx.x * n_in + k] =
        value_at<kForm>(unit, static_cast<int>(row % kStripRows), static_cast<int>(k % kUnitColumns));
  }
}

}  // namespace

void pack_strips(BlockType type, const uint8_t* rows, int64_t n_row, int64_t n_in, uint8_t* strips,
                 gpuStream_t stream) {
  const int64_t units = n_unit(n_in), n_item = n_strip(n_row) * kStripRows * units;
  const dim3 grid(static_cast<unsigned>((n_item + kThreads - 1) / kThreads));
  with_quantised_type(type, [&]<BlockType kType>() {
    launch(pack<kType>, grid, dim3(kThreads), 0, stream, rows, n_row, row_bytes(kType, n_in), n_in, units, n_item,
           strips);
  });
}

void gather_form(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream) {
  if (n_row == 0) return;
  const auto run = [&]<WeightForm kForm>() {
    launch(gather_rows<kForm>, dim3(static_cast<unsigned>(n_row)), dim3(kThreads), 0, stream, weight.data, weight.n_out,
           weight.expert_bytes, weight.n_in, n_unit(weight.n_in), ids, y);
  };
  with_form(weight.form, run);
}

}  // namespace onebit::gpu
