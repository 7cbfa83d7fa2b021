// The 4-bit kernel for AMD's gfx11, run by an emulated block: 256 threads, barriers, shared memory, and the matrix
// instruction with the register layout that iu4_tile.h documents.
#include "backend/hip/iu4_tile.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#include "backend/ref/act.h"
#include "base/half.h"
#include "support/test_weights.h"

namespace onebit::test {
namespace {

using hip::Iu4Job;
using hip::Iu4Shared;

int nibble(const int (&words)[2], int k) {
  const uint32_t bits = static_cast<uint32_t>(words[k / 8]) >> 4 * (k % 8) & 15u;
  return static_cast<int>(bits ^ 8u) - 8;
}

/// What the threads of a block share.
struct Block {
  struct Wave {
    std::barrier<> together{32};
    int a[32][2], b[32][2];
  };
  std::barrier<> all{hip::kIu4Threads};
  Wave waves[hip::kIu4Waves];
  Iu4Shared shared;
};

class EmulatedThread {
 public:
  EmulatedThread(Block& block, int thread) : block_(block), thread_(thread) {}
  int thread() const { return thread_; }
  Iu4Shared& shared() const { return block_.shared; }
  void barrier() const { block_.all.arrive_and_wait(); }
  float half(uint16_t bits) const { return f16_to_f32(bits); }
  float fma(float a, float b, float c) const { return std::fma(a, b, c); }

  void wmma(const int (&a)[2], const int (&b)[2], int (&d)[8]) const {
    Block::Wave& wave = block_.waves[thread_ / 32];
    const int lane = thread_ % 32;
    for (int i = 0; i < 2; ++i) wave.a[lane][i] = a[i], wave.b[lane][i] = b[i];
    wave.together.arrive_and_wait();
    for (int i = 0; i < 2; ++i) {  // the upper lanes must repeat the lower ones
      EXPECT_EQ(wave.a[lane][i], wave.a[lane % 16][i]);
      EXPECT_EQ(wave.b[lane][i], wave.b[lane % 16][i]);
    }
    for (int r = 0; r < 8; ++r) {
      const int row = 2 * r + lane / 16, column = lane % 16;
      for (int k = 0; k < 16; ++k) d[r] += nibble(wave.a[row], k) * nibble(wave.b[column], k);
    }
    wave.together.arrive_and_wait();
  }

 private:
  Block& block_;
  int thread_;
};

void run(const Iu4Job& job) {
  for (int64_t row = 0; row < job.n_row; row += hip::kIu4Rows) {
    for (int64_t column = 0; column < job.n_out; column += hip::kIu4Columns) {
      Block block;
      std::vector<std::thread> threads;
      for (int t = 0; t < hip::kIu4Threads; ++t) {
        threads.emplace_back([&, t] {
          EmulatedThread machine(block, t);
          hip::multiply_iu4(machine, job, row, column);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

struct Shape {
  int64_t n_out, n_block, n_row;
  bool add;
};

class Iu4 : public testing::TestWithParam<Shape> {};

TEST_P(Iu4, MultipliesAsTheDefinition) {
  const auto [n_out, n_block, n_row, with_add] = GetParam();
  const int64_t n_in = 32 * n_block;
  Rng rng(static_cast<uint64_t>(n_out));
  TestWeight weight;
  set_random(weight, rng, "weight", BlockType::q4_0, {n_out, n_in}, Codes::any);
  const std::vector<float> x = random_values(rng, n_row * n_in, 3), add = random_values(rng, n_row * n_out, 1);

  std::vector<uint8_t> nibbles;
  std::vector<float> scales, expected(static_cast<size_t>(n_row * n_out)), y(expected.size());
  std::vector<ref::ActBlock> acts;
  for (int64_t b = 0; b < n_row * n_block; ++b) {
    acts.push_back(ref::quantize_block(&x[static_cast<size_t>(32 * b)], ref::ActGrid::int4_search));
    const ref::ActBlock& act = acts.back();
    scales.push_back(act.scale);
    for (int j = 0; j < 16; ++j) nibbles.push_back(static_cast<uint8_t>((act.codes[j] & 15) | act.codes[j + 16] << 4));
  }
  for (int64_t row = 0; row < n_row; ++row) {
    for (int64_t n = 0; n < n_out; ++n) {
      float sum = 0;
      for (int64_t b = 0; b < n_block; ++b) {
        const uint8_t* block = weight.weight.data.data() + (n * n_block + b) * hip::kQ4Bytes;
        const ref::ActBlock& act = acts[static_cast<size_t>(row * n_block + b)];
        int product = 0;
        for (int j = 0; j < 16; ++j) {
          product += act.codes[j] * ((block[2 + j] & 15) - 8) + act.codes[j + 16] * ((block[2 + j] >> 4) - 8);
        }
        const float scale = f16_to_f32(static_cast<uint16_t>(block[0] | block[1] << 8));
        sum = std::fma(static_cast<float>(product) * scale, act.scale, sum);
      }
      const auto at = static_cast<size_t>(row * n_out + n);
      expected[at] = with_add ? sum + add[at] : sum;
    }
  }
  run({weight.weight.data.data(), nibbles.data(), scales.data(), with_add ? add.data() : nullptr, y.data(), n_out,
       n_block, n_row});
  EXPECT_EQ(y, expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Iu4,
                         testing::Values(Shape{16, 1, 16, false}, Shape{40, 5, 21, true}, Shape{128, 4, 64, false},
                                         Shape{130, 9, 66, true}));

}  // namespace
}  // namespace onebit::test
