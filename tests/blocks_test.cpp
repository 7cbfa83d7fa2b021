// Block types against another implementation's goldens, and properties of the encoders.
#include "gguf/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/half.h"
#include "base/rng.h"
#include "gguf/block_codecs.h"
#include "gguf/file.h"
#include "gguf/k_scales.h"
#include "gguf/search_lanes.h"
#include "support/expect_error.h"

namespace onebit {
namespace {

const char* const kGolden = ONEBIT_SOURCE_DIR "/tests/golden/blocks/blocks.gguf";

std::vector<float> floats_of(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.n_elements()));
  decode_row(tensor.type, tensor.data.data(), values.data(), tensor.n_elements());
  return values;
}

/// Roughly normal values (standard deviation 0.05), `outliers` of them six times larger.
std::vector<float> random_weights(size_t n, uint64_t seed, double outliers = 0) {
  Rng rng(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += rng.uniform();
    v = static_cast<float>(sum * (rng.uniform() < outliers ? 0.3 : 0.05));
  }
  return x;
}

void encode_search(BlockType type, const float* src, uint8_t* dst, int64_t n) { encode_row_search(type, src, dst, n); }

using Encoder = std::function<void(BlockType type, const float* src, uint8_t* dst, int64_t n)>;

std::vector<float> round_trip(BlockType type, const std::vector<float>& x, const Encoder& encode = encode_row) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(type, n)));
  encode(type, x.data(), bytes.data(), n);
  std::vector<float> y(x.size());
  decode_row(type, bytes.data(), y.data(), n);
  return y;
}

/// Squared error relative to the squared norm.
double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (static_cast<double>(x[i]) - y[i]) * (static_cast<double>(x[i]) - y[i]);
    norm += static_cast<double>(x[i]) * x[i];
  }
  return norm > 0 ? error / norm : error;
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, DecodesToTheSameValues) {
  const GgufFile file = GgufFile::open(kGolden);
  const TensorInfo& blocks = file.tensor(GetParam());
  EXPECT_EQ(std::string(type_name(blocks.type)), GetParam());
  const std::vector<float> got = floats_of(blocks), wanted = floats_of(file.tensor(std::string(GetParam()) + ".f32"));
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(got[i], wanted[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Golden,
                         ::testing::Values("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k",
                                           "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"));

class GoldenEncode : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenEncode, GivesTheSameBytes) {
  const GgufFile file = GgufFile::open(kGolden);
  const TensorInfo& wanted = file.tensor(std::string(GetParam()) + ".encoded");
  const std::vector<float> source = floats_of(file.tensor("source"));
  std::vector<uint8_t> got(wanted.data.size());
  encode_row(wanted.type, source.data(), got.data(), static_cast<int64_t>(source.size()));
  EXPECT_EQ(got, std::vector<uint8_t>(wanted.data.begin(), wanted.data.end()));
}

INSTANTIATE_TEST_SUITE_P(Types, GoldenEncode, ::testing::Values("f16", "bf16", "q4_0", "q4_1", "q8_0"));

TEST(Types, TableIsConsistent) {
  for (uint32_t id = 0; id < 300; ++id) {
    if (!known_type(id)) continue;
    const TypeInfo& info = type_info(static_cast<BlockType>(id));
    EXPECT_EQ(static_cast<uint32_t>(info.type), id);
    EXPECT_EQ(parse_type(info.name), info.type);
    EXPECT_EQ(row_bytes(info.type, 3 * info.block_elems), 3 * info.block_bytes);
  }
  EXPECT_EQ(parse_type("Q4_K"), BlockType::q4_k);
  EXPECT_EQ(parse_type("q4"), std::nullopt);
  EXPECT_EQ(parse_type(""), std::nullopt);
  for (const uint32_t retired : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 100u}) EXPECT_FALSE(known_type(retired));
}

TEST(Types, UnsupportedTypesAreErrorsByName) {
  float x[256] = {};
  uint8_t bytes[256] = {};
  test::expect_refused({"iq2_xxs"}, [&] { decode_row(BlockType::iq2_xxs, bytes, x, 256); });
  test::expect_error(ErrorKind::usage, {"q3_k"}, [&] { encode_row(BlockType::q3_k, x, bytes, 32); });
}

TEST(Scales, SixBitPairsSurvivePacking) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    ScaleMin values[8];
    for (ScaleMin& v : values) v = {static_cast<int>(rng.next() & 63), static_cast<int>(rng.next() & 63)};
    uint8_t packed[12];
    pack_scale_mins(values, packed);
    for (int s = 0; s < 8; ++s) {
      EXPECT_EQ(unpack_scale_min(packed, s).scale, values[s].scale);
      EXPECT_EQ(unpack_scale_min(packed, s).min, values[s].min);
    }
  }
}

struct Bound {
  BlockType type;
  double error;  // relative squared error on normal weights; the encoders reach about 0.95 of it
};

TEST(Encode, ErrorIsWhatTheBitsAllow) {
  const std::vector<float> x = random_weights(256 * 64, 3);
  const Bound bounds[] = {{BlockType::f16, 1e-7},    {BlockType::bf16, 4e-6},   {BlockType::q4_0, 7.8e-3},
                          {BlockType::q4_1, 6.5e-3}, {BlockType::q8_0, 3.0e-5}, {BlockType::q4_k, 5.2e-3},
                          {BlockType::q5_k, 1.3e-3}, {BlockType::q6_k, 3.15e-4}};
  for (const Bound& bound : bounds) {
    const double error = relative_error(x, round_trip(bound.type, x));
    EXPECT_LT(error, bound.error) << type_name(bound.type);
    EXPECT_GT(error, 0) << type_name(bound.type);
  }
}

TEST(Encode, SearchIsNeverWorseAndUsuallyBetter) {
  for (const BlockType type : {BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1}) {
    double plain = 0, searched = 0;
    for (uint64_t seed = 0; seed < 500; ++seed) {
      const std::vector<float> x = random_weights(32, 100 + seed, 0.01);
      const double a = relative_error(x, round_trip(type, x));
      const double b = relative_error(x, round_trip(type, x, encode_search));
      EXPECT_LE(b, a * 1.0001);
      plain += a;
      searched += b;
    }
    EXPECT_LT(searched, 0.96 * plain) << type_name(type);
  }
}

/// Blocks of every kind that a search treats in its own way.
std::vector<float> blocks_of_all_kinds(int64_t n) {
  std::vector<float> x = random_weights(static_cast<size_t>(n), 31, 0.02);
  for (int64_t i = 0; i < n; ++i) {
    float& v = x[static_cast<size_t>(i)];
    const int64_t kind = i / 32 % 11;
    if (kind == 1) v = 0;
    if (kind == 2) v = 0.5f;
    if (kind == 3) v = -std::fabs(v);
    if (kind == 4) v = std::fabs(v) + 3;
    if (kind == 5) v = static_cast<float>(i % 16 - 8);  // ties
    if (kind == 6) v *= 1e-7f;
    if (kind == 7 && i % 32 != 9) v = 0;
    if (kind == 8) v *= 1e4f;
  }
  return x;
}

TEST(Encode, ManyBlocksAtOnceGiveTheBytesOfOneByOne) {
  struct Pair {
    BlockType type;
    codec::EncodeSearch *one, *many;
  };
  const Pair pairs[] = {{BlockType::q4_0, codec::encode_q4_0_search, codec::encode_q4_0_lanes},
                        {BlockType::q4_1, codec::encode_q4_1_search, codec::encode_q4_1_lanes},
                        {BlockType::q5_0, codec::encode_q5_0_search, codec::encode_q5_0_lanes},
                        {BlockType::q5_1, codec::encode_q5_1_search, codec::encode_q5_1_lanes},
                        {BlockType::q4_k, codec::encode_q4_k_search, codec::encode_q4_k_lanes},
                        {BlockType::q5_k, codec::encode_q5_k_search, codec::encode_q5_k_lanes},
                        {BlockType::q6_k, codec::encode_q6_k_search, codec::encode_q6_k_lanes}};
  for (const auto& [type, one, many] : pairs) {
    for (const int64_t n_block : {1, 2, 15, 16, 37, 88}) {
      const int64_t n = n_block * type_info(type).block_elems;
      const std::vector<float> x = blocks_of_all_kinds(n);
      std::vector<float> w(x.size());
      for (size_t i = 0; i < w.size(); ++i) w[i] = i % 5 == 0 ? 0 : static_cast<float>(1 + i % 7);
      for (const float* weights : {static_cast<const float*>(nullptr), static_cast<const float*>(w.data())}) {
        std::vector<uint8_t> a(static_cast<size_t>(row_bytes(type, n))), b(a.size(), 0xaa);
        one(x.data(), weights, a.data(), n_block);
        many(x.data(), weights, b.data(), n_block);
        EXPECT_EQ(a, b) << type_name(type) << " " << n_block << (weights ? " weighted" : "");
      }
    }
  }
}

/// Everything that the searches find for 16 blocks of 32 elements, `n_lane` at a time.
std::vector<lanes::Lanes> all_searches(const lanes::Lanes* x, const lanes::Lanes* w, int n_lane) {
  std::vector<lanes::Lanes> found(12 + 3 * 32);
  lanes::Lanes* const out = found.data();
  lanes::find_extreme(x, out[0], n_lane);
  lanes::find_range(x, out[1], out[2], n_lane);
  lanes::fit_symmetric(x, w, 32, -8, 7, out[3], n_lane);
  lanes::fit_symmetric(x, w, 16, -32, 31, out[4], n_lane);
  lanes::fit_affine(x, w, 15, true, out[5], out[6], n_lane);
  lanes::fit_affine(x, w, 31, false, out[7], out[8], n_lane);
  lanes::code_with(x, w, 32, out[3], lanes::Lanes{}, -8, 7, out + 12, out[9], n_lane);
  lanes::code_with(x, w, 16, out[4], out[6], -32, 31, out + 44, out[10], n_lane);
  lanes::code_plainly(x, w, {out[1], out[5], 0.5f, 15, 0}, out[5], out[1], out + 76, out[11], n_lane);
  return found;
}

TEST(SearchLanes, EveryWidthOfRegistersFindsTheSame) {
  const std::vector<float> values = blocks_of_all_kinds(16 * 32);
  lanes::Lanes x[32], w[32];
  for (int l = 0; l < lanes::kLanes; ++l) {
    for (int j = 0; j < 32; ++j) {
      x[j][l] = values[static_cast<size_t>(32 * l + j)];
      w[j][l] = static_cast<float>((l + j) % 5);
    }
  }
  for (const lanes::Lanes* weights : {static_cast<const lanes::Lanes*>(nullptr), static_cast<const lanes::Lanes*>(w)}) {
    const std::vector<lanes::Lanes> wanted = all_searches(x, weights, 4);
    for (int n_lane = 8; n_lane <= lanes::register_lanes(); n_lane *= 2) {
      const std::vector<lanes::Lanes> found = all_searches(x, weights, n_lane);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(std::memcmp(&found[i], &wanted[i], sizeof found[i]), 0) << n_lane << " lanes, result " << i;
      }
    }
  }
}

/// Squared error of x and y with weights, relative to the weighted norm of x.
double weighted_error(const std::vector<float>& x, const std::vector<float>& y, const std::vector<float>& w) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += static_cast<double>(w[i]) * (x[i] - y[i]) * (x[i] - y[i]);
    norm += static_cast<double>(w[i]) * x[i] * x[i];
  }
  return error / norm;
}

TEST(Encode, WeightsMoveTheErrorToWhatCountsLess) {
  for (const BlockType type : {BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1, BlockType::q4_k,
                               BlockType::q5_k, BlockType::q6_k}) {
    double plain = 0, weighted = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::vector<float> x = random_weights(256, 700 + seed, 0.01);
      std::vector<float> w(256), even(256, 3.0f);
      for (size_t i = 0; i < w.size(); ++i) w[i] = i % 7 == 0 ? 20.0f : 0.5f;
      plain += weighted_error(x, round_trip(type, x, encode_search), w);
      const auto with = [&](BlockType t, const float* src, uint8_t* dst, int64_t n) {
        encode_row_search(t, src, dst, n, w.data());
      };
      weighted += weighted_error(x, round_trip(type, x, with), w);
      const auto alike = [&](BlockType t, const float* src, uint8_t* dst, int64_t n) {
        encode_row_search(t, src, dst, n, even.data());
      };
      EXPECT_NEAR(weighted_error(x, round_trip(type, x, alike), even),
                  weighted_error(x, round_trip(type, x, encode_search), even), 1e-4)
          << type_name(type);
    }
    EXPECT_LT(weighted, 0.9 * plain) << type_name(type);
  }
}

TEST(Encode, ValuesOfTheFormatSurvive) {
  // Rows that the format holds exactly must come back exactly: integers with the scale 2^-4.
  for (const BlockType type : {BlockType::q4_0, BlockType::q4_1, BlockType::q8_0}) {
    std::vector<float> x(64);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<float>(i % 16) - 8) / 16;
    if (type == BlockType::q8_0) x[5] = x[40] = -127.0f / 16;
    EXPECT_EQ(round_trip(type, x), x) << type_name(type);
    EXPECT_EQ(round_trip(type, x, encode_search), x) << type_name(type);
  }
}

TEST(Encode, ZerosAndExtremesAreHarmless) {
  const float kinds[] = {0.0f, -0.0f, 1e-42f, 3e38f, INFINITY, -INFINITY, NAN};
  for (const BlockType type : {BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1, BlockType::q8_0,
                               BlockType::q4_k, BlockType::q5_k, BlockType::q6_k, BlockType::f16, BlockType::bf16}) {
    for (const float kind : kinds) {
      std::vector<float> x = random_weights(256, 9);
      x[100] = kind;
      round_trip(type, x);
      round_trip(type, x, encode_search);
      x.assign(256, kind);
      const std::vector<float> y = round_trip(type, x);
      if (kind == 0) {
        EXPECT_EQ(y, std::vector<float>(256, 0.0f)) << type_name(type);
      }
    }
  }
}

TEST(Encode, ConstantRowsKeepTheirValue) {
  for (const BlockType type : {BlockType::q4_k, BlockType::q5_k, BlockType::q6_k}) {
    for (const float value : {0.75f, -0.75f}) {
      for (const float y : round_trip(type, std::vector<float>(256, value))) {
        EXPECT_NEAR(y, value, 0.03) << type_name(type);
      }
    }
  }
}

}  // namespace
}  // namespace onebit
