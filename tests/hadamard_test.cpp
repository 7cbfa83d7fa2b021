// The 32-element rotation, and which tensors of a stamped file carry it.
#include "gguf/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "gguf/keys.h"
#include "support/expect_error.h"
#include "support/gguf_bytes.h"

namespace onebit {
namespace {

/// Entry (r, c) of the matrix, from its definition: the sign is the parity of the common bits.
double entry(unsigned r, unsigned c) { return (std::popcount(r & c) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(32.0); }

std::vector<float> random_row(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(rng.uniform() * 2 - 1);
  return x;
}

TEST(Hadamard, ImpulsesGiveTheColumns) {
  for (unsigned c = 0; c < 32; ++c) {
    std::vector<float> x(32, 0.0f);
    x[c] = 1;
    hadamard32(x.data(), 32);
    for (unsigned r = 0; r < 32; ++r) EXPECT_EQ(x[r], static_cast<float>(entry(r, c)));
  }
}

TEST(Hadamard, IsTheMatrixProduct) {
  const std::vector<float> x = random_row(32, 1);
  std::vector<float> y = x;
  hadamard32(y.data(), 32);
  for (unsigned r = 0; r < 32; ++r) {
    double sum = 0;
    for (unsigned c = 0; c < 32; ++c) sum += entry(r, c) * x[c];
    EXPECT_NEAR(y[r], sum, 1e-6);
  }
}

TEST(Hadamard, IsItsOwnInverseAndKeepsLength) {
  const std::vector<float> x = random_row(320, 2);
  std::vector<float> y = x;
  hadamard32(y.data(), 320);
  double before = 0, after = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    before += static_cast<double>(x[i]) * x[i];
    after += static_cast<double>(y[i]) * y[i];
  }
  EXPECT_NEAR(before, after, 1e-5 * before);
  hadamard32(y.data(), 320);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
}

TEST(Hadamard, BlocksAreIndependent) {
  std::vector<float> x = random_row(96, 3);
  std::vector<float> middle(x.begin() + 32, x.begin() + 64);
  hadamard32(x.data(), 96);
  hadamard32(middle.data(), 32);
  EXPECT_TRUE(std::equal(middle.begin(), middle.end(), x.begin() + 32));
}

TEST(Hadamard, StageOrderIsFixed) {
  // Rounding depends on the order of the additions: output 0 is the sum by pairs of neighbours first, and often differs
  // from the sum by pairs at distance 16 first.
  int differs = 0;
  for (uint64_t seed = 10; seed < 30; ++seed) {
    std::vector<float> x = random_row(32, seed), near = x, far = x;
    hadamard32(x.data(), 32);
    for (size_t width = 32; width > 1; width /= 2) {
      for (size_t i = 0; i < width / 2; ++i) {
        near[i] = near[2 * i] + near[2 * i + 1];
        far[i] = far[i] + far[i + width / 2];
      }
    }
    EXPECT_EQ(x[0], near[0] * 0.17677669529663687f);
    differs += near[0] != far[0];
  }
  EXPECT_GT(differs, 5);
}

TEST(Rotates, Roles) {
  for (const char* name : {"blk.0.attn_qkv.weight",
                           "blk.1.attn_gate.weight",
                           "blk.22.attn_q.weight",
                           "blk.3.attn_k.weight",
                           "blk.3.attn_v.weight",
                           "blk.3.attn_output.weight",
                           "blk.3.ffn_gate.weight",
                           "blk.3.ffn_up.weight",
                           "blk.3.ffn_down.weight",
                           "blk.3.ssm_alpha.weight",
                           "blk.3.ssm_beta.weight",
                           "blk.3.ffn_gate_exps.weight",
                           "blk.3.ffn_up_exps.weight",
                           "blk.3.ffn_down_exps.weight",
                           "blk.3.ffn_gate_up_exps.weight",
                           "blk.3.ffn_gate_shexp.weight",
                           "blk.3.ffn_up_shexp.weight",
                           "blk.3.ffn_down_shexp.weight",
                           "blk.3.attn_q_a.weight",
                           "blk.3.attn_q_b.weight",
                           "blk.3.attn_kv_a_mqa.weight",
                           "blk.3.attn_kv_b.weight",
                           "blk.3.attn_k_b.weight",
                           "blk.3.attn_v_b.weight",
                           "fc.weight"}) {
    EXPECT_TRUE(rotates(name)) << name;
  }
  for (const char* name : {"token_embd.weight",
                           "output.weight",
                           "blk.0.ssm_out.weight",
                           "blk.0.ssm_ba.weight",
                           "blk.0.ssm_conv1d.weight",
                           "blk.0.nextn.eh_proj.weight",
                           "blk.0.ffn_gate_inp.weight",
                           "blk.0.ffn_gate_inp_shexp.weight",
                           "blk.0.attn_norm.weight",
                           "blk.0.attn_q_norm.weight",
                           "blk.0.attn_q.bias",
                           "blk.0.attn_q",
                           "attn_q.weight",
                           "blk.attn_q.weight",
                           "blk..attn_q.weight",
                           "blk.x.attn_q.weight",
                           "xblk.0.attn_q.weight",
                           "blk.0.attn_conv_proj.weight",
                           "selector_hidden.weight",
                           "enc.fc.weight",
                           "blk.0.weight",
                           "blk.0.",
                           ""}) {
    EXPECT_FALSE(rotates(name)) << name;
  }
}

test::GgufBytes stamped(uint32_t value_type, uint32_t value) {
  test::GgufBytes file;
  file.header(3, 1).entry(keys::kHadamard, value_type, value);
  file.tensor("token_embd.weight", {32, 1}, 2, 0).tensor("blk.0.attn_q.weight", {32, 1}, 2, 32);
  file.tensor("blk.0.ffn_up.weight", {32, 1}, 8, 64).data(128);
  return file;
}

TEST(Stamp, IsAcceptedSignedAndUnsigned) {
  for (const uint32_t type : {4u, 5u}) {
    const auto bytes = stamped(type, 32);
    const GgufFile file = GgufFile::from_memory(bytes.bytes);
    const int64_t stamp = hadamard_stamp(file);
    EXPECT_EQ(stamp, 32);
    check_hadamard_tensors(file);
    EXPECT_TRUE(is_rotated(file.tensor("blk.0.attn_q.weight"), stamp));
    EXPECT_FALSE(is_rotated(file.tensor("token_embd.weight"), stamp));    // a row lookup
    EXPECT_FALSE(is_rotated(file.tensor("blk.0.ffn_up.weight"), stamp));  // not q4_0
    EXPECT_FALSE(is_rotated(file.tensor("blk.0.attn_q.weight"), 0));
  }
}

TEST(Stamp, OtherValuesAreRefused) {
  for (const uint32_t value : {0u, 16u, 64u, 0xffffffffu}) {
    const auto bytes = stamped(5, value);
    test::expect_refused({"Hadamard-rotated", "onebit.hadamard_q4_0"},
                         [&] { hadamard_stamp(GgufFile::from_memory(bytes.bytes)); });
  }
}

TEST(Stamp, AForeignQ40TensorIsRefusedByName) {
  for (const char* name : {"output.weight", "blk.0.ssm_out.weight", "blk.0.nextn.eh_proj.weight"}) {
    test::GgufBytes bytes;
    bytes.header(1, 1).entry<int32_t>(keys::kHadamard, 5, 32).tensor(name, {32, 1}, 2, 0).data(32);
    test::expect_refused({"Hadamard-rotated", name},
                         [&] { check_hadamard_tensors(GgufFile::from_memory(bytes.bytes)); });
  }
  test::GgufBytes plain;
  plain.header(1, 0).tensor("output.weight", {32, 1}, 2, 0).data(32);
  EXPECT_EQ(hadamard_stamp(GgufFile::from_memory(plain.bytes)), 0);
  check_hadamard_tensors(GgufFile::from_memory(plain.bytes));
}

}  // namespace
}  // namespace onebit
