// Converted files against those of llama.cpp's converter: names, types, shapes and bytes of all tensors, and its keys.
// tests/golden/tiny/llama_converter.json lists them; README.md there tells how it was made.
#include <gtest/gtest.h>

#include "convert/labels.h"
#include "support/hf_drafter.h"
#include "support/measure_rig.h"

namespace onebit {
namespace {

uint64_t fnv1a(std::span<const uint8_t> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

/// "bf16 64x128 " and the hash of the bytes.
std::string describe(const TensorInfo& tensor) {
  std::string shape;
  for (const int64_t size : tensor.shape) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  return fmt::format("{} {} {:016x}", type_name(tensor.type), shape, fnv1a(tensor.data));
}

void expect_key(const GgufFile& file, const std::string& key, const nlohmann::json& value) {
  ASSERT_TRUE(file.has(key)) << key;
  if (value.is_string()) {
    EXPECT_EQ(file.require<std::string>(key), value.get<std::string>()) << key;
  } else if (value.is_boolean()) {
    EXPECT_EQ(file.require<bool>(key), value.get<bool>()) << key;
  } else if (value.is_number_float()) {
    EXPECT_EQ(file.require<float>(key), static_cast<float>(value.get<double>())) << key;
  } else if (value.is_array() && value.at(0).is_boolean()) {
    EXPECT_EQ(file.require<std::vector<bool>>(key), value.get<std::vector<bool>>()) << key;
  } else if (value.is_array()) {
    EXPECT_EQ(file.require<std::vector<int32_t>>(key), value.get<std::vector<int32_t>>()) << key;
  } else {
    EXPECT_EQ(file.require<uint32_t>(key), value.get<uint32_t>()) << key;
  }
}

/// Converts the folder and compares with what the other converter made of it.
void expect_same(const std::string& folder, const nlohmann::json& expected) {
  test::TempDir dir;
  ConvertOptions options;
  options.in = folder;
  options.out = dir.file("out.gguf");
  convert(options);
  const GgufFile file = GgufFile::open(options.out);
  EXPECT_EQ(file.tensors().size(), expected["tensors"].size()) << folder;
  for (const auto& [tensor, text] : expected["tensors"].items()) {
    const TensorInfo* ours = file.find(tensor);
    ASSERT_NE(ours, nullptr) << folder << " " << tensor;
    std::string found = describe(*ours), wanted = text.get<std::string>();
    if (tensor == "rope_freqs.weight") {  // that one is computed: the last bit of a power differs
      found.resize(found.rfind(' '));
      wanted.resize(wanted.rfind(' '));
    }
    EXPECT_EQ(found, wanted) << folder << " " << tensor;
  }
  for (const auto& [key, value] : expected["keys"].items()) expect_key(file, key, value);
}

nlohmann::json golden(const char* name) {
  return test::read_json(std::string(ONEBIT_SOURCE_DIR "/tests/golden/tiny/") + name);
}

TEST(ConverterGolden, FilesAreThoseOfLlamaCpp) {
  const nlohmann::json all = golden("llama_converter.json");
  ASSERT_EQ(all.size(), 6u);
  for (const auto& [name, expected] : all.items()) {
    expect_same(ONEBIT_SOURCE_DIR "/tests/golden/tiny/" + name, expected);
  }
}

TEST(ConverterGolden, ADraftersFileIsThatOfLlamaCpp) {
  test::TempDir dir;
  const test::HfDrafter drafter = test::hf_drafter_v1();
  const std::string folder = dir.file("checkpoint");
  std::filesystem::create_directory(folder);
  test::write_json(folder + "/config.json", drafter.config);
  test::write_safetensors(folder + "/model.safetensors", drafter.arrays);
  const nlohmann::json expected = golden("llama_converter_drafter.json");
  ASSERT_EQ(expected["tensors"].size(), drafter.arrays.size());
  expect_same(folder, expected);
}

TEST(Labels, TitlesAndSizes) {
  EXPECT_EQ(title_of("qwen3_moe"), "Qwen3_Moe");
  EXPECT_EQ(title_of("Qwen3-8B-instruct-v1.5"), "Qwen3 8B Instruct v1.5");
  EXPECT_EQ(title_of("smollm2-135m"), "Smollm2 135m");
  EXPECT_EQ(size_label({180928, 180928, 0, 0}), "181K");
  EXPECT_EQ(size_label({4022468096, 4022468096, 0, 0}), "4.0B");
  EXPECT_EQ(size_label({0, 120000, 40000, 8}), "8x160K");
  EXPECT_EQ(size_label({26895998464, 0, 0, 0}), "27B");
}

}  // namespace
}  // namespace onebit
