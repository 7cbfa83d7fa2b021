// Checks the matmul kernels of the cuda device against sums made on the CPU, then times them at the shapes of a 27B
// model. In: nothing but a GPU; the data are random. Out: a line per check, a table of times, and CSV when a file is
// named. Usage: gpu_matmul_bench [check|time|few|all] [CSV]
//
// Timed calls are captured in a graph and rotate over copies of the weights that together are several times the L2.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/matmul.h"
#include "backend/gpu/acts.h"
#include "backend/ref/act.h"
#include "backend/ref/codes.h"
#include "base/half.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"

namespace {

using namespace onebit;
using namespace onebit::gpu;

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

constexpr int64_t kParts = int64_t{512} << 20;  // workspace of a product

std::mt19937 random_bits(7);
float normal() {
  static std::normal_distribution<float> distribution;
  return distribution(random_bits);
}

/// n rows of a type with sensible scales: encoded where that is possible, else random bytes with the scales set.
std::vector<uint8_t> random_rows(BlockType type, int64_t n_row, int64_t n_in) {
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

DeviceWeight make_weight(BlockType type, int64_t n_expert, int64_t n_out, int64_t n_in, uint8_t* memory) {
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

/// Worst |y - sum| / sum of |terms| over all results; NaN counts as infinite. dot returns both sums.
struct Sums {
  double sum = 0, size = 0;
};
double worst_error(const std::vector<float>& y, int64_t n_row, int64_t n_out,
                   const std::function<Sums(int64_t row, int64_t out)>& dot) {
  double worst = 0;
  for (int64_t n = 0; n < n_out; ++n) {
    for (int64_t r = 0; r < n_row; ++r) {
      const Sums expected = dot(r, n);
      const double error =
          std::fabs(static_cast<double>(y[static_cast<size_t>(r * n_out + n)]) - expected.sum) / expected.size;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

Sums dot_codes(const ref::CodedRow& w, const ref::ActBlock* x) {
  Sums sums;
  for (size_t g = 0; g < w.scale.size(); ++g) {
    const size_t at = g * static_cast<size_t>(w.group);
    const ref::ActBlock& block = x[at / 32];
    for (size_t i = 0; i < static_cast<size_t>(w.group); ++i) {
      const double weight = static_cast<double>(w.scale[g]) * w.codes[at + i] - (w.min.empty() ? 0.0 : w.min[g]);
      const double term = weight * block.codes[at % 32 + i] * block.scale;
      sums.sum += term;
      sums.size += std::fabs(term);
    }
  }
  return sums;
}

int failures = 0;
void report(const std::string& what, double error, double bound, bool guard) {
  const bool good = error <= bound && guard;
  failures += !good;
  std::printf("%s %-44s error %.2e of %.2e%s\n", good ? "ok  " : "FAIL", what.c_str(), error, bound,
              guard ? "" : ", guard overwritten");
}

void check_type(BlockType type, int64_t n_out, int64_t n_in, bool rotate, ActsMix mix) {
  const Buffer parts(kParts);
  const TestWeight weight(type, 1, n_out, n_in), second(type, 1, 40, n_in);
  std::vector<ref::CodedRow> coded(static_cast<size_t>(n_out + 40));
  const int64_t bytes = row_bytes(type, n_in);
  for (int64_t n = 0; n < n_out; ++n)
    ref::read_codes(type, weight.rows.data() + n * bytes, n_in, coded[static_cast<size_t>(n)]);
  for (int64_t n = 0; n < 40; ++n)
    ref::read_codes(type, second.rows.data() + n * bytes, n_in, coded[static_cast<size_t>(n_out + n)]);
  // Lookup.
  {
    std::vector<int32_t> ids = {0, static_cast<int32_t>(n_out - 1), 17};
    Buffer device_ids(12), y(static_cast<size_t>(3 * n_in * 4));
    device_ids.put(ids.data(), 12);
    gather_form(weight.device, device_ids.as<int32_t>(), 3, y.as<float>(), nullptr);
    const auto got = y.get<float>(static_cast<size_t>(3 * n_in));
    std::vector<float> row(static_cast<size_t>(n_in));
    double wrong = 0;
    for (size_t i = 0; i < 3; ++i) {
      decode_row(type, weight.rows.data() + ids[i] * bytes, row.data(), n_in);
      for (size_t k = 0; k < row.size(); ++k) wrong += row[k] != got[i * row.size() + k];
    }
    report(std::string(type_name(type)) + " lookup", wrong, 0, y.guard_whole());
  }
  for (const int64_t n_row : {1, 3, 8, 9, 16, 17, 33, 64, 65, 128, 130, 300}) {
    TestActs acts(n_row, n_in, rotate, mix);
    if (const int64_t wrong = acts.differences(); wrong >= 0 && type == BlockType::q4_0) {
      report("codes of " + std::to_string(n_row) + " rows", static_cast<double>(wrong), 0, acts.memory.guard_whole());
    }
    const auto run = [&](const char* kernel, double bound, const auto& multiply) {
      Buffer y(static_cast<size_t>(n_row * n_out * 4)), y2(static_cast<size_t>(n_row * 40 * 4));
      std::vector<float> add(static_cast<size_t>(n_row * 40), 0.0f);
      y2.put(add.data(), add.size() * 4);  // added to itself
      const Product products[] = {{&weight.device, y.as<float>(), nullptr},
                                  {&second.device, y2.as<float>(), y2.as<float>()}};
      multiply(std::span<const Product>(products));
      check(cudaDeviceSynchronize(), kernel);
      const auto dot = [&](int64_t first) {
        return [&, first](int64_t r, int64_t n) {
          return dot_codes(coded[static_cast<size_t>(first + n)], acts.blocks.data() + r * (n_in / 32));
        };
      };
      const double error = std::max(worst_error(y.get<float>(static_cast<size_t>(n_row * n_out)), n_row, n_out, dot(0)),
                                    worst_error(y2.get<float>(static_cast<size_t>(n_row * 40)), n_row, 40, dot(n_out)));
      report(std::string(type_name(type)) + " " + kernel + " " + std::to_string(n_row) + " rows", error, bound,
             y.guard_whole() && y2.guard_whole());
    };
    const double units = (4 + 2 * std::sqrt(static_cast<double>(n_in))) * 0x1p-24;
    if (n_row <= cuda::kIntegerMatmulRows) {
      run("integer", units, [&](auto products) { cuda::matmul_integer(products, acts.device, nullptr); });
    }
    if (acts.device.halves) {
      run("half", 0x1p-10, [&](auto products) {
        cuda::matmul_half(products, acts.device, {parts.as(), kParts}, nullptr);
      });
      if (acts.device.nibbles) {
        run("int4", units, [&](auto products) { cuda::matmul_int4(products, acts.device, nullptr); });
      }
      run("half (mma)", 0x1p-10, [&](auto products) {
        cuda::matmul_half(products, acts.device, {parts.as(), kParts}, nullptr, true);
      });
    }
  }
}

void check_experts(BlockType type, int64_t n_tok, int64_t n_used, bool shared_input) {
  const int64_t n_expert = 16, n_out = 200, n_in = 512, n_pair = n_tok * n_used;
  const TestWeight weight(type, n_expert, n_out, n_in);
  TestActs acts(shared_input ? n_tok : n_pair, n_in, true, ActsMix::int8);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < n_tok; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(n_expert));
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    std::shuffle(all.begin(), all.end() - 3, random_bits);  // the last three are never chosen
    ids.insert(ids.end(), all.begin(), all.begin() + n_used);
  }
  Buffer device_ids(ids.size() * 4), offsets(static_cast<size_t>(n_expert + 1) * 4), order(ids.size() * 4);
  device_ids.put(ids.data(), ids.size() * 4);
  const ExpertGroups groups{
      n_pair, n_used, n_expert, device_ids.as<int32_t>(), offsets.as<int32_t>(), order.as<int32_t>()};
  cuda::group_rows(groups, nullptr);
  Buffer y(static_cast<size_t>(n_pair * n_out * 4));
  Buffer y2(static_cast<size_t>(n_pair * n_out * 4));  // the same product again, as another one
  const cuda::ExpertProduct products[] = {{&weight.device, y.as<float>()}, {&weight.device, y2.as<float>()}};
  const bool integer = n_pair <= kCodeRows || acts.device.n_row <= kIntegerRows;
  Buffer workspace(static_cast<size_t>(cuda::experts_half_workspace(weight.device, n_pair)));
  if (integer) {
    cuda::matmul_experts_integer(products, acts.device, shared_input, groups, nullptr);
  } else {
    cuda::matmul_experts_half(products, acts.device, shared_input, groups, {workspace.as(), 0}, nullptr);
  }
  check(cudaDeviceSynchronize(), "experts");
  std::vector<ref::CodedRow> coded(static_cast<size_t>(n_expert * n_out));
  for (size_t i = 0; i < coded.size(); ++i) {
    ref::read_codes(type, weight.rows.data() + static_cast<int64_t>(i) * row_bytes(type, n_in), n_in, coded[i]);
  }
  const double error =
      worst_error(y.get<float>(static_cast<size_t>(n_pair * n_out)), n_pair, n_out, [&](int64_t r, int64_t n) {
        return dot_codes(coded[static_cast<size_t>(ids[static_cast<size_t>(r)] * n_out + n)],
                         acts.blocks.data() + (shared_input ? r / n_used : r) * (n_in / 32));
      });
  const size_t n_result = static_cast<size_t>(n_pair * n_out);
  if (y.get<float>(n_result) != y2.get<float>(n_result)) report("two products of experts", 1, 0, true);
  report(std::string(type_name(type)) + " experts, " + (integer ? "integer" : "half") + ", " + std::to_string(n_tok) +
             (shared_input ? " shared" : " own") + " rows",
         error, integer ? 50 * 0x1p-24 : 0x1p-10, y.guard_whole() && workspace.guard_whole() && order.guard_whole());
}

void check_float(BlockType type, int64_t n_row) {
  const int64_t n_out = 72, n_in = 1056;
  const TestWeight weight(type, 1, n_out, n_in);
  const TestActs acts(n_row, n_in, false, ActsMix::int8);
  Buffer y(static_cast<size_t>(n_row * n_out * 4));
  const Product product{&weight.device, y.as<float>(), nullptr};
  cuda::matmul_split({&product, 1}, acts.input.as<float>(), n_row, nullptr);
  check(cudaDeviceSynchronize(), "float");
  std::vector<float> w(static_cast<size_t>(n_out * n_in));
  decode_row(type, weight.rows.data(), w.data(), n_out * n_in);
  const double error =
      worst_error(y.get<float>(static_cast<size_t>(n_row * n_out)), n_row, n_out, [&](int64_t r, int64_t n) {
        Sums sums;
        for (int64_t k = 0; k < n_in; ++k) {
          const double term =
              static_cast<double>(w[static_cast<size_t>(n * n_in + k)]) * acts.x[static_cast<size_t>(r * n_in + k)];
          sums.sum += term;
          sums.size += std::fabs(term);
        }
        return sums;
      });
  report(std::string(type_name(type)) + " float " + std::to_string(n_row) + " rows", error, 16 * 0x1p-24,
         y.guard_whole());
}

void check_all() {
  using enum BlockType;
  check_type(q4_0, 136, 1056, true, ActsMix::int4);  // K is no multiple of a unit
  check_type(q4_0, 152, 1024, true, ActsMix::int8);
  for (const BlockType type : {q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4}) check_type(type, 72, 416, false, ActsMix::int8);
  for (const BlockType type : {q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs}) check_type(type, 72, 768, false, ActsMix::int8);
  for (const int64_t n_tok : {1, 2, 9, 16, 40, 300}) {
    for (const bool shared : {true, false}) check_experts(q4_0, n_tok, 4, shared);
  }
  check_experts(q4_k, 7, 4, true);
  check_experts(q6_k, 100, 4, false);
  for (const BlockType type : {f32, f16, bf16}) {
    for (const int64_t n_row : {1, 8, 9, 70}) check_float(type, n_row);
  }
  std::printf(failures ? "%d checks FAILED\n" : "all checks passed\n", failures);
}

// --- times -----------------------------------------------------------------------------------------------------------

constexpr double kPeakBytes = 4.3e12, kPeakFlops = 790e12;  // measured on an H200: copy, bf16 product
std::FILE* csv = nullptr;

/// Median microseconds of one call: `calls` calls are captured in a graph, which is replayed.
double time_us(int calls, const std::function<void(int call, gpuStream_t)>& enqueue) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "timing");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "timing");
  for (int i = 0; i < calls; ++i) enqueue(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "timing");
  check(cudaGraphInstantiate(&exec, graph, 0), "timing");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "timing");
  check(cudaEventCreate(&end), "timing");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    check(cudaEventRecord(begin, stream), "timing");
    check(cudaGraphLaunch(exec, stream), "timing");
    check(cudaEventRecord(end, stream), "timing");
    check(cudaEventSynchronize(end), "timing");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "timing");
    if (i >= 2) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return static_cast<double>(times[times.size() / 2]) * 1000 / calls;
}

void print_time(const std::string& what, int64_t rows, double us, double bytes, double flops) {
  const double gbs = bytes / us / 1e3, tflops = flops / us / 1e6;
  std::printf("%-34s %5lld rows %9.2f us %7.0f GB/s (%2.0f %%) %7.1f TFLOP/s (%2.0f %%)\n", what.c_str(),
              static_cast<long long>(rows), us, gbs, gbs * 1e9 / kPeakBytes * 100, tflops,
              tflops * 1e12 / kPeakFlops * 100);
  if (csv) std::fprintf(csv, "%s,%lld,%.3f,%.1f,%.2f\n", what.c_str(), static_cast<long long>(rows), us, gbs, tflops);
}

/// Weights of one launch, in enough copies that they come from memory.
struct TimedWeights {
  std::vector<Buffer> memory;
  std::vector<std::vector<DeviceWeight>> sets;
  double bytes = 0, multiplies = 0;  // of one set, per row

  TimedWeights(BlockType type, std::span<const int64_t> n_out, int64_t n_in, int64_t n_expert, int n_set) {
    const int64_t pattern = 512;
    const std::vector<uint8_t> rows = random_rows(type, pattern, n_in);
    Buffer raw(rows.size());
    raw.put(rows.data(), rows.size());
    for (int64_t n : n_out) {
      bytes += static_cast<double>(n_expert * make_weight(type, 1, n, n_in, nullptr).expert_bytes);
      multiplies += static_cast<double>(n * n_in);
    }
    if (n_set == 0) n_set = std::max(2, static_cast<int>(400e6 / bytes) + 1);
    for (int s = 0; s < n_set; ++s) {
      std::vector<DeviceWeight> set;
      for (int64_t n : n_out) {
        const DeviceWeight one = make_weight(type, n_expert, n, n_in, nullptr);
        memory.emplace_back(static_cast<size_t>(n_expert * one.expert_bytes));
        for (int64_t e = 0; e < n_expert; ++e) {
          for (int64_t at = 0; at < n; at += pattern) {
            uint8_t* to = memory.back().as() + e * one.expert_bytes;
            const int64_t count = std::min(pattern, n - at);
            if (one.form == WeightForm::plain) {
              check(cudaMemcpy(to + at * row_bytes(type, n_in), raw.as(),
                               static_cast<size_t>(count * row_bytes(type, n_in)), cudaMemcpyDeviceToDevice),
                    "copying");
            } else {
              pack_strips(type, raw.as(), count, n_in, to + form_bytes(one.form, at, n_in), nullptr);
            }
          }
        }
        set.push_back(make_weight(type, n_expert, n, n_in, memory.back().as()));
      }
      sets.push_back(std::move(set));
    }
    check(cudaDeviceSynchronize(), "packing");
  }
};

struct Shape {
  const char* name;
  BlockType type;
  std::vector<int64_t> n_out;
  int64_t n_in;
};

void time_shape(const Shape& shape, std::span<const int64_t> rows) {
  const TimedWeights weights(shape.type, shape.n_out, shape.n_in, 1, 0);
  const Buffer parts(kParts);
  for (const int64_t n_row : rows) {
    TestActs acts(n_row, shape.n_in, true, ActsMix::int8, false);
    std::vector<Buffer> y;
    for (const int64_t n : shape.n_out) y.emplace_back(static_cast<size_t>(n_row * n * 4));
    const auto multiply = [&](bool mma) {
      return time_us(n_row > 64 ? 4 : 24, [&](int call, gpuStream_t stream) {
        const auto& set = weights.sets[static_cast<size_t>(call) % weights.sets.size()];
        std::vector<Product> products;
        for (size_t i = 0; i < set.size(); ++i) products.push_back({&set[i], y[i].as<float>(), nullptr});
        if (n_row <= cuda::kIntegerMatmulRows) {
          cuda::matmul_integer(products, acts.device, stream);
        } else {
          cuda::matmul_half(products, acts.device, {parts.as(), kParts}, stream, mma);
        }
      });
    };
    const double flops = 2 * weights.multiplies * static_cast<double>(n_row);
    print_time(shape.name, n_row, multiply(false), weights.bytes, flops);
    if (n_row == 512 || n_row == 128)
      print_time(std::string(shape.name) + " (mma)", n_row, multiply(true), weights.bytes, flops);
    if (n_row == 33 || n_row == 64) {
      const double us = time_us(24, [&](int call, gpuStream_t stream) {
        const auto& set = weights.sets[static_cast<size_t>(call) % weights.sets.size()];
        std::vector<Product> products;
        for (size_t i = 0; i < set.size(); ++i) products.push_back({&set[i], y[i].as<float>(), nullptr});
        cuda::matmul_half(products, acts.device, {parts.as(), kParts}, stream);
      });
      print_time(std::string(shape.name) + " (half)", n_row, us, weights.bytes, flops);
    }
  }
}

/// Everything that the matmuls and quantisations of a dense 27B layer take, 16 distinct layers in a row.
void time_layers(std::span<const int64_t> rows) {
  const Buffer parts(kParts);
  constexpr int kLayers = 16;
  const int64_t qkvz[] = {10240, 6144}, out[] = {5120}, gate_up[] = {17408, 17408}, ab[] = {48, 48};
  const TimedWeights in(BlockType::q4_0, qkvz, 5120, 1, kLayers), small(BlockType::f32, ab, 5120, 1, kLayers),
      o(BlockType::q4_0, out, 6144, 1, kLayers), ffn(BlockType::q4_0, gate_up, 5120, 1, kLayers),
      down(BlockType::q4_0, out, 17408, 1, kLayers);
  const double bytes = in.bytes + o.bytes + ffn.bytes + down.bytes + small.bytes;
  const double flops = 2 * (in.multiplies + o.multiplies + ffn.multiplies + down.multiplies + small.multiplies);
  for (const int64_t n_row : rows) {
    const auto f32 = [&](int64_t n) { return Buffer(static_cast<size_t>(n_row * n * 4)); };
    Buffer x = f32(5120), h = f32(5120), qkv = f32(10240), z = f32(6144), a = f32(48), b = f32(48), g = f32(17408),
           u = f32(17408), norm(5120 * 4);
    std::vector<float> values(static_cast<size_t>(n_row * 17408));
    for (size_t i = 0; i < values.size(); ++i) values[i] = i < 100003 ? normal() : values[i - 100003];
    x.put(values.data(), static_cast<size_t>(n_row * 5120 * 4));
    qkv.put(values.data(), static_cast<size_t>(n_row * 10240 * 4));
    norm.put(values.data(), 5120 * 4);
    Buffer m0(static_cast<size_t>(tiled_acts_bytes(n_row, 17408)));
    const auto acts = [&](int64_t k) { return tiled_acts_at(m0.as(), n_row, n_row, k, ActsMix::int8); };
    const auto multiply = [&](std::span<const Product> products, const DeviceActs& input, gpuStream_t stream) {
      if (n_row <= cuda::kIntegerMatmulRows) return cuda::matmul_integer(products, input, stream);
      cuda::matmul_half(products, input, {parts.as(), kParts}, stream);
    };
    const double us = time_us(kLayers, [&](int call, gpuStream_t stream) {
      const auto layer = static_cast<size_t>(call);
      const ActsInput normed{
          .x = x.as<float>(), .norm = norm.as<float>(), .group = 5120, .eps = 1e-6f, .keep = h.as<float>()};
      quantize_tiled(normed, true, nullptr, 1, acts(5120), stream);
      const Product p1[] = {{&in.sets[layer][0], qkv.as<float>(), nullptr},
                            {&in.sets[layer][1], z.as<float>(), nullptr}};
      multiply(p1, acts(5120), stream);
      const Product p2[] = {{&small.sets[layer][0], a.as<float>(), nullptr},
                            {&small.sets[layer][1], b.as<float>(), nullptr}};
      cuda::matmul_split(p2, h.as<float>(), n_row, stream);
      quantize_tiled({.x = z.as<float>()}, true, nullptr, 1, acts(6144), stream);
      const Product p3[] = {{&o.sets[layer][0], h.as<float>(), x.as<float>()}};
      multiply(p3, acts(6144), stream);
      quantize_tiled({.x = h.as<float>(), .norm = norm.as<float>(), .group = 5120, .eps = 1e-6f}, true, nullptr, 1,
                     acts(5120), stream);
      const Product p4[] = {{&ffn.sets[layer][0], g.as<float>(), nullptr},
                            {&ffn.sets[layer][1], u.as<float>(), nullptr}};
      multiply(p4, acts(5120), stream);
      quantize_tiled({.x = g.as<float>(), .up = u.as<float>()}, true, nullptr, 1, acts(17408), stream);
      const Product p5[] = {{&down.sets[layer][0], h.as<float>(), h.as<float>()}};
      multiply(p5, acts(17408), stream);
    });
    print_time("27b layer: products and codes", n_row, us, bytes, flops * static_cast<double>(n_row));
    std::printf("    x 64 layers: %.2f ms\n", us * 64 / 1000);
  }
}

void time_quantize() {
  for (const int64_t n_row : {int64_t{1}, int64_t{8}, int64_t{512}, int64_t{2048}}) {
    for (const int64_t n_in : {int64_t{5120}, int64_t{17408}}) {
      TestActs acts(n_row, n_in, true, ActsMix::int8, false);
      Buffer norm(static_cast<size_t>(n_in * 4));
      norm.put(acts.x.data(), static_cast<size_t>(n_in * 4));
      const ActsInput normed{.x = acts.input.as<float>(), .norm = norm.as<float>(), .group = n_in, .eps = 1e-6f};
      const double bytes = static_cast<double>(n_row * n_in) * 6;
      const auto run = [&](const char* what, const ActsInput& input, ActsMix mix) {
        DeviceActs to = acts.device;
        to.mix = mix;
        print_time(what + std::to_string(n_in), n_row,
                   time_us(16, [&](int, gpuStream_t stream) { quantize_tiled(input, true, nullptr, 1, to, stream); }),
                   bytes, 0);
      };
      run("norm, rotate, int8 codes ", normed, ActsMix::int8);
      run("silu*up, rotate, int8 codes ", {.x = acts.input.as<float>(), .up = acts.input.as<float>()}, ActsMix::int8);
      run("silu*up, rotate, int4 codes ", {.x = acts.input.as<float>(), .up = acts.input.as<float>()}, ActsMix::int4);
    }
  }
}

void time_experts(std::span<const int64_t> tokens) {
  const int64_t n_expert = 128, n_used = 8, gate_out[] = {768}, down_out[] = {2048};
  const TimedWeights gate(BlockType::q4_0, gate_out, 2048, n_expert, 4),
      down(BlockType::q4_0, down_out, 768, n_expert, 4);
  for (const int64_t n_tok : tokens) {
    const int64_t n_pair = n_tok * n_used;
    std::vector<int32_t> ids, all(static_cast<size_t>(n_expert));
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    for (int64_t t = 0; t < n_tok; ++t) {
      std::shuffle(all.begin(), all.end(), random_bits);
      ids.insert(ids.end(), all.begin(), all.begin() + n_used);
    }
    int64_t in_use = 0;
    for (int32_t e = 0; e < n_expert; ++e) in_use += std::find(ids.begin(), ids.end(), e) != ids.end();
    Buffer device_ids(ids.size() * 4), offsets(static_cast<size_t>(n_expert + 1) * 4), order(ids.size() * 4);
    device_ids.put(ids.data(), ids.size() * 4);
    const ExpertGroups groups{
        n_pair, n_used, n_expert, device_ids.as<int32_t>(), offsets.as<int32_t>(), order.as<int32_t>()};
    cuda::group_rows(groups, nullptr);
    print_time("group rows", n_tok, time_us(8, [&](int, gpuStream_t stream) { cuda::group_rows(groups, stream); }), 0,
               0);
    const auto run = [&](const char* name, const TimedWeights& weights, bool shared, int64_t n_in, int64_t n_out) {
      TestActs acts(shared ? n_tok : n_pair, n_in, true, ActsMix::int8, false);
      Buffer y(static_cast<size_t>(n_pair * n_out * 4));
      Buffer workspace(static_cast<size_t>(cuda::experts_half_workspace(weights.sets[0][0], n_pair)));
      const bool integer = n_pair <= kCodeRows || acts.device.n_row <= kIntegerRows;
      const double us = time_us(8, [&](int call, gpuStream_t stream) {
        const DeviceWeight& w = weights.sets[static_cast<size_t>(call) % 4][0];
        const cuda::ExpertProduct products[] = {{&w, y.as<float>()}};
        if (integer) return cuda::matmul_experts_integer(products, acts.device, shared, groups, stream);
        cuda::matmul_experts_half(products, acts.device, shared, groups, {workspace.as(), 0}, stream);
      });
      print_time(name, n_tok, us, weights.bytes * static_cast<double>(in_use) / static_cast<double>(n_expert),
                 2 * weights.multiplies * static_cast<double>(n_pair));
    };
    run("experts gate 768x2048", gate, true, 2048, 768);
    run("experts down 2048x768", down, false, 768, 2048);
  }
}

void time_float(const char* name, BlockType type, std::vector<int64_t> n_out, int64_t n_in) {
  const TimedWeights weights(type, n_out, n_in, 1, 0);
  for (const int64_t n_row : {1, 8, 512, 2048}) {
    TestActs acts(n_row, n_in, false, ActsMix::int8, false);
    std::vector<Buffer> y;
    for (const int64_t n : n_out) y.emplace_back(static_cast<size_t>(n_row * n * 4));
    const double us = time_us(16, [&](int call, gpuStream_t stream) {
      const auto& set = weights.sets[static_cast<size_t>(call) % weights.sets.size()];
      std::vector<Product> products;
      for (size_t i = 0; i < set.size(); ++i) products.push_back({&set[i], y[i].as<float>(), nullptr});
      cuda::matmul_split(products, acts.input.as<float>(), n_row, stream);
    });
    print_time(name, n_row, us, weights.bytes, 2 * weights.multiplies * static_cast<double>(n_row));
  }
}

/// Decoding and verifying alone.
void time_few() {
  using enum BlockType;
  const int64_t rows[] = {1, 8, 16, 32}, one[] = {1, 8};
  time_layers(std::vector<int64_t>{1, 8, 16});
  time_shape({"q4_0 16384x5120 (qkv, z)", q4_0, {10240, 6144}, 5120}, rows);
  time_shape({"q4_0 5120x6144 (out)", q4_0, {5120}, 6144}, rows);
  time_shape({"q4_0 34816x5120 (gate, up)", q4_0, {17408, 17408}, 5120}, rows);
  time_shape({"q4_0 5120x17408 (down)", q4_0, {5120}, 17408}, rows);
  for (const BlockType type : {q4_k, q5_k, q6_k, q8_0, iq4_xs}) {
    const std::string name = std::string(type_name(type)) + " 34816x5120";
    time_shape({name.c_str(), type, {17408, 17408}, 5120}, one);
  }
  time_float("f32 96x5120 (alpha, beta)", f32, {48, 48}, 5120);
  time_float("f32 128x2048 (router)", f32, {128}, 2048);
  time_experts(std::vector<int64_t>{1, 8, 16});
  time_quantize();
}

void time_all() {
  using enum BlockType;
  const int64_t decode[] = {1, 4, 8, 16, 32, 64, 128, 512, 2048}, few[] = {1, 8, 16, 512};
  time_layers(std::vector<int64_t>{1, 8, 16, 512, 2048});
  time_shape({"q4_0 16384x5120 (qkv, z)", q4_0, {10240, 6144}, 5120}, decode);
  time_shape({"q4_0 5120x6144 (out)", q4_0, {5120}, 6144}, decode);
  time_shape({"q4_0 34816x5120 (gate, up)", q4_0, {17408, 17408}, 5120}, decode);
  time_shape({"q4_0 5120x17408 (down)", q4_0, {5120}, 17408}, decode);
  time_shape({"q4_0 151936x5120 (head)", q4_0, {151936}, 5120}, few);
  time_shape({"q6_k 151936x5120 (head)", q6_k, {151936}, 5120}, few);
  time_shape({"q8_0 34816x5120", q8_0, {17408, 17408}, 5120}, few);
  time_shape({"q4_k 34816x5120", q4_k, {17408, 17408}, 5120}, few);
  time_float("f32 96x5120 (alpha, beta)", f32, {48, 48}, 5120);
  time_float("f32 128x2048 (router)", f32, {128}, 2048);
  time_float("bf16 34816x5120", bf16, {17408, 17408}, 5120);
  time_experts(std::vector<int64_t>{1, 8, 16, 512, 2048});
  time_quantize();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  if (argc > 2) {
    csv = std::fopen(argv[2], "w");
    if (!csv) return 1;
    std::fprintf(csv, "kernel,rows,us,gb_per_s,tflop_per_s\n");
  }
  try {
    if (what == "check" || what == "all") check_all();
    if (what == "few") time_few();
    if (what == "time" || what == "all") time_all();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  if (csv) std::fclose(csv);
  return failures ? 1 : 0;
}
