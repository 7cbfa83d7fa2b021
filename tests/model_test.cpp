// Files that a model can't be made of are refused by name, with what was wanted and what was found; never a crash.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "model/drafter.h"
#include "model/model.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace onebit::test {
namespace {

using Change = std::function<void(GgufWriter&)>;

/// A copy of a file with other metadata and without the tensor `left_out`.
void rewrite(const std::string& from, const std::string& to, const Change& change, const std::string& left_out = "") {
  const GgufFile file = GgufFile::open(from);
  GgufWriter out(to);
  for (const MetaEntry& entry : file.metadata()) out.add(entry.key, entry.value);
  change(out);
  for (const TensorInfo& t : file.tensors()) {
    if (t.name != left_out) out.declare(t.name, t.type, t.shape);
  }
  for (const TensorInfo& t : file.tensors()) {
    if (t.name != left_out) out.write(t.name, t.data);
  }
  out.finish();
}

class ModelFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_target(dir_.file("target.gguf"), shape_);
    write_tiny_drafter(dir_.file("draft.gguf"), shape_, 2);
  }
  std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::refused) << error.what();
      return error.what();
    }
    return "accepted";
  }
  std::string target_refusal(const Change& change, const std::string& left_out = "") {
    rewrite(dir_.file("target.gguf"), dir_.file("changed.gguf"), change, left_out);
    return refusal([&] { Model::open(dir_.file("changed.gguf"), W4a4::automatic); });
  }
  std::string drafter_refusal(const Change& change, const std::string& left_out = "") {
    rewrite(dir_.file("draft.gguf"), dir_.file("changed.gguf"), change, left_out);
    const auto target = Model::open(dir_.file("target.gguf"), W4a4::automatic);
    return refusal([&] { Drafter::open(dir_.file("changed.gguf"), *target); });
  }

  TinyShape shape_;
  TempDir dir_;
};

void expect_names(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

const Change kNone = [](GgufWriter&) {};

TEST_F(ModelFiles, UnchangedCopiesAreAccepted) {
  EXPECT_EQ(target_refusal(kNone), "accepted");
  EXPECT_EQ(drafter_refusal(kNone), "accepted");
}

TEST_F(ModelFiles, NumbersOutOfRangeAreRefused) {
  const auto with = [&](const char* key, uint32_t value) {
    return target_refusal([&](GgufWriter& w) { w.add(std::string("qwen35.") + key, value); });
  };
  expect_names(with("block_count", 0), {"qwen35.block_count", "found 0"});
  expect_names(with("block_count", 4000000000u), {"qwen35.block_count", "4000000000"});
  expect_names(with("ssm.conv_kernel", 17), {"qwen35.ssm.conv_kernel", "16", "17"});
  expect_names(with("ssm.time_step_rank", 3), {"3 value heads", "2 key heads"});
  expect_names(with("attention.head_count", 3), {"blk.1.attn_q.weight", "[192, 64]", "[128, 64]"});
  expect_names(with("rope.dimension_count", 33), {"rope.dimension_count", "33"});
  expect_names(with("full_attention_interval", 0), {"full_attention_interval", "found 0"});
  expect_names(with("nextn_predict_layers", 4), {"MTP"});
  expect_names(with("embedding_length", 96), {"token_embd.weight", "[12, 96]", "[12, 64]"});
}

TEST_F(ModelFiles, UnknownKindsAreRefusedWithTheKnownOnes) {
  expect_names(target_refusal([](GgufWriter& w) { w.add("general.architecture", "mamba"); }),
               {"mamba", "qwen35", "llama"});
  expect_names(target_refusal([](GgufWriter& w) { w.add("qwen35.rope.scaling.type", "longrope"); }),
               {"longrope", "yarn"});
  expect_names(target_refusal([](GgufWriter& w) { w.add("onebit.hadamard_q4_0", int32_t{64}); }),
               {"Hadamard-rotated", "64"});
}

TEST_F(ModelFiles, MissingTensorsAreRefusedByName) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.ssm_a", "blk.3.attn_k_norm.weight"}) {
    expect_names(target_refusal(kNone, name), {name});
  }
  for (const char* name : {"fc.weight", "blk.1.attn_conv_base", "selector_successor.weight"}) {
    expect_names(drafter_refusal(kNone, name), {name});
  }
}

TEST_F(ModelFiles, DraftersThatDoNotFitAreRefused) {
  const auto with = [&](const char* key, uint32_t value) {
    return drafter_refusal([&](GgufWriter& w) { w.add(key, value); });
  };
  expect_names(with("dflash.block_size", 1), {"dflash.block_size", "found 1"});
  expect_names(with("dflash.block_size", 100000), {"dflash.block_size", "100000"});
  expect_names(with("dflash.selector_top_k", 13), {"13 candidates", "12"});
  expect_names(with("dflash.conv_group_size", 7), {"groups of 7"});
  expect_names(with("tokenizer.ggml.mask_token_id", 12), {"mask token 12"});
  expect_names(drafter_refusal([](GgufWriter& w) {
                 w.add("dflash.target_layers", std::vector<int32_t>{1, 5});
               }),
               {"after block 5", "4 blocks"});
  expect_names(drafter_refusal([](GgufWriter& w) {
                 w.add("dflash.target_layers", std::vector<int32_t>{0, 3});
               }),
               {"after block 0"});
}

}  // namespace
}  // namespace onebit::test
