#include "backend/cpu/weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "gguf/blocks.h"

namespace onebit::cpu {
namespace {

// A thread packs runs of strips: long ones, so that it has the pages that it touches first for itself, but enough of
// them for an even share.
constexpr int64_t kRunBytes = int64_t{4} << 20, kRunsPerThread = 4;

int64_t padded(int64_t rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

bool is_matrix(const Weight& weight) { return weight.shape.size() > 1; }

/// Bytes of an element of a float type.
int64_t element_bytes(BlockType type) { return type_info(type).block_bytes; }

/// What load() will make of a weight, without its memory.
LoadedWeight shape_of_loaded(const Weight& weight) {
  LoadedWeight loaded;
  loaded.type = weight.type;
  loaded.n_expert = weight.n_expert();
  loaded.n_out = weight.n_out();
  loaded.n_in = weight.n_in();
  if (stays_in_file(weight)) {
    loaded.form = LoadedWeight::Form::file;
    loaded.data = weight.data.data();
    loaded.expert_bytes = loaded.n_out * row_bytes(weight.type, loaded.n_in);
  } else if (!is_matrix(weight)) {
    loaded.form = LoadedWeight::Form::plain;
    loaded.expert_bytes = loaded.n_in * 4;
  } else if (const std::optional<Strip> form = strip_form(weight.type)) {
    loaded.form = LoadedWeight::Form::strips;
    loaded.strip = *form;
    loaded.strip_bytes = strip_bytes(*form, loaded.n_in);
    loaded.expert_bytes = loaded.n_strip() * loaded.strip_bytes;
  } else {
    loaded.form = LoadedWeight::Form::floats;
    loaded.strip_bytes = kLanes * loaded.n_in * element_bytes(weight.type);
    loaded.expert_bytes = loaded.n_strip() * loaded.strip_bytes;
  }
  return loaded;
}

/// Where element (row, 0) of a float strip is, in elements, and how far the next column is.
struct FloatPlace {
  int64_t at, step;
};
FloatPlace float_place(const LoadedWeight& weight, int64_t row) {
  const int64_t first = row / kFloatStrip * kFloatStrip;
  const int64_t rows = std::min<int64_t>(kFloatStrip, padded(weight.n_out) - first);
  return {first * weight.n_in + row % kFloatStrip, rows};
}

/// Packs the 16 rows of one strip of one expert.
void pack(const Weight& from, const LoadedWeight& weight, int64_t expert, int64_t strip, uint8_t* memory) {
  const int64_t first = strip * kLanes, bytes = row_bytes(weight.type, weight.n_in);
  const int n_row = static_cast<int>(std::min<int64_t>(kLanes, weight.n_out - first));
  const uint8_t* rows = from.data.data() + (expert * weight.n_out + first) * bytes;
  uint8_t* matrix = memory + expert * weight.expert_bytes;
  if (weight.form == LoadedWeight::Form::strips) {
    pack_strip(weight.type, rows, n_row, weight.n_in, matrix + strip * weight.strip_bytes);
  } else {
    const FloatPlace place = float_place(weight, first);
    const int64_t size = element_bytes(weight.type);
    pack_floats(weight.type, rows, n_row, weight.n_in, matrix + place.at * size, place.step * size);
  }
}

/// One row of quantised strips: a group of blocks is unpacked for all 16 rows and one of them is read.
void gather_packed(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, int64_t row, float* y) {
  const StripShape& shape = shape_of(weight.strip);
  const bool by16 = shape.wide == Wide::by16 || shape.wide == Wide::by16_min;
  const bool has_min = shape.wide == Wide::by32_min || shape.wide == Wide::by16_min;
  const int64_t group_bytes = shape.head_bytes + shape.group_blocks * shape.block_bytes, r = row % kLanes;
  const uint8_t* strip = matrix + row / kLanes * weight.strip_bytes;
  alignas(64) uint8_t wide[8 * kWideBytesMax];
  for (int64_t column = 0; column < weight.n_in; strip += group_bytes) {
    kernels.unpack[static_cast<int>(weight.strip)](strip, shape.group_blocks, wide);
    const uint8_t* block = wide;
    for (int b = 0; b < shape.group_blocks; ++b, block += kWideBytes[static_cast<int>(shape.wide)]) {
      const auto* factors = reinterpret_cast<const float*>(block + kCodeBytes);
      for (int k = 0; k < kBlock; ++k) {
        const auto stored =
            static_cast<uint8_t>(block[64 * (k / 4) + 4 * r + k % 4] - (has_min ? 0 : kernels.wide_zero));
        const int code = has_min ? stored : static_cast<int8_t>(stored);
        const int64_t group = by16 ? k / 16 : 0;
        const float value = factors[kLanes * group + r] * static_cast<float>(code);
        const float min = has_min ? 8 * factors[kLanes * (group + (by16 ? 2 : 1)) + r] : 0;
        y[column++] = has_min ? value - min : value;
      }
    }
  }
}

void gather_float(const LoadedWeight& weight, const uint8_t* matrix, int64_t row, float* y) {
  const FloatPlace place = float_place(weight, row);
  for (int64_t i = 0; i < weight.n_in; ++i) {
    const int64_t at = place.at + i * place.step;
    if (weight.type == BlockType::f32) {
      y[i] = reinterpret_cast<const float*>(matrix)[at];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(matrix)[at];
      y[i] = weight.type == BlockType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
}

}  // namespace

bool stays_in_file(const Weight& weight) { return weight.gather_only && is_matrix(weight); }

int64_t loaded_bytes(const Weight& weight) {
  if (stays_in_file(weight)) return 0;
  const LoadedWeight loaded = shape_of_loaded(weight);
  return loaded.n_expert * loaded.expert_bytes;
}

void gather_row(const Kernels& kernels, const LoadedWeight& weight, int64_t row, float* y) {
  const uint8_t* matrix = weight.data + row / weight.n_out * weight.expert_bytes;
  row %= weight.n_out;
  switch (weight.form) {
    case LoadedWeight::Form::plain:
      std::memcpy(y, matrix + row * weight.n_in * 4, static_cast<size_t>(weight.n_in) * 4);
      return;
    case LoadedWeight::Form::strips:
      return gather_packed(kernels, weight, matrix, row, y);
    case LoadedWeight::Form::floats:
      return gather_float(weight, matrix, row, y);
    case LoadedWeight::Form::transposed:
      for (int64_t i = 0; i < weight.n_in; ++i) y[i] = reinterpret_cast<const float*>(matrix)[i * weight.n_out + row];
      return;
    case LoadedWeight::Form::file:
      return decode_row(weight.type, matrix + row * row_bytes(weight.type, weight.n_in), y, weight.n_in);
  }
}

void WeightStore::load(const Weight& weight) {
  CHECK(!weight.shape.empty());
  if (!type_info(weight.type).decodable) {
    refuse("{}: type {} can't be computed with; quantise the model to another type", weight.name,
           type_name(weight.type));
  }
  CHECK(static_cast<int64_t>(weight.data.size()) ==
        weight.n_expert() * weight.n_out() * row_bytes(weight.type, weight.n_in()));
  LoadedWeight loaded = shape_of_loaded(weight);
  if (loaded.form != LoadedWeight::Form::file) {
    const int64_t bytes = loaded.n_expert * loaded.expert_bytes;
    if (bytes > SmallBlocks::kMostBytes) loaded.memory = Pages(bytes);
    uint8_t* memory = bytes > SmallBlocks::kMostBytes ? loaded.memory.data() : small_.take(bytes);
    if (loaded.form == LoadedWeight::Form::plain) {
      decode_row(weight.type, weight.data.data(), reinterpret_cast<float*>(memory), loaded.n_in);
    } else {
      pack_all(weight, loaded, memory);
    }
    loaded.data = memory;
  }
  loaded_.insert_or_assign(&weight, std::move(loaded));
}

void WeightStore::pack_all(const Weight& weight, const LoadedWeight& loaded, uint8_t* memory) {
  const int64_t n_strip = loaded.n_strip(), n = n_strip * loaded.n_expert;
  const int64_t large = kRunBytes / (kFloatStrip / kLanes * loaded.strip_bytes);
  const int64_t fair = n / (kFloatStrip / kLanes * kRunsPerThread * pool_.size());
  const int64_t run = std::max<int64_t>(std::min(large, fair), 1) * (kFloatStrip / kLanes);
  std::atomic<int64_t> next{0};
  pool_.run([&](int) {
    for (int64_t begin = next.fetch_add(run); begin < n; begin = next.fetch_add(run)) {
      for (int64_t i = begin; i < std::min(begin + run, n); ++i) pack(weight, loaded, i / n_strip, i % n_strip, memory);
    }
  });
}

const LoadedWeight& WeightStore::get(const Weight& weight) const {
  const auto found = loaded_.find(&weight);
  CHECK(found != loaded_.end());
  return found->second;
}

const float* WeightStore::plain(const Weight& weight, bool transposed) {
  using Form = LoadedWeight::Form;
  const auto found = loaded_.find(&weight);
  CHECK(found != loaded_.end());
  LoadedWeight& loaded = found->second;
  const Form wanted = transposed ? Form::transposed : Form::plain;
  if (loaded.form != wanted) {
    CHECK(loaded.form == Form::floats && (!transposed || loaded.n_expert == 1));
    const int64_t n_row = loaded.n_expert * loaded.n_out;
    Pages memory(n_row * loaded.n_in * 4);
    std::vector<float> row(static_cast<size_t>(loaded.n_in));
    for (int64_t r = 0; r < n_row; ++r) {
      gather_row(kernels_, loaded, r, row.data());
      for (int64_t i = 0; i < loaded.n_in; ++i) {
        memory.as<float>()[transposed ? i * n_row + r : r * loaded.n_in + i] = row[static_cast<size_t>(i)];
      }
    }
    loaded.form = wanted;
    loaded.expert_bytes = loaded.n_out * loaded.n_in * 4;
    loaded.memory = std::move(memory);
    loaded.data = loaded.memory.data();
  }
  return reinterpret_cast<const float*>(loaded.data);
}

}  // namespace onebit::cpu
