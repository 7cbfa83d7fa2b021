// Converting checkpoints: the orders that change, names, keys, and what is refused. The whole models are held against
// Hugging Face's results elsewhere; here each transform is held against its definition.
#include "convert/convert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gguf/blocks.h"
#include "gguf/keys.h"
#include "support/expect_error.h"
#include "support/full_disk.h"
#include "support/hf_drafter.h"

namespace onebit {
namespace {

using nlohmann::json;
using test::counting_array;
using test::HfArray;
using Values = std::vector<float>;

std::string tiny(const std::string& model) { return ONEBIT_SOURCE_DIR "/tests/golden/tiny/" + model; }

class Convert : public ::testing::Test {
 protected:
  /// Starts from a tiny model: its config and arrays may then be changed.
  void take(const std::string& model) {
    config_ = test::read_json(tiny(model) + "/config.json");
    arrays_ = test::read_safetensors(tiny(model) + "/model.safetensors");
  }
  /// Writes config and arrays as a checkpoint and converts it.
  GgufFile run(BlockType type = BlockType::f32) {
    std::filesystem::create_directory(folder_);
    test::write_json(folder_ + "/config.json", config_);
    test::write_safetensors(folder_ + "/model.safetensors", arrays_);
    result_ = convert({folder_, out_, type, 2, {}});
    return GgufFile::open(out_);
  }
  void expect_refusal(std::initializer_list<const char*> words) {
    test::expect_refused(words, [&] { run(); });
    EXPECT_EQ(dir_.count(), 1u);  // only the checkpoint's folder
  }
  Values source(const std::string& name) const { return test::values_of(arrays_.at(name)); }

  test::TempDir dir_;
  const std::string folder_ = dir_.file("checkpoint"), out_ = dir_.file("out.gguf");
  json config_;
  std::map<std::string, HfArray> arrays_;
  ConvertResult result_;
};

Values values(const GgufFile& file, const std::string& name) {
  const TensorInfo& tensor = file.tensor(name);
  Values x(static_cast<size_t>(tensor.n_elements()));
  decode_row(tensor.type, tensor.data.data(), x.data(), tensor.n_elements());
  return x;
}

/// Rows of `x` in another order: row r is row from(r).
Values reordered(const Values& x, size_t n_cols, const std::function<size_t(size_t)>& from) {
  Values y;
  for (size_t r = 0; r < x.size() / n_cols; ++r) {
    const auto begin = x.begin() + static_cast<ptrdiff_t>(from(r) * n_cols);
    y.insert(y.end(), begin, begin + static_cast<ptrdiff_t>(n_cols));
  }
  return y;
}

Values plus_one(Values x) {
  for (float& v : x) v += 1;
  return x;
}

TEST_F(Convert, Qwen3KeepsEverythingAsItIs) {
  take("qwen3");
  const GgufFile file = run();
  EXPECT_EQ(file.architecture(), "qwen3");
  EXPECT_EQ(result_.n_tensors, static_cast<int64_t>(arrays_.size()));
  EXPECT_EQ(values(file, "blk.1.attn_q.weight"), source("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_EQ(values(file, "blk.2.ffn_norm.weight"), source("model.layers.2.post_attention_layernorm.weight"));
  EXPECT_EQ(values(file, "output_norm.weight"), source("model.norm.weight"));
  EXPECT_EQ(file.find("output.weight"), nullptr);
  EXPECT_EQ(file.tensor("blk.0.ffn_down.weight").shape, (std::vector<int64_t>{64, 128}));
  EXPECT_EQ(file.require<uint32_t>(keys::block_count("qwen3")), 3u);
  EXPECT_EQ(file.require<uint32_t>(keys::head_count_kv("qwen3")), 2u);
  EXPECT_EQ(file.require<uint32_t>(keys::key_length("qwen3")), 32u);
  EXPECT_EQ(file.require<float>(keys::rope_freq_base("qwen3")), 1e6f);
  EXPECT_EQ(file.require<float>(keys::rms_epsilon("qwen3")), 1e-6f);
  EXPECT_FALSE(file.has(keys::kTokenizerModel));
  EXPECT_FALSE(result_.tokenizer);
}

TEST_F(Convert, HybridNormsGetTheirOne) {
  take("qwen3_5");
  const GgufFile file = run();
  EXPECT_EQ(values(file, "blk.0.attn_norm.weight"), plus_one(source("model.layers.0.input_layernorm.weight")));
  EXPECT_EQ(values(file, "blk.3.attn_q_norm.weight"), plus_one(source("model.layers.3.self_attn.q_norm.weight")));
  EXPECT_EQ(values(file, "blk.1.post_attention_norm.weight"),
            plus_one(source("model.layers.1.post_attention_layernorm.weight")));
  EXPECT_EQ(values(file, "output_norm.weight"), plus_one(source("model.norm.weight")));
  EXPECT_EQ(values(file, "blk.0.ssm_norm.weight"), source("model.layers.0.linear_attn.norm.weight"));
}

TEST_F(Convert, ValueHeadsAreReordered) {
  take("qwen3_5");
  // 2 key heads, 6 value heads of 32: value head h of the file is (h % 2) * 3 + h / 2 of the checkpoint.
  config_["linear_num_value_heads"] = 6;
  const std::map<std::string, std::vector<int64_t>> shapes = {{"in_proj_qkv.weight", {320, 64}},
                                                              {"in_proj_z.weight", {192, 64}},
                                                              {"in_proj_a.weight", {6, 64}},
                                                              {"in_proj_b.weight", {6, 64}},
                                                              {"conv1d.weight", {320, 1, 4}},
                                                              {"A_log", {6}},
                                                              {"dt_bias", {6}},
                                                              {"out_proj.weight", {64, 192}}};
  for (const char* layer : {"0", "1", "2"}) {
    int start = 3;
    for (const auto& [name, shape] : shapes) {
      arrays_[std::string("model.layers.") + layer + ".linear_attn." + name] = counting_array(shape, start += 17);
    }
  }
  const GgufFile file = run();
  const std::string from = "model.layers.1.linear_attn.";
  const auto head = [](size_t h) { return h % 2 * 3 + h / 2; };
  const auto rows = [&](size_t r) { return head(r / 32) * 32 + r % 32; };
  const auto channels = [&](size_t r) { return r < 128 ? r : 128 + rows(r - 128); };
  EXPECT_EQ(values(file, "blk.1.attn_qkv.weight"), reordered(source(from + "in_proj_qkv.weight"), 64, channels));
  EXPECT_EQ(values(file, "blk.1.attn_gate.weight"), reordered(source(from + "in_proj_z.weight"), 64, rows));
  EXPECT_EQ(values(file, "blk.1.ssm_alpha.weight"), reordered(source(from + "in_proj_a.weight"), 64, head));
  EXPECT_EQ(values(file, "blk.1.ssm_beta.weight"), reordered(source(from + "in_proj_b.weight"), 64, head));
  EXPECT_EQ(values(file, "blk.1.ssm_dt.bias"), reordered(source(from + "dt_bias"), 1, head));
  EXPECT_EQ(values(file, "blk.1.ssm_conv1d.weight"), reordered(source(from + "conv1d.weight"), 4, channels));
  EXPECT_EQ(file.tensor("blk.1.ssm_conv1d.weight").shape, (std::vector<int64_t>{320, 4}));
  Values decay = reordered(source(from + "A_log"), 1, head);
  for (float& v : decay) v = -std::exp(v);
  EXPECT_EQ(values(file, "blk.1.ssm_a"), decay);
  const Values out = values(file, "blk.1.ssm_out.weight"), out_source = source(from + "out_proj.weight");
  for (size_t r = 0; r < 64; ++r) {
    for (size_t c = 0; c < 192; ++c) ASSERT_EQ(out[r * 192 + c], out_source[r * 192 + rows(c)]);
  }
}

TEST_F(Convert, HybridKeys) {
  take("qwen3_5_moe");
  const GgufFile file = run();
  const char* a = "qwen35moe";
  EXPECT_EQ(file.architecture(), a);
  EXPECT_EQ(file.require<uint32_t>(keys::ssm_conv_kernel(a)), 4u);
  EXPECT_EQ(file.require<uint32_t>(keys::ssm_state_size(a)), 32u);
  EXPECT_EQ(file.require<uint32_t>(keys::ssm_group_count(a)), 2u);
  EXPECT_EQ(file.require<uint32_t>(keys::ssm_time_step_rank(a)), 4u);
  EXPECT_EQ(file.require<uint32_t>(keys::ssm_inner_size(a)), 128u);
  EXPECT_EQ(file.require<uint32_t>(keys::full_attention_interval(a)), 4u);
  EXPECT_EQ(file.require<uint32_t>(keys::rope_dimension_count(a)), 8u);
  EXPECT_EQ(file.require<std::vector<int32_t>>(keys::rope_dimension_sections(a)), (std::vector<int32_t>{2, 1, 1, 0}));
  EXPECT_EQ(file.require<uint32_t>(keys::expert_count(a)), 8u);
  EXPECT_EQ(file.require<uint32_t>(keys::expert_used_count(a)), 2u);
  EXPECT_EQ(file.require<uint32_t>(keys::expert_feed_forward_length(a)), 32u);
  EXPECT_EQ(file.require<uint32_t>(keys::expert_shared_feed_forward_length(a)), 32u);
  EXPECT_FALSE(file.has(keys::feed_forward_length(a)));
  EXPECT_FALSE(file.has(keys::recurrent_layers(a)));
  EXPECT_EQ(file.tensor("blk.0.ffn_gate_inp_shexp.weight").shape, (std::vector<int64_t>{1, 64}));
}

TEST_F(Convert, IrregularLayersAreListed) {
  take("qwen3_next");
  config_["layer_types"] = {"linear_attention", "full_attention", "linear_attention", "full_attention"};
  std::map<std::string, HfArray> kept;
  for (auto& [name, array] : arrays_) {
    if (name.find("layers.1.") == std::string::npos) kept[name] = array;
  }
  arrays_ = kept;
  EXPECT_EQ(run().require<std::vector<bool>>(keys::recurrent_layers("qwen3next")),
            (std::vector<bool>{true, false, true, false}));
}

TEST_F(Convert, Qwen3NextProjectionsAreTakenApart) {
  take("qwen3_next");  // per key head: 32 q, 32 k, 64 v, 64 z
  const GgufFile file = run();
  const Values fused = source("model.layers.0.linear_attn.in_proj_qkvz.weight");
  Values q, k, v, z;
  for (size_t head = 0; head < 2; ++head) {
    const auto part = [&](size_t begin, size_t rows, Values& out) {
      const auto first = fused.begin() + static_cast<ptrdiff_t>((head * 192 + begin) * 64);
      out.insert(out.end(), first, first + static_cast<ptrdiff_t>(rows * 64));
    };
    part(0, 32, q);
    part(32, 32, k);
    part(64, 64, v);
    part(128, 64, z);
  }
  Values qkv = q;
  qkv.insert(qkv.end(), k.begin(), k.end());
  qkv.insert(qkv.end(), v.begin(), v.end());
  EXPECT_EQ(values(file, "blk.0.attn_qkv.weight"), qkv);
  EXPECT_EQ(values(file, "blk.0.attn_gate.weight"), z);
  EXPECT_EQ(values(file, "blk.0.ssm_ba.weight"), source("model.layers.0.linear_attn.in_proj_ba.weight"));
  EXPECT_EQ(values(file, "blk.0.ssm_dt.bias"), source("model.layers.0.linear_attn.dt_bias"));
}

TEST_F(Convert, ExpertsAreStacked) {
  take("qwen3_moe");
  const GgufFile file = run();
  EXPECT_EQ(file.tensor("blk.2.ffn_down_exps.weight").shape, (std::vector<int64_t>{8, 64, 32}));
  const Values stack = values(file, "blk.2.ffn_up_exps.weight"),
               fifth = source("model.layers.2.mlp.experts.5.up_proj.weight");
  EXPECT_TRUE(std::equal(fifth.begin(), fifth.end(), stack.begin() + 5 * 32 * 64));
}

TEST_F(Convert, FusedExpertsGiveTheSameFile) {
  take("qwen3_5_moe");
  run();
  const std::vector<uint8_t> apart = test::read_file(out_);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    HfArray gate_up{"BF16", {8, 64, 64}, {}}, down{"BF16", {8, 64, 32}, {}};
    for (int expert = 0; expert < 8; ++expert) {
      for (const char* role : {"gate_proj", "up_proj", "down_proj"}) {
        const auto node = arrays_.extract(prefix + std::to_string(expert) + "." + role + ".weight");
        HfArray& fused = role[0] == 'd' ? down : gate_up;
        fused.bytes.insert(fused.bytes.end(), node.mapped().bytes.begin(), node.mapped().bytes.end());
      }
    }
    arrays_[prefix + "gate_up_proj"] = gate_up;
    arrays_[prefix + "down_proj"] = down;
  }
  run();
  EXPECT_EQ(test::read_file(out_), apart);
}

TEST_F(Convert, LlamaPairsBecomeNeighbours) {
  take("llama");
  const GgufFile file = run();
  const auto from = [](size_t r) { return r / 32 * 32 + r % 2 * 16 + r % 32 / 2; };
  const std::string block = "model.layers.1.self_attn.";
  EXPECT_EQ(values(file, "blk.1.attn_q.weight"), reordered(source(block + "q_proj.weight"), 64, from));
  EXPECT_EQ(values(file, "blk.1.attn_k.weight"), reordered(source(block + "k_proj.weight"), 64, from));
  EXPECT_EQ(values(file, "blk.1.attn_v.weight"), source(block + "v_proj.weight"));
  // Wavelengths 2 pi 500000^(i/16) against 128 / 4 = 32 and 128 / 1: pairs 0 and 1 stay, 2 and 3 are mixed, the rest
  // are stretched by 8.
  const Values factors = values(file, "rope_freqs.weight");
  ASSERT_EQ(factors.size(), 16u);
  EXPECT_EQ(factors[0], 1);
  EXPECT_EQ(factors[1], 1);
  const double turns = 128 / (2 * M_PI * std::pow(500000.0, 2 / 16.0)), kept = (turns - 1) / 3;
  EXPECT_NEAR(factors[2], 1 / ((1 - kept) / 8 + kept), 1e-5);
  for (size_t i = 4; i < 16; ++i) EXPECT_EQ(factors[i], 8);
  EXPECT_FALSE(file.has(keys::rope_scaling_type("llama")));
}

TEST_F(Convert, YarnAndLinearScaling) {
  take("qwen3");
  config_["rope_parameters"] = {{"rope_type", "yarn"},
                                {"rope_theta", 1e6},
                                {"factor", 4.0},
                                {"original_max_position_embeddings", 128},
                                {"attention_factor", 1.5}};
  const GgufFile yarn = run();
  EXPECT_EQ(yarn.require<std::string>(keys::rope_scaling_type("qwen3")), "yarn");
  EXPECT_EQ(yarn.require<float>(keys::rope_scaling_factor("qwen3")), 4);
  EXPECT_EQ(yarn.require<uint32_t>(keys::rope_original_context("qwen3")), 128u);
  EXPECT_NEAR(yarn.require<float>(keys::rope_attn_factor("qwen3")), 1.5 / (1 + 0.1 * std::log(4.0)), 1e-6);
  config_.erase("rope_parameters");
  config_["rope_theta"] = 1e4;
  config_["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  const GgufFile linear = run();
  EXPECT_EQ(linear.require<std::string>(keys::rope_scaling_type("qwen3")), "linear");
  EXPECT_EQ(linear.require<float>(keys::rope_freq_base("qwen3")), 1e4f);
  config_["rope_scaling"] = {{"type", "longrope"}};
  std::filesystem::remove(out_);
  expect_refusal({"longrope"});
}

/// Adds an MTP head whose block looks like the full attention block 3.
void add_mtp(std::map<std::string, HfArray>& arrays) {
  std::map<std::string, HfArray> head;
  for (const auto& [name, array] : arrays) {
    const std::string prefix = "model.layers.3.";
    if (name.starts_with(prefix)) head["mtp.layers.0." + name.substr(prefix.size())] = array;
  }
  head["mtp.fc.weight"] = counting_array({64, 128}, 5);
  for (const char* name : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) {
    head[std::string("mtp.") + name + ".weight"] = counting_array({64}, 7);
  }
  arrays.merge(head);
}

TEST_F(Convert, MtpBlocksFollowTheTrunk) {
  take("qwen3_5");
  add_mtp(arrays_);
  const GgufFile file = run();
  EXPECT_EQ(result_.n_mtp, 1);
  EXPECT_EQ(file.require<uint32_t>(keys::block_count("qwen35")), 5u);
  EXPECT_EQ(file.require<uint32_t>(keys::nextn_predict_layers("qwen35")), 1u);
  EXPECT_EQ(values(file, "blk.4.nextn.eh_proj.weight"), source("mtp.fc.weight"));
  EXPECT_EQ(values(file, "blk.4.nextn.enorm.weight"), plus_one(source("mtp.pre_fc_norm_embedding.weight")));
  EXPECT_EQ(values(file, "blk.4.nextn.hnorm.weight"), plus_one(source("mtp.pre_fc_norm_hidden.weight")));
  EXPECT_EQ(values(file, "blk.4.nextn.shared_head_norm.weight"), plus_one(source("mtp.norm.weight")));
  EXPECT_EQ(values(file, "blk.4.attn_q.weight"), values(file, "blk.3.attn_q.weight"));
}

TEST_F(Convert, MtpBlocksOfMixturesHaveExpertsToo) {
  take("qwen3_5_moe");
  add_mtp(arrays_);
  const GgufFile file = run();
  EXPECT_EQ(file.require<uint32_t>(keys::nextn_predict_layers("qwen35moe")), 1u);
  size_t n_same = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.starts_with("blk.3.")) continue;
    EXPECT_EQ(values(file, "blk.4." + tensor.name.substr(6)), values(file, tensor.name)) << tensor.name;
    n_same += tensor.name.find("exp") != std::string::npos;
  }
  EXPECT_GE(n_same, 6u);  // routed and shared experts
  EXPECT_NE(file.find("blk.4.nextn.eh_proj.weight"), nullptr);
}

TEST_F(Convert, AnMtpHeadAloneKeepsItsPlace) {
  take("qwen3_5");
  add_mtp(arrays_);
  std::erase_if(arrays_, [](const auto& item) { return item.first.starts_with("model.layers."); });
  const GgufFile file = run();
  EXPECT_EQ(file.require<uint32_t>(keys::block_count("qwen35")), 5u);
  EXPECT_NE(file.find("blk.4.nextn.eh_proj.weight"), nullptr);
  EXPECT_EQ(file.find("blk.0.attn_norm.weight"), nullptr);
  EXPECT_NE(file.find("token_embd.weight"), nullptr);
}

TEST_F(Convert, VisionModelsGiveTheirTextPart) {
  take("qwen3_5");
  run();
  const std::vector<uint8_t> text_only = test::read_file(out_);
  std::map<std::string, HfArray> renamed;
  for (const auto& [name, array] : arrays_) {
    const bool inner = name.starts_with("model.");
    renamed[inner ? "model.language_model." + name.substr(6) : name] = array;
  }
  renamed["model.visual.blocks.0.attn.qkv.weight"] = counting_array({8, 8}, 0);
  arrays_ = renamed;
  config_ = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
             {"model_type", "qwen3_5"},
             {"vision_config", json::object()},
             {"text_config", config_}};
  run();
  EXPECT_EQ(test::read_file(out_), text_only);
}

TEST_F(Convert, TypesOfTheTensors) {
  take("qwen3_5_moe");
  for (const BlockType type : {BlockType::f16, BlockType::bf16, BlockType::q8_0}) {
    const GgufFile file = run(type);
    for (const char* name :
         {"token_embd.weight", "output.weight", "blk.0.ffn_up_exps.weight", "blk.0.ssm_out.weight"}) {
      EXPECT_EQ(file.tensor(name).type, type);
    }
    for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ssm_a", "blk.0.ssm_dt.bias", "blk.0.ssm_conv1d.weight",
                             "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight"}) {
      EXPECT_EQ(file.tensor(name).type, BlockType::f32) << name;
    }
  }
  test::expect_error(ErrorKind::usage, {"q4_0", "quantize"}, [&] { run(BlockType::q4_0); });
}

// --- drafters -------------------------------------------------------------------------------------------------------

class ConvertDrafter : public Convert {
 protected:
  void SetUp() override {
    test::HfDrafter drafter = test::hf_drafter();
    config_ = std::move(drafter.config);
    arrays_ = std::move(drafter.arrays);
  }
};

TEST_F(ConvertDrafter, NamesAndKeys) {
  const GgufFile file = run(BlockType::bf16);
  EXPECT_EQ(file.architecture(), "dflash");
  EXPECT_EQ(file.tensors().size(), arrays_.size());
  EXPECT_EQ(values(file, "fc.weight"), source("fc.weight"));
  EXPECT_EQ(values(file, "enc.output_norm.weight"), source("hidden_norm.weight"));
  EXPECT_EQ(values(file, "blk.1.attn_norm.weight"), source("layers.1.input_layernorm.weight"));
  EXPECT_EQ(values(file, "blk.1.ffn_norm.weight"), source("layers.1.post_attention_layernorm.weight"));
  EXPECT_EQ(values(file, "blk.0.attn_conv_base"), source("layers.0.attention_conv.base_kernel"));
  EXPECT_EQ(file.tensor("blk.0.attn_conv_base").shape, (std::vector<int64_t>{2, 2, 64}));
  EXPECT_EQ(file.tensor("blk.0.attn_conv_base").type, BlockType::f32);
  EXPECT_EQ(values(file, "blk.0.ffn_conv_proj.weight"), source("layers.0.mlp_conv.kernel_projection.weight"));
  EXPECT_EQ(values(file, "selector_successor.weight"), source("candidate_selector.successor_codebook"));
  EXPECT_EQ(values(file, "selector_hidden.weight"), source("candidate_selector.hidden_projection.weight"));
  EXPECT_EQ(file.require<std::vector<int32_t>>(keys::kDflashTargetLayers), (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(file.require<uint32_t>(keys::kDflashBlockSize), 8u);  // dflash_config wins over the top level
  EXPECT_EQ(file.require<uint32_t>(keys::kDflashConvGroupSize), 16u);
  EXPECT_EQ(file.require<uint32_t>(keys::kDflashSelectorTopK), 4u);
  EXPECT_EQ(file.require<float>(keys::kDflashLogitScale), 0.5f);
  EXPECT_EQ(file.require<uint32_t>(keys::kTokenizerMask), 39u);
  EXPECT_EQ(file.require<bool>(keys::attention_causal("dflash")), false);
  EXPECT_EQ(file.require<uint32_t>(keys::sliding_window("dflash")), 16u);
  EXPECT_EQ(file.require<std::vector<bool>>(keys::sliding_window_pattern("dflash")), (std::vector<bool>{true, false}));
}

TEST_F(ConvertDrafter, BothSpellingsOfCodebooks) {
  run();
  const std::vector<uint8_t> bare = test::read_file(out_);
  for (const char* name : {"candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"}) {
    arrays_[std::string(name) + ".weight"] = arrays_.extract(name).mapped();
  }
  run();
  EXPECT_EQ(test::read_file(out_), bare);
}

TEST_F(ConvertDrafter, VersionOneHasNoSelector) {
  std::erase_if(arrays_, [](const auto& item) { return item.first.find("selector") != std::string::npos; });
  config_["dflash_config"] = {{"target_layer_ids", {1, 5}}, {"mask_token_id", 39}};
  const GgufFile file = run();
  EXPECT_FALSE(file.has(keys::kDflashSelectorRank));
  EXPECT_EQ(file.require<uint32_t>(keys::kDflashBlockSize), 4u);  // from the top level
}

TEST_F(ConvertDrafter, NeighbouringRotaryPairsBecomeHalves) {
  config_["rope_is_neox_style"] = false;
  const GgufFile file = run();
  const auto from = [](size_t r) { return r / 32 * 32 + r % 32 % 16 * 2 + r % 32 / 16; };
  const std::string block = "layers.1.self_attn.";
  EXPECT_EQ(values(file, "blk.1.attn_q.weight"), reordered(source(block + "q_proj.weight"), 64, from));
  EXPECT_EQ(values(file, "blk.1.attn_k.weight"), reordered(source(block + "k_proj.weight"), 64, from));
  EXPECT_EQ(values(file, "blk.1.attn_q_norm.weight"), reordered(source(block + "q_norm.weight"), 1, from));
  EXPECT_EQ(values(file, "blk.1.attn_k_norm.weight"), reordered(source(block + "k_norm.weight"), 1, from));
  EXPECT_EQ(values(file, "blk.1.attn_v.weight"), source(block + "v_proj.weight"));
}

TEST_F(ConvertDrafter, AnUnusedEmbeddingStaysBehind) {
  arrays_["embed_tokens.weight"] = counting_array({40, 64}, 3);
  EXPECT_NE(run().find("token_embd.weight"), nullptr);
  config_["has_embed_tokens"] = false;
  EXPECT_EQ(run().find("token_embd.weight"), nullptr);
}

TEST_F(ConvertDrafter, MissingFieldsAreNamed) {
  config_["dflash_config"].erase("target_layer_ids");
  expect_refusal({"target_layer_ids"});
  config_["dflash_config"]["target_layer_ids"] = {1, -1};
  expect_refusal({"target_layer_ids", "-1"});
  config_["dflash_config"]["target_layer_ids"] = {1};
  config_["dflash_config"].erase("mask_token_id");
  expect_refusal({"mask_token_id"});
}

// --- refusals -------------------------------------------------------------------------------------------------------

TEST_F(Convert, UnknownModelsAreRefused) {
  take("qwen3");
  config_["model_type"] = "gpt_neo";
  expect_refusal({"model_type", "gpt_neo"});
  config_["model_type"] = 5;
  expect_refusal({"model_type", "string"});
  config_ = json::array();
  expect_refusal({"config.json", "JSON object"});
  take("qwen3");
  config_["hidden_act"] = "gelu";
  expect_refusal({"hidden_act", "gelu"});
  take("qwen3");
  config_["quantization_config"] = {{"quant_method", "fp8"}};
  expect_refusal({"quantization_config"});
  take("qwen3");
  config_["use_sliding_window"] = true;
  expect_refusal({"use_sliding_window"});
  take("qwen3_moe");
  config_["norm_topk_prob"] = false;
  expect_refusal({"norm_topk_prob"});
}

TEST_F(Convert, BadNumbersAreRefused) {
  take("qwen3");
  for (const json& bad : {json(-1), json(0), json(1.5), json("64"), json(1LL << 40), json(true)}) {
    take("qwen3");
    config_["hidden_size"] = bad;
    expect_refusal({"hidden_size"});
  }
  take("qwen3");
  config_.erase("num_attention_heads");
  expect_refusal({"num_attention_heads", "missing"});
  take("qwen3");
  config_["num_key_value_heads"] = 3;
  expect_refusal({"heads"});
  take("qwen3_5");
  config_["linear_num_value_heads"] = 3;
  expect_refusal({"value heads"});
}

TEST_F(Convert, TensorsWithoutAPlaceAreRefusedByName) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.3.mlp.up_proj.weight", "mtp.fc.weight",
                           "strange", "model.layers.x.mlp.up_proj.weight"}) {
    take("qwen3");
    arrays_[name] = counting_array({64, 64}, 0);
    expect_refusal({name, "no place"});
  }
}

TEST_F(Convert, WrongTensorsAreRefusedByName) {
  take("qwen3_5");
  arrays_["model.layers.0.linear_attn.in_proj_qkv.weight"] = counting_array({192, 64}, 0);
  expect_refusal({"in_proj_qkv", "[256, 64]", "[192, 64]"});
  take("qwen3_moe");
  arrays_.erase("model.layers.1.mlp.experts.3.up_proj.weight");
  expect_refusal({"block 1", "expert 3", "ffn_up_exps"});
  take("qwen3");
  arrays_["model.norm.weight"] = {"F8_E4M3", {64}, std::vector<uint8_t>(64)};
  expect_refusal({"model.norm.weight", "F8_E4M3"});
  take("qwen3");
  arrays_["model.norm.weight"] = counting_array({0}, 0);
  expect_refusal({"model.norm.weight", "sizes above 0"});
  take("qwen3");
  arrays_["model.norm.weight"].bytes[1] = 0x7f;
  arrays_["model.norm.weight"].bytes[0] = 0xc0;
  expect_refusal({"output_norm.weight", "finite", "nan"});
  take("qwen3");
  arrays_ = {{"model.visual.x", counting_array({4}, 0)}};
  expect_refusal({"no tensor of a text model"});
}

TEST_F(Convert, StoppingAndAFullDiskLeaveNothing) {
  take("qwen3");
  run();
  std::filesystem::remove(out_);
  ConvertOptions options{folder_, out_, BlockType::f32, 1, [](const StreamProgress& p) { return p.tensor < 3; }};
  test::expect_error(ErrorKind::runtime, {"stopped"}, [&] { convert(options); });
  EXPECT_EQ(dir_.count(), 1u);
  options.progress = {};
  const std::string message = test::error_on_full_disk(8192, [&] { convert(options); });
  EXPECT_NE(message.find("full"), std::string::npos) << message;
  EXPECT_EQ(dir_.count(), 1u);
}

// --- tokenizer ------------------------------------------------------------------------------------------------------

/// A byte-level tokenizer.json with two merges and two added tokens.
json small_tokenizer() {
  json vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}};
  json added = json::array();
  int id = 5;
  for (const char* text : {"<|end|>", "<think>"}) {
    added.push_back({{"id", id++},
                     {"content", text},
                     {"special", text[1] == '|'},
                     {"normalized", false},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false}});
  }
  const char* regex =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
      "\\s+(?!\\S)|\\s+";
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c"}}}}};
}

TEST_F(Convert, TokenizerAndTemplates) {
  take("qwen3");
  run();
  test::write_json(folder_ + "/tokenizer.json", small_tokenizer());
  test::write_json(folder_ + "/tokenizer_config.json",
                   {{"eos_token", "<|end|>"}, {"add_bos_token", false}, {"chat_template", "from the config"}});
  const GgufFile file = run();
  EXPECT_TRUE(result_.tokenizer);
  EXPECT_EQ(file.require<std::string>(keys::kTokenizerModel), "gpt2");
  EXPECT_EQ(file.require<std::string>(keys::kTokenizerPre), "qwen2");
  const auto tokens = file.require<std::vector<std::string>>(keys::kTokenizerTokens);
  const auto types = file.require<std::vector<int32_t>>(keys::kTokenizerTokenType);
  ASSERT_EQ(tokens.size(), 512u);  // one for each row of the embedding
  EXPECT_EQ(tokens[4], "abc");
  EXPECT_EQ(types[4], 1);
  EXPECT_EQ(types[5], 3);
  EXPECT_EQ(types[6], 4);
  EXPECT_EQ(types[7], 5);
  EXPECT_EQ(file.require<std::vector<std::string>>(keys::kTokenizerMerges), (std::vector<std::string>{"a b", "ab c"}));
  EXPECT_EQ(file.require<uint32_t>(keys::kTokenizerEos), 5u);
  EXPECT_EQ(file.require<bool>(keys::kTokenizerAddBos), false);
  EXPECT_EQ(file.require<std::string>(keys::kChatTemplate), "from the config");
}

TEST_F(Convert, TemplateFilesWinAndListsAreNamed) {
  take("qwen3");
  run();
  test::write_json(folder_ + "/tokenizer.json", small_tokenizer());
  test::write_json(folder_ + "/tokenizer_config.json",
                   {{"chat_template",
                     {{{"name", "default"}, {"template", "usual"}}, {{"name", "tool_use"}, {"template", "tools"}}}}});
  const GgufFile listed = run();
  EXPECT_EQ(listed.require<std::string>(keys::kChatTemplate), "usual");
  EXPECT_EQ(listed.require<std::string>("tokenizer.chat_template.tool_use"), "tools");
  EXPECT_EQ(listed.require<std::vector<std::string>>(keys::kChatTemplates), std::vector<std::string>{"tool_use"});
  std::ofstream(folder_ + "/chat_template.jinja") << "from the file";
  EXPECT_EQ(run().require<std::string>(keys::kChatTemplate), "from the file");
}

}  // namespace
}  // namespace onebit
