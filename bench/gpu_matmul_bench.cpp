// Checks the matmul kernels of the cuda device against sums made on the CPU, then times them at the shapes of a 27B
// model. In: nothing but a GPU; the data are random. Out: a line per check, a table of times, and CSV when a file is
// named. Usage: gpu_matmul_bench [check|time|few|all] [CSV]
//
// Timed calls are captured in a graph and rotate over copies of the weights that together are several times the L2.
#include <algorithm>
#include <functional>

#include "gpu_matmul_data.h"

namespace {

using namespace onebit;
using namespace onebit::gpu;

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
  int failures = 0;
  try {
    if (what == "check" || what == "all") failures = check_products();
    if (what == "few") time_few();
    if (what == "time" || what == "all") time_all();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  if (csv) std::fclose(csv);
  return failures ? 1 : 0;
}
