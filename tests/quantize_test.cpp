// Quantising files: which type each tensor takes, exact bytes, the stamp, and what failures leave behind.
#include "convert/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "base/rng.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "gguf/writer.h"
#include "support/expect_error.h"
#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace onebit {
namespace {

using enum BlockType;
using Shape = std::vector<int64_t>;

std::vector<float> random_values(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(rng.uniform() - 0.5);
  return x;
}

std::vector<uint8_t> encoded(BlockType type, const std::vector<float>& x) {
  std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(type, static_cast<int64_t>(x.size()))));
  encode_row_search(type, x.data(), bytes.data(), static_cast<int64_t>(x.size()));
  return bytes;
}

std::vector<float> decoded(const TensorInfo& tensor) {
  std::vector<float> x(static_cast<size_t>(tensor.n_elements()));
  decode_row(tensor.type, tensor.data.data(), x.data(), tensor.n_elements());
  return x;
}

std::vector<uint8_t> bytes_of(const TensorInfo& tensor) { return {tensor.data.begin(), tensor.data.end()}; }

struct Tensor {
  std::string name;
  BlockType type;
  Shape shape;
};

int64_t elements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

void write_model(const std::string& path, const std::vector<Tensor>& tensors, const char* arch = "qwen35") {
  GgufWriter writer(path);
  writer.add(keys::kArchitecture, arch);
  writer.add(keys::kFileType, uint32_t{32});
  writer.add("split.count", uint16_t{1});
  writer.add("kept", std::vector<std::string>{"a", "b"});
  for (const Tensor& t : tensors) writer.declare(t.name, t.type, t.shape);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = elements(tensors[i].shape);
    std::vector<uint8_t> bytes(static_cast<size_t>(n * 8), 0);
    if (type_info(tensors[i].type).encodable) bytes = encoded(tensors[i].type, random_values(n, i));
    if (tensors[i].type == i64) bytes.resize(static_cast<size_t>(n * 8));
    writer.write(tensors[i].name, bytes);
  }
  writer.finish();
}

/// A hybrid block and the tensors around it; `tied`: without a head of its own.
std::vector<Tensor> small_model(BlockType type, bool tied = false) {
  std::vector<Tensor> tensors = {{"token_embd.weight", type, {64, 256}},
                                 {"output_norm.weight", f32, {256}},
                                 {"blk.0.attn_norm.weight", f32, {256}},
                                 {"blk.0.attn_qkv.weight", type, {96, 256}},
                                 {"blk.0.attn_gate.weight", type, {64, 256}},
                                 {"blk.0.ssm_alpha.weight", type, {4, 256}},
                                 {"blk.0.ssm_a", f32, {4}},
                                 {"blk.0.ssm_conv1d.weight", f32, {96, 4}},
                                 {"blk.0.ssm_out.weight", type, {256, 64}},
                                 {"blk.0.ffn_gate_inp.weight", f32, {4, 256}},
                                 {"blk.0.ffn_up_exps.weight", type, {4, 96, 256}},
                                 {"blk.0.ffn_down_exps.weight", type, {4, 256, 96}},
                                 {"blk.1.nextn.eh_proj.weight", type, {256, 512}}};
  if (!tied) tensors.push_back({"output.weight", type, {64, 256}});
  return tensors;
}

// --- the rule -------------------------------------------------------------------------------------------------------

struct Rule {
  const char* name;
  Shape shape;
  BlockType plain, rotated;  // of a model with a head of its own, made q4_0
  bool rotates = false;
};

TEST(Mixture, TypesOfQ40Files) {
  const Rule rules[] = {
      {"token_embd.weight", {64, 256}, q4_0, q4_0},
      {"output.weight", {64, 256}, q6_k, q6_k},
      {"output.weight", {64, 96}, q8_0, q8_0},
      {"output_norm.weight", {256}, f32, f32},
      {"blk.0.attn_q_norm.weight", {256}, f32, f32},
      {"blk.3.attn_q.weight", {64, 256}, q4_0, q4_0, true},
      {"blk.3.attn_q.bias", {64}, f32, f32},
      {"blk.3.ffn_down.weight", {64, 96}, q4_0, q4_0, true},
      {"blk.3.ffn_down_exps.weight", {4, 64, 96}, q4_0, q4_0, true},
      {"blk.3.ffn_gate_inp.weight", {4, 256}, f32, f32},
      {"blk.3.ffn_gate_inp_shexp.weight", {256}, f32, f32},
      {"blk.3.ffn_gate_inp_shexp.weight", {1, 256}, f32, f32},
      {"blk.3.ssm_conv1d.weight", {96, 4}, f32, f32},
      {"blk.3.ssm_a", {4}, f32, f32},
      {"blk.3.ssm_alpha.weight", {4, 256}, q4_0, q4_0, true},
      {"blk.3.ssm_out.weight", {64, 256}, q4_0, q5_k},
      {"blk.3.ssm_out.weight", {64, 128}, q4_0, q8_0},
      {"blk.3.ssm_ba.weight", {8, 256}, q4_0, q8_0},
      {"blk.4.nextn.eh_proj.weight", {256, 512}, q4_0, q8_0},
      {"blk.4.nextn.shared_head_head.weight", {64, 256}, q6_k, q6_k},
      {"fc.weight", {64, 256}, q4_0, q4_0, true},
      {"blk.0.attn_conv_proj.weight", {32, 256}, q8_0, q8_0},
      {"blk.0.attn_conv_base", {2, 2, 256}, f32, f32},
      {"selector_successor.weight", {64, 64}, q8_0, q8_0},
      {"selector_hidden.weight", {64, 256}, q8_0, q8_0},
      {"strange.weight", {64, 48}, f16, f16},
  };
  for (const Rule& rule : rules) {
    const TensorInfo tensor{rule.name, bf16, rule.shape, {}};
    const TensorChoice plain = choose_type({q4_0, false, false}, tensor, "file");
    const TensorChoice rotated = choose_type({q4_0, true, false}, tensor, "file");
    EXPECT_EQ(type_name(plain.type), std::string(type_name(rule.plain))) << rule.name;
    EXPECT_FALSE(plain.rotated);
    EXPECT_EQ(type_name(rotated.type), std::string(type_name(rule.rotated))) << rule.name;
    EXPECT_EQ(rotated.rotated, rule.rotates) << rule.name;
  }
}

TEST(Mixture, OtherTypesAndTiedEmbeddings) {
  const TensorInfo embedding{"token_embd.weight", bf16, {64, 256}, {}},
      narrow{"blk.0.attn_q.weight", bf16, {64, 96}, {}};
  EXPECT_EQ(choose_type({q4_0, false, true}, embedding, "").type, q6_k);
  EXPECT_EQ(choose_type({q4_0, true, true}, embedding, "").type, q8_0);
  EXPECT_EQ(choose_type({q8_0, false, true}, embedding, "").type, q8_0);
  EXPECT_EQ(choose_type({bf16, false, true}, embedding, "").type, bf16);
  EXPECT_EQ(choose_type({q4_k, false, false}, embedding, "").type, q4_k);
  EXPECT_EQ(choose_type({q4_k, false, false}, narrow, "").type, q5_0);
  EXPECT_EQ(choose_type({q5_k, false, false}, narrow, "").type, q5_1);
  EXPECT_EQ(choose_type({q6_k, false, false}, narrow, "").type, q8_0);
  EXPECT_EQ(choose_type({f16, false, false}, narrow, "").type, f16);
  const TensorInfo ids{"d2t", i64, {64}, {}};
  EXPECT_EQ(choose_type({q4_0, false, false}, ids, "").type, i64);
}

/// Blocks in which `role` takes `type`.
std::vector<int64_t> blocks_with(const Mixture& mixture, const std::vector<int64_t>& blocks, const char* role,
                                 BlockType type) {
  std::vector<int64_t> found;
  for (const int64_t block : blocks) {
    const TensorInfo tensor{"blk." + std::to_string(block) + "." + role, bf16, {64, 256}, {}};
    if (choose_type(mixture, tensor, "").type == type) found.push_back(block);
  }
  return found;
}

/// The choices of llama-quantize 0.7.0 for a hybrid of 17 blocks (attn_v in 3, 7, 11, 15, 16) and a model of 30.
TEST(Mixture, FinerMatricesOfKFiles) {
  using Blocks = std::vector<int64_t>;
  const Blocks recurrent = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14}, full = {3, 7, 11, 15, 16};
  Blocks all;
  for (int64_t i = 0; i < 30; ++i) all.push_back(i);
  const Blocks hybrid(all.begin(), all.begin() + 17);
  const Blocks more = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29};
  for (const BlockType type : {q4_k, q5_k}) {
    Mixture medium{type, false, false, {}, Finer::medium, 17, hybrid};
    EXPECT_EQ(blocks_with(medium, recurrent, "attn_qkv.weight", q6_k), (Blocks{0, 1, 4, 10, 13, 14}));
    EXPECT_EQ(blocks_with(medium, full, "attn_v.weight", q6_k), (Blocks{7, 15, 16}));
    EXPECT_EQ(blocks_with(medium, hybrid, "ffn_down.weight", q6_k), (Blocks{0, 1, 4, 7, 10, 13, 14, 15, 16}));
    EXPECT_EQ(blocks_with(medium, hybrid, "ffn_up.weight", type), hybrid);
    EXPECT_EQ(blocks_with(medium, full, "attn_k.weight", type), full);
    medium.n_block = 30;
    medium.value_blocks = all;
    EXPECT_EQ(blocks_with(medium, all, "attn_v.weight", q6_k), more);
    EXPECT_EQ(blocks_with(medium, all, "ffn_down_exps.weight", q6_k), more);
  }
  const Mixture small{q4_k, false, false, {}, Finer::small, 17, hybrid};
  const Mixture fifth{q5_k, false, false, {}, Finer::small, 17, hybrid};
  EXPECT_EQ(blocks_with(small, recurrent, "attn_qkv.weight", q5_k), (Blocks{0, 1, 2}));
  EXPECT_EQ(blocks_with(small, full, "attn_v.weight", q5_k), (Blocks{3}));
  EXPECT_EQ(blocks_with(small, hybrid, "ffn_down.weight", q5_k), (Blocks{0, 1}));
  EXPECT_EQ(blocks_with(fifth, hybrid, "ffn_down.weight", q5_k), hybrid);
}

// --- files ----------------------------------------------------------------------------------------------------------

class Quantize : public ::testing::Test {
 protected:
  QuantizeResult run(BlockType type, bool rotate = false, int threads = 2, bool search = true) {
    QuantizeOptions options;
    options.in = in();
    options.out = out();
    options.type = type;
    options.rotate = rotate;
    options.threads = threads;
    options.search = search;
    options.progress = progress_;
    return quantize(options);
  }
  void expect_refusal(std::initializer_list<const char*> words, bool rotate = false) {
    test::expect_refused(words, [&] { run(q4_0, rotate); });
    EXPECT_EQ(dir_.count(), 1u);  // only the input
  }
  std::string in() const { return dir_.file("in.gguf"); }
  std::string out() const { return dir_.file("out.gguf"); }

  test::TempDir dir_;
  ProgressCallback progress_;
};

TEST_F(Quantize, PlainTensorsAreTheEncodersBytes) {
  for (const BlockType source : {f32, f16, bf16, q8_0}) {
    write_model(in(), small_model(source));
    const GgufFile before = GgufFile::open(in());
    std::vector<BlockType> types = {q4_0, q8_0, f32};
    if (source == bf16) types = {q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, f16, bf16, f32};
    for (const BlockType type : types) {
      const QuantizeResult result = run(type);
      EXPECT_EQ(result.n_tensors, 14);
      EXPECT_EQ(result.n_rotated, 0);
      const GgufFile after = GgufFile::open(out());
      EXPECT_EQ(result.bytes_out, after.file_bytes());
      EXPECT_EQ(after.tensor("blk.0.attn_qkv.weight").type, type);
      EXPECT_EQ(after.require<uint32_t>(keys::kQuantizationVersion), 2u);
      EXPECT_EQ(after.require<std::vector<std::string>>("kept"), (std::vector<std::string>{"a", "b"}));
      EXPECT_FALSE(after.has("split.count"));
      EXPECT_FALSE(after.has(keys::kHadamard));
      ASSERT_EQ(after.tensors().size(), before.tensors().size());
      for (const TensorInfo& tensor : after.tensors()) {
        const TensorInfo& original = before.tensor(tensor.name);
        EXPECT_EQ(tensor.shape, original.shape);
        const bool kept = tensor.type == original.type;
        EXPECT_EQ(bytes_of(tensor), kept ? bytes_of(original) : encoded(tensor.type, decoded(original))) << tensor.name;
      }
    }
  }
}

TEST_F(Quantize, RotatedTensorsAreTheFormulasBytes) {
  write_model(in(), small_model(bf16));
  EXPECT_EQ(run(q4_0, true).n_rotated, 5);
  const GgufFile before = GgufFile::open(in()), after = GgufFile::open(out());
  EXPECT_EQ(hadamard_stamp(after), 32);
  EXPECT_EQ(after.find_value(keys::kHadamard)->type, ValueType::i32);
  EXPECT_EQ(after.require<uint32_t>(keys::kFileType), 2u);
  check_hadamard_tensors(after);
  int rotated = 0;
  for (const TensorInfo& tensor : after.tensors()) {
    std::vector<float> values = decoded(before.tensor(tensor.name));
    if (is_rotated(tensor, 32)) {
      hadamard32(values.data(), static_cast<int64_t>(values.size()));
      ++rotated;
    }
    EXPECT_EQ(bytes_of(tensor), encoded(tensor.type, values)) << tensor.name;
  }
  EXPECT_EQ(rotated, 5);
  EXPECT_EQ(after.tensor("token_embd.weight").type, q4_0);
}

/// The formula, element by element: H x of each 32, then d = extreme / -8 and codes trunc(x / d + 8.5) of at most 15.
std::vector<uint8_t> rotated_by_formula(std::vector<float> x) {
  std::vector<uint8_t> bytes;
  for (size_t block = 0; block < x.size(); block += 32) {
    float* const v = x.data() + block;
    for (size_t stride = 1; stride < 32; stride *= 2) {
      for (size_t i = 0; i < 32; ++i) {
        if (i / stride % 2 != 0) continue;
        const float low = v[i], high = v[i + stride];
        v[i] = low + high;
        v[i + stride] = low - high;
      }
    }
    float extreme = 0;
    for (size_t i = 0; i < 32; ++i) {
      v[i] *= 0.17677669529663687f;
      if (std::fabs(v[i]) > std::fabs(extreme)) extreme = v[i];
    }
    const float d = extreme / -8, inverse = d != 0 ? 1 / d : 0;
    const uint16_t half = f32_to_f16(d);
    bytes.push_back(static_cast<uint8_t>(half & 255));
    bytes.push_back(static_cast<uint8_t>(half >> 8));
    const auto code = [&](size_t i) { return std::min(15, static_cast<int>(v[i] * inverse + 8.5f)); };
    for (size_t i = 0; i < 16; ++i) bytes.push_back(static_cast<uint8_t>(code(i) | code(i + 16) << 4));
  }
  return bytes;
}

TEST_F(Quantize, WithoutSearchFilesAreTheFormulasBytes) {
  const std::vector<Tensor> tensors = {{"token_embd.weight", f32, {64, 64}},
                                       {"output.weight", f32, {64, 64}},
                                       {"blk.0.attn_q_a.weight", f32, {32, 64}},
                                       {"blk.0.attn_q_b.weight", f32, {96, 32}},
                                       {"blk.0.attn_kv_a_mqa.weight", f32, {48, 64}},
                                       {"blk.0.attn_kv_b.weight", f32, {128, 32}},
                                       {"blk.0.attn_k_b.weight", f32, {2, 32, 32}},
                                       {"blk.0.attn_v_b.weight", f32, {2, 32, 32}},
                                       {"blk.0.ffn_gate_exps.weight", f32, {3, 32, 64}},
                                       {"blk.0.ffn_down_shexp.weight", f32, {64, 32}},
                                       {"blk.0.ssm_beta.weight", f32, {4, 64}}};
  write_model(in(), tensors);
  EXPECT_EQ(run(q4_0, true, 2, false).n_rotated, 9);
  const GgufFile before = GgufFile::open(in()), after = GgufFile::open(out());
  for (const Tensor& tensor : tensors) {
    if (!tensor.name.starts_with("blk.")) continue;
    EXPECT_EQ(bytes_of(after.tensor(tensor.name)), rotated_by_formula(decoded(before.tensor(tensor.name))))
        << tensor.name;
  }
  for (const BlockType type : {q4_0, q4_1, q5_0, q5_1, q8_0}) {
    run(type, false, 2, false);
    const std::vector<float> x = decoded(before.tensor("blk.0.attn_q_a.weight"));
    std::vector<uint8_t> plain(static_cast<size_t>(row_bytes(type, static_cast<int64_t>(x.size()))));
    encode_row(type, x.data(), plain.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(bytes_of(GgufFile::open(out()).tensor("blk.0.attn_q_a.weight")), plain) << type_name(type);
  }
}

TEST_F(Quantize, RotatedWeightsTurnedBackAreTheOriginalsRoughly) {
  write_model(in(), small_model(f32));
  run(q4_0, true);
  const GgufFile before = GgufFile::open(in()), after = GgufFile::open(out());
  const std::vector<float> x = decoded(before.tensor("blk.0.attn_qkv.weight"));
  std::vector<float> y = decoded(after.tensor("blk.0.attn_qkv.weight"));
  double direct = 0, back = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) direct += (x[i] - y[i]) * (x[i] - y[i]);
  hadamard32(y.data(), static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    back += (x[i] - y[i]) * (x[i] - y[i]);
    norm += x[i] * x[i];
  }
  EXPECT_LT(back, 0.01 * norm);
  EXPECT_GT(direct, 0.5 * norm);
}

TEST_F(Quantize, TiedModelsKeepTheirEmbeddingFiner) {
  write_model(in(), small_model(bf16, true));
  run(q4_0, true);
  EXPECT_EQ(GgufFile::open(out()).tensor("token_embd.weight").type, q8_0);
}

TEST_F(Quantize, DraftersRotateToo) {
  write_model(in(),
              {{"fc.weight", bf16, {64, 256}},
               {"blk.0.attn_q.weight", bf16, {64, 64}},
               {"blk.0.attn_conv_proj.weight", bf16, {32, 64}},
               {"blk.0.attn_conv_base", f32, {2, 2, 64}},
               {"selector_hidden.weight", bf16, {32, 64}},
               {"selector_successor.weight", bf16, {64, 32}}},
              "dflash");
  EXPECT_EQ(run(q4_0, true).n_rotated, 2);
  const GgufFile after = GgufFile::open(out());
  EXPECT_TRUE(is_rotated(after.tensor("fc.weight"), hadamard_stamp(after)));
  EXPECT_EQ(after.tensor("selector_successor.weight").type, q8_0);
  EXPECT_EQ(after.tensor("blk.0.attn_conv_proj.weight").type, q8_0);
}

TEST_F(Quantize, ThreadsDontChangeTheFile) {
  write_model(in(), {{"output.weight", bf16, {700, 1024}}, {"blk.0.attn_q.weight", bf16, {3, 700, 512}}});
  run(q4_0, true, 1);
  const std::vector<uint8_t> one = test::read_file(out());
  run(q4_0, true, 3);
  EXPECT_EQ(test::read_file(out()), one);
}

TEST_F(Quantize, UnfitSourcesAreRefused) {
  write_model(in(), small_model(q4_0));
  expect_refusal({"in.gguf", "token_embd.weight", "q4_0"});
  EXPECT_EQ(run(f16).n_tensors, 14);  // floats hold what it has
  std::filesystem::remove(out());
  write_model(in(), {{"blk.0.attn_q.weight", bf16, {4, 48}}});
  expect_refusal({"blk.0.attn_q.weight", "multiple of 32", "[4, 48]"}, true);
  write_model(in(), {{"output.weight", bf16, {4, 64}}});
  expect_refusal({"no matrix"}, true);
  test::write_file(in(), std::vector<uint8_t>(100, 7));
  expect_refusal({"in.gguf", "GGUF"});
}

TEST_F(Quantize, StampedSourcesAreRefused) {
  write_model(in(), small_model(bf16));
  run(q4_0, true);
  std::filesystem::rename(out(), in());
  expect_refusal({"Hadamard-rotated already"}, true);
  expect_refusal({"Hadamard-rotated already"}, false);
}

TEST_F(Quantize, ValuesThatCantBeStoredAreRefusedByName) {
  for (const float bad : {NAN, INFINITY, 1e6f}) {
    {
      GgufWriter writer(in());
      std::vector<float> values = random_values(512, 1);
      values[300] = bad;
      const int64_t shape[] = {2, 256};
      writer.declare("blk.0.attn_q.weight", f32, shape);
      writer.write("blk.0.attn_q.weight", {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4});
      writer.finish();
    }
    expect_refusal({"blk.0.attn_q.weight", "finite"});
    expect_refusal({"blk.0.attn_q.weight", "finite"}, true);
  }
  EXPECT_EQ(run(bf16).n_tensors, 1);  // 1e6 is fine there
}

TEST_F(Quantize, WrongWishesAreUsageErrors) {
  write_model(in(), small_model(bf16));
  test::expect_error(ErrorKind::usage, {"q3_k"}, [&] { run(q3_k); });
  test::expect_error(ErrorKind::usage, {"q8_0", "--hadamard"}, [&] { run(q8_0, true); });
  QuantizeOptions same;
  same.in = same.out = in();
  test::expect_error(ErrorKind::usage, {"another file"}, [&] { quantize(same); });
  EXPECT_EQ(GgufFile::open(in()).tensors().size(), 14u);
}

TEST_F(Quantize, ProgressGoesUpToTheWhole) {
  write_model(in(), small_model(bf16));
  int64_t last = -1, total = 0, calls = 0;
  progress_ = [&](const StreamProgress& p) {
    EXPECT_GE(p.bytes_done, last);
    EXPECT_EQ(p.n_tensors, 14);
    last = p.bytes_done;
    total = p.bytes_total;
    ++calls;
    return true;
  };
  run(q4_0);
  EXPECT_EQ(last, total);
  EXPECT_GT(calls, 14);
}

TEST_F(Quantize, StoppingLeavesNothing) {
  write_model(in(), small_model(bf16));
  progress_ = [](const StreamProgress& p) { return p.tensor < 5; };
  test::expect_error(ErrorKind::runtime, {"stopped"}, [&] { run(q4_0); });
  EXPECT_EQ(dir_.count(), 1u);
}

TEST_F(Quantize, AFullDiskLeavesNothing) {
  write_model(in(), small_model(bf16));
  const std::string message = test::error_on_full_disk(8192, [&] { run(q4_0); });
  EXPECT_NE(message.find("out.gguf"), std::string::npos) << message;
  EXPECT_NE(message.find("full"), std::string::npos) << message;
  EXPECT_EQ(dir_.count(), 1u);
}

}  // namespace
}  // namespace onebit
