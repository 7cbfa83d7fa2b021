// Reading safetensors files: shards, and every way of breaking a file.
#include "convert/safetensors.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/hf_folder.h"

namespace onebit {
namespace {

using test::expect_refused;

class Safetensors : public ::testing::Test {
 protected:
  Checkpoint open() const { return Checkpoint::open(dir_.path().string()); }
  void expect_bad(const std::string& header, std::initializer_list<const char*> words) {
    test::write_safetensors(model_, header, std::vector<uint8_t>(16));
    expect_refused(words, [&] { open(); });
  }

  test::TempDir dir_;
  const std::string model_ = dir_.file("model.safetensors");
};

TEST_F(Safetensors, GivesTensorsByName) {
  test::write_safetensors(model_, {{"b", test::counting_array({2, 3}, 0)}, {"a", test::counting_array({}, 9)}});
  const Checkpoint checkpoint = open();
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  const HfTensor* b = checkpoint.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->type, BlockType::bf16);
  EXPECT_EQ(b->n_rows(), 2);
  EXPECT_EQ(b->data.size(), 12u);
  EXPECT_EQ(checkpoint.find("a")->n_elements(), 1);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  checkpoint.release(*b);
  EXPECT_EQ(b->data[1], test::counting_array({2, 3}, 0).bytes[1]);
}

TEST_F(Safetensors, TakesAnOnlyFileOfAnotherName) {
  test::write_safetensors(dir_.file("drafter.safetensors"), {{"a", test::counting_array({4}, 0)}});
  EXPECT_EQ(open().tensors().size(), 1u);
  test::write_safetensors(dir_.file("second.safetensors"), {{"a", test::counting_array({4}, 0)}});
  expect_refused({"model.safetensors", "2 files"}, [&] { open(); });
}

TEST_F(Safetensors, FoldersWithoutWeightsAreRefused) {
  expect_refused({"model.safetensors", "0 files"}, [&] { open(); });
  expect_refused({"absent", "folder"}, [&] { Checkpoint::open(dir_.file("absent")); });
}

TEST_F(Safetensors, BrokenLengths) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::vector<uint8_t> bytes(32, '{');
    std::memcpy(bytes.data(), &size, 8);
    test::write_file(model_, bytes);
    expect_refused({"header"}, [&] { open(); });
  }
  test::write_file(model_, std::vector<uint8_t>(5, 0));
  expect_refused({"header"}, [&] { open(); });
}

TEST_F(Safetensors, BrokenHeaders) {
  expect_bad("{not json", {"damaged"});
  expect_bad(R"({"a": {"dtype": )" + std::string(1000000, '['), {"levels"});
  expect_bad("[1, 2]", {"JSON object"});
  expect_bad(R"({"a": 3})", {"tensor a", "JSON object"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [2]}})", {"tensor a", "data_offsets"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 2, 4]}})", {"data_offsets"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [2], "data_offsets": ["0", 4]}})", {"data_offsets", "integers"});
  expect_bad(R"({"a": {"dtype": "Q7", "shape": [2], "data_offsets": [0, 4]}})", {"Q7"});
  expect_bad(R"({"a": {"dtype": 5, "shape": [2], "data_offsets": [0, 4]}})", {"dtype", "string"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]}})", {"impossible"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}})", {"impossible"});
  expect_bad(R"({"a": {"dtype": "BF16", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 2]}})", {"impossible"});
}

TEST_F(Safetensors, BrokenOffsets) {
  const auto header = [](int64_t begin, int64_t end) {
    return R"({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [)" + std::to_string(begin) + "," +
           std::to_string(end) + "]}}";
  };
  expect_bad(header(-4, 0), {"outside"});
  expect_bad(header(8, 4), {"outside"});
  expect_bad(header(14, 18), {"outside", "16 bytes"});
  expect_bad(header(INT64_MAX - 3, INT64_MAX), {"outside"});
  expect_bad(header(0, 6), {"needs 4 bytes", "6"});
  test::write_safetensors(model_, header(12, 16), std::vector<uint8_t>(16));
  EXPECT_EQ(open().tensors().size(), 1u);
}

TEST_F(Safetensors, EveryFlippedByteIsHarmless) {
  test::write_safetensors(model_, {{"b", test::counting_array({2, 3}, 0)}, {"a", test::counting_array({4}, 9)}});
  const std::vector<uint8_t> whole = test::read_file(model_);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const uint8_t mask : {0x01, 0x10, 0xff}) {
      std::vector<uint8_t> broken = whole;
      broken[i] ^= mask;
      test::write_file(model_, broken);
      try {
        const Checkpoint checkpoint = open();
        for (const auto& [name, tensor] : checkpoint.tensors()) EXPECT_LE(tensor.data.size(), whole.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::refused);
      }
    }
  }
}

TEST_F(Safetensors, ShardsAreOneCheckpoint) {
  test::write_safetensors(dir_.file("s1.safetensors"), {{"a", test::counting_array({4}, 0)}});
  test::write_safetensors(dir_.file("s2.safetensors"), {{"b", test::counting_array({4}, 0)}});
  const std::string index = dir_.file("model.safetensors.index.json");
  test::write_json(index, {{"weight_map", {{"a", "s1.safetensors"}, {"b", "s2.safetensors"}}}});
  EXPECT_EQ(open().tensors().size(), 2u);
  test::write_json(index, {{"weight_map", {{"a", "s1.safetensors"}, {"b", "s1.safetensors"}}}});
  expect_refused({"tensor b", "none of the shards"}, [&] { open(); });
  test::write_json(index, {{"weight_map", {{"a", "s3.safetensors"}}}});
  expect_refused({"s3.safetensors"}, [&] { open(); });
  test::write_safetensors(dir_.file("s2.safetensors"), {{"a", test::counting_array({4}, 0)}});
  test::write_json(index, {{"weight_map", {{"a", "s1.safetensors"}, {"b", "s2.safetensors"}}}});
  expect_refused({"tensor a", "twice"}, [&] { open(); });
}

TEST_F(Safetensors, AnIndexCantLeaveItsFolder) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "", "sub/x.safetensors"}) {
    test::write_json(dir_.file("model.safetensors.index.json"), {{"weight_map", {{"a", name}}}});
    expect_refused({"same folder"}, [&] { open(); });
  }
  test::write_json(dir_.file("model.safetensors.index.json"), {{"weight_map", {{"a", 5}}}});
  expect_refused({"string"}, [&] { open(); });
  test::write_json(dir_.file("model.safetensors.index.json"), {{"other", 5}});
  expect_refused({"weight_map"}, [&] { open(); });
}

}  // namespace
}  // namespace onebit
