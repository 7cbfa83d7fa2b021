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

/// The index of a table value (they are distinct).
__device__ uint32_t table_index(int code) {
  uint32_t index = 0;
  for (int i = 0; i < 16; ++i) {
    if (iq4_code(i) == code) index = static_cast<uint32_t>(i);
  }
  return index;
}

/// Unsigned code i of a row's 32: as the planes of a form hold it.
template <WeightForm kForm>
__device__ uint32_t plane_code(const Codes32& codes, int i) {
  constexpr int kBias = kForm == WeightForm::n4 ? 8 : kForm == WeightForm::n6k ? 32 : 0;
  if constexpr (has_table(kForm)) return table_index(codes.code(i));
  return static_cast<uint32_t>(codes.code(i) + kBias);
}

/// Words of block b of a unit: rows g and g + 8 of a form with bytes. `filled`: the rows that there are.
__device__ void put_bytes(const Codes32 (&rows)[2], const bool (&filled)[2], int b, int g, uint8_t* unit) {
  for (int c = 0; c < 4; ++c) {
    for (int j = 0; j < 4; ++j) {
      const int hi = j % 2, upper = j / 2;
      reinterpret_cast<int*>(unit + b * 512 + (4 * g + c) * 16)[j] = filled[hi] ? rows[hi].packed[4 * upper + c] : 0;
    }
  }
}

/// The same for a form with planes.
template <WeightForm kForm>
__device__ void put_planes(const Codes32 (&rows)[2], const bool (&filled)[2], int b, int g, uint8_t* unit) {
  uint32_t* plane = reinterpret_cast<uint32_t*>(unit + low_bytes(kForm));
  for (int lane = 4 * g; lane < 4 * g + 4; ++lane) {
    uint32_t low[2] = {}, high = 0;
    for (int j = 0; j < 4; ++j) {
      const int hi = j % 2, upper = j / 2;
      for (int i = 0; i < 4 && filled[hi]; ++i) {
        const uint32_t code = plane_code<kForm>(rows[hi], 16 * upper + 4 * (lane % 4) + i);
        low[hi] |= (code & 15) << (has_table(kForm) ? 4 * i + 16 * upper : 8 * i + 4 * upper);
        high |= code >> 4 << (kForm == WeightForm::n5k ? 8 * i + j : 8 * i + 2 * j);
      }
    }
    uint32_t* to = reinterpret_cast<uint32_t*>(unit + b / 2 * 512 + lane * 16) + b % 2 * 2;
    to[0] = low[0];
    to[1] = low[1];
    if (kForm == WeightForm::n6k) plane[lane * 4 + b] = high;
    if (kForm == WeightForm::n5k && b % 2 == 0) plane[lane * 2 + b / 2] = high;
    if (kForm == WeightForm::n5k && b % 2 == 1) plane[lane * 2 + b / 2] |= high << 4;
  }
}

template <WeightForm kForm>
__device__ void put_scales(const Codes32& codes, const ScaleParts& parts, int b, int g, int hi, uint8_t* unit) {
  using enum WeightForm;
  uint8_t* at = unit + scales_at(kForm);
  if constexpr (kForm == n4 || kForm == t4 || kForm == b8) {
    reinterpret_cast<__half*>(at)[g * 8 + hi * 4 + b] = __float2half_rn(codes.scale[0]);
  } else if constexpr (kForm == n4k || kForm == n5k) {
    at[g * 16 + hi * 8 + b * 2] = static_cast<uint8_t>(parts.scale[0]);
    at[g * 16 + hi * 8 + b * 2 + 1] = static_cast<uint8_t>(parts.min[0]);
    if (b == 0) {
      reinterpret_cast<__half*>(at + 128)[g * 4 + hi * 2] = __float2half_rn(parts.d);
      reinterpret_cast<__half*>(at + 128)[g * 4 + hi * 2 + 1] = __float2half_rn(parts.dmin);
    }
  } else if constexpr (kForm == t4k) {
    at[g * 8 + hi * 4 + b] = static_cast<uint8_t>(parts.scale[0]);
    if (b == 0) reinterpret_cast<float*>(at + 64)[g * 2 + hi] = parts.d;
  } else if constexpr (kForm == b8f) {
    float* to = reinterpret_cast<float*>(at) + (b * 8 + g) * 4 + hi;
    to[0] = codes.scale[0];
    to[2] = codes.min[0];
  } else {
    constexpr bool kMin = kForm == b8km;
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

/// A thread packs rows g and g + 8 of one unit. Bytes: the file's once, the form's once; the bus that fills `rows` is
/// slower.
template <BlockType kType>
__global__ void pack(const uint8_t* rows, int64_t n_row, int64_t row_bytes, int64_t n_in, int64_t n_units,
                     int64_t n_item, uint8_t* strips) {
  wait_for_previous();
  constexpr WeightForm kForm = form_of(kType);
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= n_item) return;
  const int64_t unit = item % n_units, strip = item / n_units / 8;
  const int g = static_cast<int>(item / n_units % 8);
  uint8_t* to = strips + (strip * n_units + unit) * unit_bytes(kForm);
  for (int b = 0; b < 4; ++b) {
    const int64_t group = unit * 4 + b;
    Codes32 codes[2] = {};
    bool filled[2];
    for (int hi = 0; hi < 2; ++hi) {
      const int64_t row = strip * kStripRows + g + 8 * hi;
      ScaleParts parts;
      filled[hi] = row < n_row && group * 32 < n_in;
      if (filled[hi]) {
        read_codes32<kType>(rows + row * row_bytes, group, codes[hi]);
        parts = read_scale_parts<kType>(rows + row * row_bytes, group);
      }
      put_scales<kForm>(codes[hi], parts, b, g, hi, to);
    }
    if constexpr (has_bytes(kForm)) {
      put_bytes(codes, filled, b, g, to);
    } else {
      put_planes<kForm>(codes, filled, b, g, to);
    }
  }
}

/// Code of column k of row r of a unit.
template <WeightForm kForm>
__device__ int code_at(const uint8_t* unit, int r, int k) {
  const int g = r % 8, hi = r / 8, b = k / 32, upper = k % 32 / 16, lane = 4 * g + k % 16 / 4, i = k % 4;
  const int j = upper * 2 + hi;
  if constexpr (has_bytes(kForm)) {
    return static_cast<int8_t>(unit[b * 512 + lane * 16 + j * 4 + i]);
  } else {
    const uint32_t word = reinterpret_cast<const uint32_t*>(unit + b / 2 * 512 + lane * 16)[b % 2 * 2 + hi];
    const int low = static_cast<int>(word >> (has_table(kForm) ? 4 * i + 16 * upper : 8 * i + 4 * upper) & 15);
    const uint32_t* plane = reinterpret_cast<const uint32_t*>(unit + low_bytes(kForm));
    if constexpr (has_table(kForm)) return iq4_code(low);
    if constexpr (kForm == WeightForm::n4) return low - 8;
    if constexpr (kForm == WeightForm::n6k)
      return (low | static_cast<int>(plane[lane * 4 + b] >> (8 * i + 2 * j) & 3) << 4) - 32;
    if constexpr (kForm == WeightForm::n5k) {
      return low | static_cast<int>(plane[lane * 2 + b / 2] >> (8 * i + 4 * (b % 2) + j) & 1) << 4;
    }
    return low;
  }
}

/// Column k of row r of a unit.
template <WeightForm kForm>
__device__ float value_at(const uint8_t* unit, int r, int k) {
  using enum WeightForm;
  const int g = r % 8, hi = r / 8, b = k / 32, upper = k % 32 / 16;
  const float code = static_cast<float>(code_at<kForm>(unit, r, k));
  const uint8_t* at = unit + scales_at(kForm);
  if constexpr (kForm == n4 || kForm == t4 || kForm == b8) {
    return code * __half2float(reinterpret_cast<const __half*>(at)[g * 8 + hi * 4 + b]);
  } else if constexpr (kForm == n4k || kForm == n5k) {
    const __half* d = reinterpret_cast<const __half*>(at + 128) + g * 4 + hi * 2;
    const uint8_t* parts = at + g * 16 + hi * 8 + b * 2;
    return __half2float(d[0]) * static_cast<float>(parts[0]) * code - __half2float(d[1]) * static_cast<float>(parts[1]);
  } else if constexpr (kForm == t4k) {
    const float d = reinterpret_cast<const float*>(at + 64)[g * 2 + hi];
    return d * static_cast<float>(static_cast<int8_t>(at[g * 8 + hi * 4 + b])) * code;
  } else if constexpr (kForm == b8f) {
    const float* parts = reinterpret_cast<const float*>(at) + (b * 8 + g) * 4 + hi;
    return parts[0] * code - parts[2];
  } else {
    constexpr bool kMin = kForm == b8km;
    const int part = g * 16 + hi * 8 + b * 2 + upper;
    const float* d = reinterpret_cast<const float*>(at + (kMin ? 256 : 128)) + (g * 2 + hi) * (kMin ? 2 : 1);
    const float product = d[0] * static_cast<float>(static_cast<int8_t>(at[part])) * code;
    return kMin ? product - d[1] * static_cast<float>(at[128 + part]) : product;
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
  const int64_t units = n_unit(n_in), n_item = n_strip(n_row) * 8 * units;
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
