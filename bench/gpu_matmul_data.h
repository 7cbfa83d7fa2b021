// What gpu_matmul_bench works on: poisoned device memory, random weights and activations on both sides.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/matmul.h"
#include "backend/gpu/acts.h"
#include "backend/ref/act.h"
#include "backend/ref/codes.h"
#include "base/half.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace onebit::gpu {

/// Device memory that starts as NaN, with 256 guard bytes behind it.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes + 256), "allocating");
    poison();
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~Buffer() { cudaFree(data_); }
  void poison() { check(cudaMemset(data_, 0xff, bytes_ + 256), "poisoning"); }
  template <class T = uint8_t>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void put(const void* from, size_t bytes) { check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "put"); }
  template <class T>
  std::vector<T> get(size_t n) const {
    std::vector<T> to(n);
    check(cudaMemcpy(to.data(), data_, n * sizeof(T), cudaMemcpyDeviceToHost), "get");
    return to;
  }
  bool guard_whole() const {
    uint8_t guard[256];
    check(cudaMemcpy(guard, as() + bytes_, 256, cudaMemcpyDeviceToHost), "guard");
    return std::all_of(guard, guard + 256, [](uint8_t b) { return b == 0xff; });
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

inline constexpr int64_t kParts = int64_t{512} << 20;  // workspace of a product

inline std::mt19937 random_bits(7);
inline float normal() {
  static std::normal_distribution<float> distribution;
  return distribution(random_bits);
}

/// n rows of a type with sensible scales: encoded where that is possible, else random bytes with the scales set.
inline std::vector<uint8_t> random_rows(BlockType type, int64_t n_row, int64_t n_in) {
  const int64_t bytes = row_bytes(type, n_in);
  std::vector<uint8_t> rows(static_cast<size_t>(n_row * bytes));
  const TypeInfo& info = type_info(type);
  if (info.encodable) {
    std::vector<float> row(static_cast<size_t>(n_in));
    for (int64_t r = 0; r < n_row; ++r) {
      for (float& v : row) v = 0.02f * normal();
      encode_row(type, row.data(), rows.data() + r * bytes, n_in);
    }
    return rows;
  }
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random_bits());
  std::vector<int> scales = {0};
  if (type == BlockType::q5_1) scales = {0, 2};
  if (type == BlockType::q2_k) scales = {80, 82};
  if (type == BlockType::q3_k) scales = {108};
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(info.block_bytes)) {
    for (const int scale : scales) {
      const uint16_t bits = f32_to_f16(0.001f * (1 + static_cast<float>(random_bits() % 100)));
      if (type == BlockType::mxfp4) {
        rows[at] = static_cast<uint8_t>(118 + random_bits() % 8);
      } else {
        std::memcpy(rows.data() + at + static_cast<size_t>(scale), &bits, 2);
      }
    }
  }
  return rows;
}

inline DeviceWeight make_weight(BlockType type, int64_t n_expert, int64_t n_out, int64_t n_in, uint8_t* memory) {
  DeviceWeight w;
  w.type = type;
  w.form = form_of(type);
  w.n_out = n_out;
  w.n_in = n_in;
  w.n_expert = n_expert;
  w.data = memory;
  w.expert_bytes = w.form == WeightForm::plain ? n_out * row_bytes(type, n_in) : form_bytes(w.form, n_out, n_in);
  return w;
}

/// A weight with its rows on both sides.
struct TestWeight {
  std::vector<uint8_t> rows;
  Buffer memory;
  DeviceWeight device;

  TestWeight(BlockType type, int64_t n_expert, int64_t n_out, int64_t n_in)
      : rows(random_rows(type, n_expert * n_out, n_in)),
        memory(static_cast<size_t>(n_expert * make_weight(type, 1, n_out, n_in, nullptr).expert_bytes)),
        device(make_weight(type, n_expert, n_out, n_in, memory.as())) {
    Buffer raw(rows.size());
    raw.put(rows.data(), rows.size());
    const int64_t expert = n_out * row_bytes(type, n_in);
    for (int64_t e = 0; e < n_expert; ++e) {
      if (device.form == WeightForm::plain) {
        check(cudaMemcpy(memory.as() + e * expert, raw.as() + e * expert, static_cast<size_t>(expert),
                         cudaMemcpyDeviceToDevice),
              "copying");
      } else {
        pack_strips(type, raw.as() + e * expert, n_out, n_in, memory.as() + e * device.expert_bytes, nullptr);
      }
    }
    check(cudaDeviceSynchronize(), "packing");
  }
};

struct TestActs {
  std::vector<float> x;
  std::vector<ref::ActBlock> blocks;  // [n_row, K/32]
  Buffer input, memory;
  DeviceActs device;

  /// `compare`: the blocks are made on the CPU too.
  TestActs(int64_t n_row, int64_t n_in, bool rotate, ActsMix mix, bool compare = true)
      : x(static_cast<size_t>(n_row * n_in)),
        input(x.size() * 4),
        memory(static_cast<size_t>(tiled_acts_bytes(n_row, n_in, true))),
        device(tiled_acts_at(memory.as(), n_row, n_row, n_in, mix, true)) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (!compare && i >= 100003) {
        x[i] = x[i - 100003];
        continue;
      }
      const float size = i / 32 % 7 == 3 ? 50.0f : i / 32 % 11 == 5 ? 1e-4f : 1.0f;
      x[i] = size * normal();
    }
    input.put(x.data(), x.size() * 4);
    quantize_tiled({.x = input.as<float>()}, rotate, nullptr, 1, device, nullptr);
    check(cudaDeviceSynchronize(), "quantising");
    if (!compare) return;
    std::vector<float> rotated = x;
    if (rotate) hadamard32(rotated.data(), static_cast<int64_t>(rotated.size()));
    const ref::ActGrid grid = mix == ActsMix::int4 ? ref::int4_grid(Int4Rule::search) : ref::ActGrid::int8;
    for (size_t i = 0; i < x.size(); i += 32) blocks.push_back(ref::quantize_block(rotated.data() + i, grid));
  }

  /// Codes and scales that differ from ref's; -1 without an integer form.
  int64_t differences() const {
    if (!device.codes) return -1;
    const int64_t rows = padded_rows(device.n_row), units = n_unit(device.n_in), columns = units * kUnitColumns;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
    std::vector<float> scales(static_cast<size_t>(rows * columns / 32));
    check(cudaMemcpy(codes.data(), device.codes, codes.size(), cudaMemcpyDeviceToHost), "get");
    check(cudaMemcpy(scales.data(), device.scales, scales.size() * 4, cudaMemcpyDeviceToHost), "get");
    int64_t wrong = 0;
    for (int64_t r = 0; r < device.n_row; ++r) {
      for (int64_t b = 0; b < device.n_in / 32; ++b) {
        const ref::ActBlock& block = blocks[static_cast<size_t>(r * device.n_in / 32 + b)];
        const int64_t unit = b / 4, in_unit = b % 4;
        wrong += scales[static_cast<size_t>((unit * rows + r) * 4 + in_unit)] != block.scale;
        for (int i = 0; i < 32; ++i) {
          const int64_t at =
              ((unit * 2 + in_unit / 2) * rows + r) * 64 + i % 16 / 4 * 16 + (in_unit % 2 * 2 + i / 16) * 4 + i % 4;
          wrong += static_cast<int8_t>(codes[static_cast<size_t>(at)]) != block.codes[i];
        }
      }
    }
    return wrong;
  }
};

/// Every kernel and form against sums made on the CPU; a line per check. Returns how many failed.
int check_products();

}  // namespace onebit::gpu
