// Measures the matrix product of the CPU backend, on the shapes of a 27B model unless another is named: multiply-adds
// per second and per cycle, and bytes of weights per second, by block type, number of rows and threads.
//
//   matmul_bench [--isa amx|avx512|avxvnni|avx2|portable] [--type q4_0] [--threads 1,2] [--rows 1,2,4,8,16,512]
//   [--shape N_OUTxN_IN] [--seconds 1]
//
// Each figure is the best of repeated runs over `--seconds`: on a shared machine the best is what the kernel can do.
// Weights are random bytes; for few rows there are enough matrices in turn that they come from memory, not from a
// cache.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/dispatch.h"
#include "backend/cpu/tiles.h"
#include "base/rng.h"

namespace onebit::cpu {
namespace {

/// Seconds on the wall clock, or for one thread on its CPU clock, which other processes don't disturb as much.
double now(int n_thread) {
  timespec time{};
  clock_gettime(n_thread == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr double kColdBytes = 256e6;         // weights in turn, several times the last-level cache
constexpr double kCyclesPerSecond = 4.22e9;  // of the machine that bench/README.md names

struct Shape {
  const char* name;
  int64_t n_out, n_in;
};
constexpr Shape kShapes[] = {
    {"ffn_gate", 17408, 5120}, {"ffn_down", 5120, 17408}, {"attn_qkv", 10240, 5120}, {"attn_k", 1024, 5120}};

struct Options {
  std::string isa, type = "q4_0";
  std::vector<Shape> shapes{std::begin(kShapes), std::end(kShapes)};
  std::vector<int64_t> threads{1, 2}, rows{1, 2, 4, 8, 16, 512};
  double seconds = 1;
};

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> all;
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    all.push_back(std::strtoll(at, &end, 10));
    if (end == at) break;
    at = *end == ',' ? end + 1 : end;
  }
  return all;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--isa") options.isa = value;
    if (flag == "--type") options.type = value;
    if (flag == "--threads") options.threads = numbers(value);
    if (flag == "--rows") options.rows = numbers(value);
    if (flag == "--shape") {
      const size_t by = value.find('x');
      options.shapes = {{"", std::atoll(value.c_str()), std::atoll(value.c_str() + by + 1)}};
    }
    if (flag == "--seconds") options.seconds = std::strtod(value.c_str(), nullptr);
  }
  return options;
}

/// A weight of random but finite blocks: every f16 in them is a small number.
std::vector<uint8_t> random_blocks(BlockType type, int64_t n_byte) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n_byte));
  Rng rng(1);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(&bytes[i], &word, 8);
  }
  const auto block = static_cast<size_t>(type_info(type).block_bytes);
  const uint16_t scale = 0x2000;  // 2^-7
  for (size_t i = 0; i + block <= bytes.size(); i += block) std::memcpy(&bytes[i], &scale, 2);
  return bytes;
}

/// Seconds of one product of a weight with x, or with `floats` where the weight is not quantised, on all threads.
double time_once(const Kernels& kernels, ThreadPool& pool, const LoadedWeight& weight, const ActRows& x,
                 const float* floats, float* y, std::vector<std::vector<uint8_t>>& scratch) {
  const int64_t per_claim = strips_per_claim(weight, x.n_tok, pool.size());
  const double start = now(pool.size());
  pool.run([&](int thread) {
    const Range all = share(weight.n_strip(), 1, thread, pool.size());
    const Entered entered(kernels, weight, x.n_tok);
    for (int64_t s = all.begin; s < all.end; s += per_claim) {
      const Range strips{s, std::min(s + per_claim, all.end)};
      const Results to{y, weight.n_out, nullptr};
      if (weight.form == LoadedWeight::Form::strips) {
        multiply_strips(kernels, weight, weight.data, strips, x, to, scratch[static_cast<size_t>(thread)].data());
      } else {
        multiply_floats(kernels, weight, weight.data, strips, floats, x.n_tok, to, nullptr);
      }
    }
  });
  return now(pool.size()) - start;
}

void measure(const Options& options, const Kernels& kernels, int n_thread, const Shape& shape) {
  ThreadPool pool(n_thread);
  WeightStore store(kernels, pool);
  Weight weight;
  weight.type = *parse_type(options.type);
  weight.shape = {shape.n_out, shape.n_in};
  const int64_t bytes = shape.n_out * row_bytes(weight.type, shape.n_in);
  const std::vector<uint8_t> file = random_blocks(weight.type, bytes);
  weight.data = file;
  std::vector<Weight> copies(static_cast<size_t>(std::max(1.0, kColdBytes / static_cast<double>(bytes))), weight);
  for (const Weight& copy : copies) store.load(copy);

  std::vector<std::vector<uint8_t>> scratch(static_cast<size_t>(n_thread));
  for (auto& one : scratch) one.resize(static_cast<size_t>(strip_scratch_bytes()));
  const int64_t n_block = shape.n_in / kBlock;
  for (const int64_t n_row : options.rows) {
    Pages act(n_row * n_block * kActBlockBytes), y(n_row * shape.n_out * 4);
    std::vector<float> x(static_cast<size_t>(n_row * shape.n_in), 0.5f);
    const ActRows rows{act.data(), n_row, n_block};
    for (int64_t r = 0; r < n_row; ++r) {
      const int64_t tile = r / kTileTokens;
      kernels.quantize(x.data(), n_block, true, ActGrid::int8, rows.tile(tile), rows.tile_tokens(tile),
                       static_cast<int>(r % kTileTokens));
    }
    double best = 1e9, total = 0;
    for (size_t i = 0; total < options.seconds || i < 3; ++i) {
      const double seconds =
          time_once(kernels, pool, store.get(copies[i % copies.size()]), rows, x.data(), y.as<float>(), scratch);
      best = std::min(best, seconds);
      total += seconds;
    }
    const double macs = static_cast<double>(n_row * shape.n_out * shape.n_in);
    fmt::print(
        "{:8} {:6} {:9} {:>5}x{:<5} M={:<4} threads={} {:9.3f} ms {:7.1f} GMAC/s {:6.1f} MAC/cycle/core {:6.1f} GB/s\n",
        kernels.isa, options.type, shape.name, shape.n_out, shape.n_in, n_row, n_thread, best * 1e3, macs / best / 1e9,
        macs / best / kCyclesPerSecond / n_thread, static_cast<double>(bytes) / best / 1e9);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace onebit::cpu

int main(int argc, char** argv) {
  using namespace onebit::cpu;
  const Options options = parse(argc, argv);
  const Kernels& kernels = choose_kernels(options.isa);
  for (const int64_t n_thread : options.threads) {
    for (const Shape& shape : options.shapes) measure(options, kernels, static_cast<int>(n_thread), shape);
  }
}
