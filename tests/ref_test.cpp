// Pins the reference backend by values worked out by hand or by an independent formula: everything without state.
#include "backend/ref/ref.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "backend/ref/act.h"
#include "backend/ref/codes.h"
#include "base/error.h"
#include "base/rng.h"
#include "gguf/hadamard.h"
#include "op_cases.h"

namespace onebit::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Runs a finished rig on ref and gives the output `name` of batch `index`.
Result run_one(OpRig& rig, const std::string& name, size_t index = 0) {
  for (Result& result : run_rig(rig, *make_ref_backend())) {
    if (result.where == fmt::format("batch {}, {}", index, name)) return std::move(result);
  }
  ADD_FAILURE() << "no output " << name;
  return {};
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, double error = 1e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], error) << "element " << i;
}

/// One prompt of n rows through `build(rig)`, which returns the value to look at.
std::vector<float> values_of(int32_t n_tok, const std::function<Value(OpRig&)>& build) {
  OpRig rig("test", n_tok);
  rig.check("y", build(rig));
  rig.batches = {prompt_batch(n_tok)};
  return run_one(rig, "y").values;
}

// --- integer codes of weights ----------------------------------------------------------------------------------------

TEST(Codes, ReproduceDecodedValuesOfEveryType) {
  Rng rng(7);
  for (const BlockType type : decodable_types()) {
    if (!type_info(type).quantised) {
      EXPECT_FALSE(ref::has_codes(type));
      continue;
    }
    ASSERT_TRUE(ref::has_codes(type)) << type_name(type);
    for (const Codes codes : {Codes::any, Codes::extreme}) {
      TestWeight made;
      set_random(made, rng, "w", type, {1, 64 * 256}, codes);
      const std::vector<float> expected = decoded(made.weight);
      ref::CodedRow row;
      ref::read_codes(type, made.bytes.data(), 64 * 256, row);
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t group = i / static_cast<size_t>(row.group);
        const float min = row.min.empty() ? 0 : row.min[group];
        ASSERT_EQ(row.scale[group] * row.codes[i] - min, expected[i]) << type_name(type) << " element " << i;
      }
    }
  }
}

TEST(Codes, ReadEveryExponentOfMxfp4) {
  for (const int exponent : {0, 1, 2, 127, 254, 255}) {
    std::vector<uint8_t> bytes(17, 0x3f);
    bytes[0] = static_cast<uint8_t>(exponent);
    float expected[32];
    decode_row(BlockType::mxfp4, bytes.data(), expected, 32);
    ref::CodedRow row;
    ref::read_codes(BlockType::mxfp4, bytes.data(), 32, row);
    for (size_t i : {0, 31}) EXPECT_EQ(row.scale[0] * row.codes[i], expected[i]) << exponent;
  }
}

// --- activations -----------------------------------------------------------------------------------------------------

std::vector<float> block_of(std::initializer_list<float> values) {
  std::vector<float> block(32);
  std::copy(values.begin(), values.end(), block.begin());
  return block;
}

std::vector<int> codes_of(const ref::ActBlock& block, int n) { return {block.codes, block.codes + n}; }

TEST(Quantize, RoundsHalvesAwayFromZero) {
  const auto x = block_of({127, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 0.49f, -126.5f});
  const ref::ActBlock block = ref::quantize_block(x.data(), ref::ActGrid::int8);
  EXPECT_EQ(codes_of(block, 8), (std::vector<int>{127, 1, -1, 2, 3, -3, 0, -127}));
  EXPECT_EQ(block.scale, 1.0f);
  EXPECT_EQ(block.sum, 127 + 1 - 1 + 2 + 3 - 3 + 0 - 127);
  const auto y = block_of({-7, 0.5f, -0.5f, 1.5f, 6.5f, -6.5f, 0.4f});
  const ref::ActBlock small = ref::quantize_block(y.data(), ref::ActGrid::int4_amax);
  EXPECT_EQ(codes_of(small, 7), (std::vector<int>{-7, 1, -1, 2, 7, -7, 0}));
  EXPECT_EQ(small.scale, 1.0f);
}

TEST(Quantize, MapsTheLargestMagnitudeToTheEndOfTheGrid) {
  for (const float extreme : {-3.7f, 3.7f, 1e-20f, -1e30f}) {
    const auto x = block_of({extreme / 3, extreme, 0});
    const ref::ActBlock eight = ref::quantize_block(x.data(), ref::ActGrid::int8);
    EXPECT_EQ(codes_of(eight, 3), extreme > 0 ? (std::vector<int>{42, 127, 0}) : (std::vector<int>{-42, -127, 0}));
    EXPECT_EQ(eight.scale, std::fabs(extreme) / 127);
    const ref::ActBlock four = ref::quantize_block(x.data(), ref::ActGrid::int4_amax);
    EXPECT_EQ(codes_of(four, 3), extreme > 0 ? (std::vector<int>{2, 7, 0}) : (std::vector<int>{-2, -7, 0}));
    EXPECT_EQ(four.scale, std::fabs(extreme) / 7);
  }
}

// Vectors made with an independent program in numpy float32, from the formulas of plan/op.h.

std::vector<int> all_codes(const ref::ActBlock& block) { return {block.codes, block.codes + 32}; }

TEST(Quantize, Int4GoldenRamp) {  // every tie of the extreme's grid
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i - 16) / 4;
  const ref::ActBlock extreme = ref::quantize_block(x.data(), ref::ActGrid::int4_extreme);
  EXPECT_EQ(all_codes(extreme), (std::vector<int>{-8, -8, -7, -6, -6, -6, -5, -4, -4, -4, -3, -2, -2, -2, -1, 0,
                                                  0,  0,  1,  2,  2,  2,  3,  4,  4,  4,  5,  6,  6,  6,  7,  7}));
  EXPECT_EQ(extreme.scale, 0.5f);
  const ref::ActBlock search = ref::quantize_block(x.data(), ref::ActGrid::int4_search);
  EXPECT_EQ(all_codes(search), (std::vector<int>{-8, -7, -7, -6, -6, -5, -5, -4, -4, -3, -3, -2, -2, -1, -1, 0,
                                                 0,  0,  1,  1,  2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7}));
  EXPECT_EQ(search.scale, 0x1.0b7cb8p-1f);
  EXPECT_EQ(search.sum, std::accumulate(search.codes, search.codes + 32, 0));
}

TEST(Quantize, Int4GoldenOutlier) {  // a positive extreme takes the negative end, with a negative scale
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i % 7 - 3);
  x[5] = 100;
  std::vector<int> codes(32);
  codes[5] = -8;
  const ref::ActBlock extreme = ref::quantize_block(x.data(), ref::ActGrid::int4_extreme);
  EXPECT_EQ(all_codes(extreme), codes);
  EXPECT_EQ(extreme.scale, -12.5f);
  codes[5] = -7;
  const ref::ActBlock search = ref::quantize_block(x.data(), ref::ActGrid::int4_search);
  EXPECT_EQ(all_codes(search), codes);
  EXPECT_EQ(search.scale, -0x1.c92494p+3f);
  EXPECT_EQ(search.sum, -7);
}

TEST(Quantize, Int4GoldenTies) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i % 15 - 7) + 0.5f;
  x[0] = -8;
  const ref::ActBlock extreme = ref::quantize_block(x.data(), ref::ActGrid::int4_extreme);
  EXPECT_EQ(all_codes(extreme), (std::vector<int>{-8, -6, -4, -4, -2, -2, 0, 0, 2, 2, 4, 4, 6, 6, 7,  -6,
                                                  -6, -4, -4, -2, -2, 0,  0, 2, 2, 4, 4, 6, 6, 7, -6, -6}));
  EXPECT_EQ(extreme.scale, 1.0f);
  const ref::ActBlock search = ref::quantize_block(x.data(), ref::ActGrid::int4_search);
  EXPECT_EQ(all_codes(search), (std::vector<int>{-7, -5, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 5, 6, 7,  -6,
                                                 -5, -4, -3, -2, -1, 0,  0, 1, 2, 3, 4, 5, 6, 7, -6, -5}));
  EXPECT_EQ(search.scale, 0x1.1bf0b8p+0f);
}

TEST(Quantize, Int4BlocksThatAreZeroTinyOrNotFinite) {
  for (const ref::ActGrid grid : {ref::ActGrid::int4_extreme, ref::ActGrid::int4_search}) {
    for (const float value : {0.0f, -0.0f, 1e-40f, 0x1p-101f}) {
      const ref::ActBlock block = ref::quantize_block(block_of({value, -value}).data(), grid);
      EXPECT_EQ(block.scale, 0.0f);
      EXPECT_EQ(all_codes(block), std::vector<int>(32));
    }
    EXPECT_EQ(ref::quantize_block(block_of({-0x1p-100f}).data(), grid).codes[0],
              grid == ref::ActGrid::int4_extreme ? -8 : -7);
    const ref::ActBlock nan = ref::quantize_block(block_of({kNan, 2, -2}).data(), grid);
    EXPECT_EQ(nan.codes[0], 0);
    EXPECT_LT(nan.codes[1], 0);
    EXPECT_GT(nan.codes[2], 0);
    const ref::ActBlock infinite = ref::quantize_block(block_of({1, -kInfinity}).data(), grid);
    EXPECT_EQ(infinite.scale, kInfinity);
    EXPECT_EQ(all_codes(infinite), std::vector<int>(32));
    EXPECT_TRUE(std::isfinite(ref::quantize_block(block_of({3e38f, -3e38f, 1e38f}).data(), grid).scale));
  }
}

/// Squared error of a block.
double error_of(const std::vector<float>& x, ref::ActGrid grid) {
  const ref::ActBlock block = ref::quantize_block(x.data(), grid);
  double sum = 0;
  for (size_t i = 0; i < 32; ++i) sum += std::pow(static_cast<double>(x[i]) - block.scale * block.codes[i], 2);
  return sum;
}

TEST(Quantize, Int4RulesAreOrderedByTheirError) {
  Rng rng(17);
  double amax = 0, extreme = 0, search = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> x(32);
    for (float& v : x) {
      v = 0;
      for (int i = 0; i < 6; ++i) v += static_cast<float>(rng.uniform() - 0.5);
    }
    amax += error_of(x, ref::ActGrid::int4_amax);
    extreme += error_of(x, ref::ActGrid::int4_extreme);
    search += error_of(x, ref::ActGrid::int4_search);
  }
  EXPECT_LT(extreme, 0.85 * amax);
  EXPECT_LT(search, 0.95 * extreme);
}

TEST(Quantize, SingleOutlierSilencesTheRest) {
  const auto x = block_of({1000, 1, 2, 3, -3.9f, 4});
  const ref::ActBlock block = ref::quantize_block(x.data(), ref::ActGrid::int8);
  EXPECT_EQ(codes_of(block, 6), (std::vector<int>{127, 0, 0, 0, 0, 1}));
}

TEST(Quantize, ZeroAndTinyBlocksAreZero) {
  for (const float value : {0.0f, -0.0f, 1e-40f, 0x1p-101f}) {
    const ref::ActBlock block = ref::quantize_block(block_of({value, -value}).data(), ref::ActGrid::int8);
    EXPECT_EQ(block.scale, 0.0f);
    EXPECT_EQ(block.sum, 0);
    EXPECT_EQ(codes_of(block, 2), (std::vector<int>{0, 0}));
  }
  EXPECT_EQ(ref::quantize_block(block_of({0x1p-100f}).data(), ref::ActGrid::int8).codes[0], 127);
}

TEST(Quantize, ValuesThatAreNotFiniteStayInRange) {
  for (const ref::ActGrid grid : {ref::ActGrid::int8, ref::ActGrid::int4_amax}) {
    const ref::ActBlock nan = ref::quantize_block(block_of({kNan, 2, -2}).data(), grid);
    EXPECT_EQ(nan.codes[0], 0);
    EXPECT_EQ(nan.codes[1], -nan.codes[2]);
    EXPECT_EQ(ref::quantize_block(block_of({1, -kInfinity}).data(), grid).scale, kInfinity);
  }
}

// --- matmul ----------------------------------------------------------------------------------------------------------

/// A q8_0 weight [32 n, 32 n] that reads codes back: row i has code 1 with scale 1 at column i.
const Weight& unit_rows(OpRig& rig, int64_t n_in) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n_in * row_bytes(BlockType::q8_0, n_in)));
  const uint16_t one = f32_to_f16(1);
  for (int64_t r = 0; r < n_in; ++r) {
    uint8_t* row = bytes.data() + r * row_bytes(BlockType::q8_0, n_in);
    for (int64_t b = 0; b < n_in / 32; ++b) std::memcpy(row + b * 34, &one, 2);
    row[r / 32 * 34 + 2 + r % 32] = 1;
  }
  TestWeight& made = rig.new_weight();
  set_weight(made, "unit", BlockType::q8_0, {n_in, n_in}, std::move(bytes));
  return made.weight;
}

TEST(Matmul, ScalesTheIntegerDotOfEachBlock) {
  // Two blocks of q4_0: codes 7 (scale 0.5) and -8 (scale -2); inputs 3 and 5 everywhere quantise to 127.
  std::vector<uint8_t> bytes(36, 0xff);
  const uint16_t scales[] = {f32_to_f16(0.5f), f32_to_f16(-2)};
  std::memcpy(bytes.data(), &scales[0], 2);
  std::memset(bytes.data() + 18, 0, 18);
  std::memcpy(bytes.data() + 18, &scales[1], 2);
  std::vector<float> x(64, 3.0f);
  std::fill(x.begin() + 32, x.end(), 5.0f);
  const std::vector<float> y = values_of(1, [&](OpRig& rig) {
    TestWeight& w = rig.new_weight();
    set_weight(w, "w", BlockType::q4_0, {1, 64}, bytes);
    return rig.plan.matmul(rig.plan.quantize(rig.feed(64, x), {}), w.weight);
  });
  const float first = 28448.0f * 0.5f * (3.0f / 127), second = -32512.0f * -2.0f * (5.0f / 127);
  EXPECT_EQ(y[0], first + second);
  EXPECT_NEAR(y[0], 32 * 7 * 0.5 * 3 + 32 * 8 * 2 * 5, 1e-3);
}

TEST(Matmul, EveryQuantisedTypeIsCloseToItsDecodedWeights) {
  for (const BlockType type : decodable_types()) {
    OpRig rig("close", 2, 99);
    const Weight& w = rig.random_weight(type, {9, 512});
    const std::vector<float> rows = random_values(rig.random(), rig.n_token() * 512);
    Value x = rig.feed(512, rows);
    if (type_info(type).quantised) x = rig.plan.quantize(x, {});
    rig.check("y", rig.plan.matmul(x, w));
    rig.batches = {prompt_batch(2)};
    const std::vector<float> y = run_one(rig, "y").values, values = decoded(w);
    const double w_norm = row_norms(values, 512)[0];
    for (size_t i = 0; i < y.size(); ++i) {
      double sum = 0;
      for (size_t k = 0; k < 512; ++k) sum += static_cast<double>(rows[i / 9 * 512 + k]) * values[i % 9 * 512 + k];
      // A code is off by at most half a step of about 3/127; such errors add up like a random walk.
      EXPECT_NEAR(y[i], sum, type_info(type).quantised ? 4 * w_norm * 0.5 * 3.5 / 127 : 1e-4) << type_name(type);
    }
  }
}

TEST(Matmul, PromptRowsTakeTheInt4GridAndNoOthers) {
  OpRig rig("phases", 4);
  std::vector<float> rows;
  for (int64_t r = 0; r < rig.n_token(); ++r) {
    const auto block = block_of({1, 0.5f, 0.4f});
    rows.insert(rows.end(), block.begin(), block.end());
  }
  rig.check("y", rig.plan.matmul(rig.plan.quantize(rig.feed(32, rows), {.prompt_int4 = true, .rule = Int4Rule::amax}),
                                 unit_rows(rig, 32)));
  rig.check("exact", rig.plan.matmul(rig.plan.quantize(rig.feed(32, rows), {}), unit_rows(rig, 32)));
  TestBatch batch = prompt_batch(4);
  batch.sequences = {{.n_tok = 1, .phase = Phase::decode},
                     {.n_tok = 1, .phase = Phase::prompt},
                     {.n_tok = 1, .phase = Phase::verify},
                     {.n_tok = 1, .phase = Phase::draft}};
  rig.batches = {batch};
  const std::vector<float> y = run_one(rig, "y").values, exact = run_one(rig, "exact").values;
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_FLOAT_EQ(y[r * 32 + 1], r == 1 ? 4.0f / 7 : 64.0f / 127) << r;
    EXPECT_FLOAT_EQ(y[r * 32 + 2], r == 1 ? 3.0f / 7 : 51.0f / 127) << r;
    EXPECT_FLOAT_EQ(exact[r * 32 + 1], 64.0f / 127) << r;
  }
}

TEST(Quantize, InputsOfSeveralMatricesAreQuantisedOnce) {
  OpRig rig("shared", 1);
  const Value x = rig.feed(32, std::vector<float>(32, 1)), y = rig.feed(32, std::vector<float>(32, 2));
  const QuantizeParams prompt{.rotate = true, .prompt_int4 = true};
  const Value shared = rig.plan.quantize(x, prompt);
  const size_t n_step = rig.plan.steps().size();
  EXPECT_EQ(rig.plan.quantize(x, prompt).id, shared.id);
  EXPECT_EQ(rig.plan.steps().size(), n_step);
  EXPECT_NE(rig.plan.quantize(x, {.rotate = true}).id, shared.id);
  EXPECT_NE(rig.plan.quantize(y, prompt).id, shared.id);
}

TEST(Matmul, RotatesEachBlockOfInputs) {
  std::vector<float> impulse(64);
  impulse[32 + 5] = 2;
  const std::vector<float> y = values_of(1, [&](OpRig& rig) {
    return rig.plan.matmul(rig.plan.quantize(rig.feed(64, impulse), {.rotate = true}), unit_rows(rig, 64));
  });
  for (int c = 0; c < 64; ++c) {
    const double sign = std::popcount(static_cast<unsigned>(c % 32 & 5)) % 2 ? -1 : 1;
    EXPECT_NEAR(y[static_cast<size_t>(c)], c < 32 ? 0 : sign * 2 / std::sqrt(32.0), 1e-6) << c;
  }
}

TEST(Matmul, RotationOfBothSidesCancels) {
  Rng rng(5);
  std::vector<float> w = random_values(rng, 3 * 96), x = random_values(rng, 96), rotated = w;
  hadamard32(rotated.data(), 3 * 96);
  std::vector<uint8_t> bytes(static_cast<size_t>(3 * row_bytes(BlockType::q8_0, 96)));
  encode_row(BlockType::q8_0, rotated.data(), bytes.data(), 3 * 96);
  const std::vector<float> y = values_of(1, [&](OpRig& rig) {
    TestWeight& made = rig.new_weight();
    set_weight(made, "w", BlockType::q8_0, {3, 96}, bytes);
    return rig.plan.matmul(rig.plan.quantize(rig.feed(96, x), {.rotate = true}), made.weight);
  });
  for (size_t n = 0; n < 3; ++n) {
    double sum = 0;
    for (size_t k = 0; k < 96; ++k) sum += static_cast<double>(w[n * 96 + k]) * x[k];
    EXPECT_NEAR(y[n], sum, 0.3) << n;  // |w| |x| is about 96, two grids of 127 steps
  }
}

// --- elementwise and norms -------------------------------------------------------------------------------------------

TEST(Elementwise, ByHand) {
  auto feed = [](std::vector<float> values) {
    return [values](OpRig& rig) { return rig.feed(static_cast<int64_t>(values.size()), values); };
  };
  auto two = [&](auto op, std::vector<float> a, std::vector<float> b) {
    return values_of(1, [&](OpRig& rig) { return op(rig.plan, feed(a)(rig), feed(b)(rig)); });
  };
  auto add = [](Plan& plan, Value a, Value b) { return plan.add(a, b); };
  auto gate = [](Plan& plan, Value a, Value b) { return plan.sigmoid_mul(a, b); };
  auto swiglu = [](Plan& plan, Value a, Value b) { return plan.swiglu(a, b); };
  expect_near(two(add, {1, 2}, {3, -5}), {4, -3});
  expect_near(two(gate, {2, 4}, {0, std::log(3.0f)}), {1, 3});
  expect_near(two(gate, {2, 4}, {std::log(3.0f)}), {1.5, 3});
  expect_near(two(gate, {2, 4}, {-200, 200}), {0, 4});
  expect_near(two(swiglu, {0, std::log(3.0f), -200}, {7, 2, 1}), {0, 2 * 0.75 * std::log(3.0), 0});
  expect_near(values_of(1, [&](OpRig& rig) { return rig.plan.softcap(feed({1, -2})(rig), 3, 0); }), {3, -6});
  expect_near(values_of(1,
                        [&](OpRig& rig) {
                          return rig.plan.softcap(feed({1, 1000})(rig), 3, 5);
                        }),
              {5 * std::tanh(0.6), 5});
}

TEST(Norm, ByHand) {
  const std::vector<float> x = {3, 4, 0, 2}, w = {1, 2};
  const std::vector<float> y =
      values_of(1, [&](OpRig& rig) { return rig.plan.rms_norm(rig.feed(4, x), rig.floats({2}, w), 0.5f); });
  const double first = std::sqrt(12.5 + 0.5), second = std::sqrt(2 + 0.5);
  expect_near(y, {3 / first, 8 / first, 0, 4 / second});
  const std::vector<float> z = {0, std::log(3.0f), 1, -std::log(3.0f)};
  const std::vector<float> gated = values_of(
      1, [&](OpRig& rig) { return rig.plan.gated_norm(rig.feed(4, x), rig.floats({2}, w), rig.feed(4, z), 0.5f); });
  expect_near(gated, {0, 8 / first * 0.75 * std::log(3.0), 0, 4 / second * -0.25 * std::log(3.0)});
}

TEST(SliceHeads, TakesQueryAndGateOutOfEachHead) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};  // two heads of [query 2 | gate 2]
  auto slice = [&](int64_t offset) {
    return values_of(1, [&](OpRig& rig) { return rig.plan.slice_heads(rig.feed(8, x), {2, 4, offset, 2}); });
  };
  expect_near(slice(0), {1, 2, 5, 6});
  expect_near(slice(2), {3, 4, 7, 8});
}

// --- rope ------------------------------------------------------------------------------------------------------------

/// Rotates one row at `pos`.
std::vector<float> rope_row(const RopeParams& params, const std::vector<float>& x, int32_t pos,
                            const std::vector<float>& factors = {}) {
  OpRig rig("rope", 1);
  const Weight* divisors = factors.empty() ? nullptr : &rig.floats({static_cast<int64_t>(factors.size())}, factors);
  rig.check("y", rig.plan.rope(rig.feed(static_cast<int64_t>(x.size()), x), params, divisors));
  rig.batches = {prompt_batch(1)};
  rig.batches[0].sequences[0].pos = pos;
  return run_one(rig, "y").values;
}

TEST(Rope, PairsHalvesAndLeavesTheRest) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 1, 0, 0, 1, 9, 9};  // two heads of 6, the first 4 columns turn
  const RopeParams params{.n_head = 2, .d_head = 6, .n_rot = 4, .theta = 100};
  const double a = 3, b = 3 * std::pow(100.0, -0.5);  // angles of pairs 0 and 1 at position 3
  expect_near(rope_row(params, x, 3),
              {std::cos(a) - 3 * std::sin(a), 2 * std::cos(b) - 4 * std::sin(b), std::sin(a) + 3 * std::cos(a),
               2 * std::sin(b) + 4 * std::cos(b), 5, 6, std::cos(a), -std::sin(b), std::sin(a), std::cos(b), 9, 9});
}

TEST(Rope, PairsNeighbours) {
  const RopeParams params{.n_head = 1, .d_head = 4, .n_rot = 4, .theta = 100, .style = RopeStyle::normal};
  const double a = 3, b = 0.3;
  expect_near(rope_row(params, {1, 2, 3, 4}, 3),
              {std::cos(a) - 2 * std::sin(a), std::sin(a) + 2 * std::cos(a), 3 * std::cos(b) - 4 * std::sin(b),
               3 * std::sin(b) + 4 * std::cos(b)});
}

TEST(Rope, StaysExactFarAway) {
  const RopeParams params{.n_head = 1, .d_head = 4, .n_rot = 4, .theta = 10000};
  const double a = 262143, b = 2621.43;
  expect_near(rope_row(params, {1, 1, 0, 0}, 262143), {std::cos(a), std::cos(b), std::sin(a), std::sin(b)}, 1e-7);
}

TEST(Rope, DividesPositionsAndAngles) {
  RopeParams params{.n_head = 1, .d_head = 4, .n_rot = 4, .theta = 100, .linear_factor = 2};
  const std::vector<float> x = {1, 1, 0, 0};
  expect_near(rope_row(params, x, 5), {std::cos(2.5), std::cos(0.25), std::sin(2.5), std::sin(0.25)});
  expect_near(rope_row(params, x, 5, {1, 4}), {std::cos(2.5), std::cos(0.0625), std::sin(2.5), std::sin(0.0625)});
}

TEST(Rope, YarnKeepsFastPairsAndStretchesSlowOnes) {
  // 128 dimensions, base 1e6, trained on 32768 positions: pairs up to 23 keep their angle, pairs from 40 are divided
  // by the factor, those between are blended.
  RopeParams params{.n_head = 1, .d_head = 128, .n_rot = 128, .theta = 1e6f};
  params.yarn_factor = 4;
  params.yarn_attn_factor = 1.138629f;
  params.n_ctx_orig = 32768;
  std::vector<float> x(128);
  std::fill(x.begin(), x.begin() + 64, 1.0f);
  const std::vector<float> y = rope_row(params, x, 1000);
  for (int i = 0; i < 64; ++i) {
    const double angle = 1000 * std::pow(1e6, -i / 64.0);
    const double keep = i <= 23 ? 1 : i >= 40 ? 0 : 1 - (i - 23) / 17.0;
    const double turned = angle * keep + angle / 4 * (1 - keep);
    EXPECT_NEAR(y[static_cast<size_t>(i)], 1.138629 * std::cos(turned), 1e-6) << i;
    EXPECT_NEAR(y[static_cast<size_t>(i) + 64], 1.138629 * std::sin(turned), 1e-6) << i;
  }
}

// --- mixture of experts ----------------------------------------------------------------------------------------------

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed routed(const std::vector<float>& logits, const RouteParams& params) {
  OpRig rig("route", 1);
  const auto [ids, weights] = rig.plan.route(rig.feed(static_cast<int64_t>(logits.size()), logits), params);
  rig.check("ids", ids);
  rig.check("weights", weights);
  rig.batches = {prompt_batch(1)};
  return {run_one(rig, "ids").ids, run_one(rig, "weights").values};
}

TEST(Route, LargestFirstLowestIdOnTies) {
  const Routed softmax = routed({0, std::log(2.0f), 0, std::log(4.0f), std::log(2.0f)}, {.n_used = 3});
  EXPECT_EQ(softmax.ids, (std::vector<int32_t>{3, 1, 4}));
  expect_near(softmax.weights, {0.5, 0.25, 0.25});
  const Routed plain =
      routed({0, std::log(2.0f), 0, std::log(4.0f), std::log(2.0f)}, {.n_used = 2, .normalise = false, .scale = 10});
  expect_near(plain.weights, {4, 2}, 1e-5);
  const Routed equal = routed({1, 1, 1, 1}, {.n_used = 2});
  EXPECT_EQ(equal.ids, (std::vector<int32_t>{0, 1}));
}

TEST(Route, SigmoidGateAndTheLeastSum) {
  const Routed gates = routed({0, std::log(3.0f), -9}, {.n_used = 2, .gate = RouterGate::sigmoid});
  EXPECT_EQ(gates.ids, (std::vector<int32_t>{1, 0}));
  expect_near(gates.weights, {0.6, 0.4});
  const Routed tiny = routed({-20, -21}, {.n_used = 1, .gate = RouterGate::sigmoid});
  expect_near(tiny.weights, {1 / (1 + std::exp(20.0)) * 16384}, 1e-9);
}

TEST(Route, ChoosesValidIdsWhateverTheLogits) {
  const Routed nan = routed({kNan, kNan, -kInfinity, kNan}, {.n_used = 2});
  EXPECT_EQ(nan.ids, (std::vector<int32_t>{0, 1}));
}

TEST(Experts, EachRowTakesItsOwnMatrix) {
  OpRig rig("experts", 2);
  const Weight& w = rig.floats({3, 1, 2}, {1, 10, 2, 20, 3, 30});  // expert e: (e+1) (x0 + 10 x1)
  const auto [ids, weights] = rig.plan.route(rig.feed(3, {0, 1, 2, 5, 0, 4}), {.n_used = 2});
  const Value x = rig.feed(2, {1, 1, 2, 0});
  const Value y = rig.plan.matmul_experts(x, w, ids);
  rig.check("y", y);
  rig.check("again", rig.plan.matmul_experts(y, rig.floats({3, 1, 1}, {100, 200, 300}), ids));
  rig.check("combined", rig.plan.combine_experts(y, weights));
  rig.batches = {prompt_batch(2)};
  expect_near(run_one(rig, "y").values, {33, 22, 2, 6});  // experts 2, 1 and 0, 2
  expect_near(run_one(rig, "again").values, {9900, 4400, 200, 1800});
  const double p = 1 / (1 + std::exp(-1.0));
  expect_near(run_one(rig, "combined").values, {33 * p + 22 * (1 - p), 2 * p + 6 * (1 - p)}, 1e-5);
}

// --- choosing columns ------------------------------------------------------------------------------------------------

TEST(Choose, LowestColumnOnTiesAndNanLast) {
  OpRig rig("choose", 2);
  const std::vector<float> rows = {1, 5, kNan, 5, -kInfinity, 2, kNan, kNan, -kInfinity, kNan, kNan, kNan};
  const Value x = rig.feed(6, rows);
  const auto [ids, values] = rig.plan.top_k(x, 4);
  rig.check("argmax", rig.plan.argmax(x));
  rig.check("ids", ids);
  rig.check("values", values);
  rig.batches = {prompt_batch(2)};
  EXPECT_EQ(run_one(rig, "argmax").ids, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(run_one(rig, "ids").ids, (std::vector<int32_t>{1, 3, 5, 0, 0, 1, 2, 3}));
  const std::vector<float> best = run_one(rig, "values").values;
  EXPECT_EQ((std::vector<float>(best.begin(), best.begin() + 4)), (std::vector<float>{5, 5, 2, 1}));
}

TEST(Select, WalksFromTheAnchor) {
  constexpr int64_t n_vocab = 24;
  std::vector<float> a(n_vocab * 2), b(n_vocab * 2), logits(n_vocab * 8, -1.0f);
  auto set = [](std::vector<float>& book, size_t id, float x, float y) {
    book[id * 2] = x;
    book[id * 2 + 1] = y;
  };
  set(a, 7, 1, 0.5f), set(a, 12, 1, 1);
  set(b, 11, 0.5f, 0.5f), set(b, 12, 1, 0), set(b, 13, 0, 1), set(b, 21, 1, 1), set(b, 22, 2, -1), set(b, 23, 0, 0.5f);
  // The rows have tokens 7 (the anchor), 0 and 1, which pick the rows of these tables.
  logits[11] = 2, logits[12] = 1.8f, logits[13] = 1;
  logits[n_vocab + 21] = 3, logits[n_vocab + 22] = 2.9f, logits[n_vocab + 23] = 2;
  std::vector<float> gamma = {1, 1, 0.5f, 1};
  gamma.resize(16);
  OpRig rig("select", 5);
  const auto [candidates, unary] = rig.plan.top_k(rig.plan.gather_rows(rig.feed(n_vocab, logits)), 3);
  const Plan::Walk walk = rig.plan.select_walk(candidates, unary, rig.plan.gather_rows(rig.feed(2, gamma)),
                                               rig.floats({n_vocab, 2}, a), rig.floats({n_vocab, 2}, b));
  rig.check("ids", walk.ids);
  rig.check("confidence", walk.confidence);
  rig.check("scores", walk.scores);
  TestBatch batch = prompt_batch(3, Phase::draft);
  batch.tokens = {7, 0, 1};
  batch.outputs = {1, 2};
  TestBatch twice = batch;
  twice.tokens = {7, 0, 1, 7, 0, 1};
  twice.sequences = {{.n_tok = 3}, {.n_tok = 3}};
  twice.outputs = {1, 2, 4, 5};
  rig.batches = {batch, twice};
  EXPECT_EQ(run_one(rig, "ids").ids, (std::vector<int32_t>{12, 21}));
  EXPECT_EQ(run_one(rig, "ids", 1).ids, (std::vector<int32_t>{12, 21, 12, 21}));
  expect_near(run_one(rig, "scores").values, {2.75, 2.8, 1.5, 4.5, 2.9, 2.5});
  expect_near(run_one(rig, "confidence").values, {0.4497, 0.7478}, 5e-5);
}

TEST(BlockConv, ByHand) {
  OpRig rig("conv", 3);
  const std::vector<float> base = {1, 0.9f, 1.1f, 1, 0.1f, 0, -0.1f, 0.2f, 0, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<float> delta = {0.5f, -0.5f, 9, 9, 0,    0, 0,    0,    0, 0.25f, 0.5f, -1,
                                    0,    0,     0, 0, 0.1f, 0, 0.2f, 0.3f, 0, 0,     0,    0};
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, -1, 0, 1, 2};
  std::vector<float> other_side = base, other_delta = delta;  // the same numbers on side 1
  std::rotate(other_side.begin(), other_side.begin() + 8, other_side.end());
  for (int64_t r = 0; r < 3; ++r) {
    const auto row = other_delta.begin() + r * 8;
    std::rotate(row, row + 4, row + 8);
  }
  rig.check("y", rig.plan.block_conv(rig.feed(4, x), rig.floats({2, 2, 4}, base), rig.feed(8, delta), {0, 2, 2}));
  rig.check("side 1", rig.plan.block_conv(rig.feed(4, x), rig.floats({2, 2, 4}, other_side), rig.feed(8, other_delta),
                                          {1, 2, 2}));
  TestBatch split = prompt_batch(3);
  split.sequences = {{.n_tok = 2}, {.n_tok = 1}};
  rig.batches = {prompt_batch(3), split};
  const std::vector<double> expected = {1.5, 2.8, 1.8, 2.0, 5.6, 6.4, 6.15, 6.8, 0.4, 1.2, 2.5, 6.0};
  expect_near(run_one(rig, "y").values, expected);
  expect_near(run_one(rig, "side 1").values, expected);
  const std::vector<float> restarted = run_one(rig, "y", 1).values;  // row 2 now begins a sequence
  expect_near({restarted.begin() + 8, restarted.end()}, {-1.1, 0, 1.1, 2});
}

// --- rows ------------------------------------------------------------------------------------------------------------

TEST(Rows, StoredOnlyForTapsAndCleanedOnLoad) {
  OpRig rig("rows", 2);
  const State& buffer = rig.state({"buffer", RowsState{3}});
  rig.sizes.n_rows = 4;
  rig.plan.store_rows(rig.feed(2, {1, kNan, -1e9f, 65505, 7, 8}), buffer, 1);
  rig.check("y", rig.plan.load_rows(buffer));
  TestBatch store = prompt_batch(2), keep = prompt_batch(2);
  store.source_rows = {1, 0};
  store.tap_rows = {0, 1};
  keep.tokens = {2, 2};
  keep.source_rows = {0, 3};
  rig.batches = {store, keep};
  EXPECT_EQ(run_one(rig, "y", 0).values, (std::vector<float>{0, -65504, 65504, 0, 1, 0}));
  EXPECT_EQ(run_one(rig, "y", 1).values, (std::vector<float>{0, 1, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace onebit::test
