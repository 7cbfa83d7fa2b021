// Reading GGUF files: a good file, every way of breaking one, split files, typed metadata.
#include "gguf/file.h"

#include <gtest/gtest.h>

#include <limits>

#include "gguf/keys.h"
#include "gguf/writer.h"
#include "support/expect_error.h"
#include "support/gguf_bytes.h"
#include "support/temp_dir.h"

namespace onebit {
namespace {

using test::expect_refused;
using test::GgufBytes;

constexpr uint32_t kF32 = 0, kQ4_0 = 2;
constexpr uint32_t kU32 = 4, kI32 = 5, kBool = 7;

GgufFile parse(const GgufBytes& file) { return GgufFile::from_memory(file.bytes, "test.gguf"); }

void expect_bad(const GgufBytes& file, std::initializer_list<const char*> words) {
  expect_refused({"test.gguf"}, [&] { parse(file); });
  expect_refused(words, [&] { parse(file); });
}

/// A file with one entry and two tensors, a: [2, 4] f32 and b: [3, 64] q4_0.
GgufBytes good_file(uint32_t version = 3) {
  GgufBytes file;
  file.header(2, 1, version).entry("general.architecture", "qwen3");
  file.tensor("a", {4, 2}, kF32, 0).tensor("b", {64, 3}, kQ4_0, 32).data(32 + 3 * 36);
  return file;
}

TEST(GgufFile, ReadsBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const GgufBytes bytes = good_file(version);
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.architecture(), "qwen3");
    EXPECT_EQ(file.file_bytes(), bytes.bytes.size());
    ASSERT_EQ(file.tensors().size(), 2u);
    const TensorInfo& a = file.tensor("a");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(a.data.size(), 32u);
    EXPECT_EQ(a.data[31], 31);
    const TensorInfo* b = file.find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->type, BlockType::q4_0);
    EXPECT_EQ(b->n_cols(), 64);
    EXPECT_EQ(b->n_rows(), 3);
    EXPECT_EQ(b->row_bytes(), 36);
    EXPECT_EQ(b->data[0], 32);
    EXPECT_EQ(file.find("c"), nullptr);
    expect_refused({"c", "missing"}, [&] { file.tensor("c"); });
    file.release(a);  // harmless for a file in memory
  }
}

TEST(GgufFile, MovingKeepsViews) {
  const GgufBytes bytes = good_file();
  GgufFile first = parse(bytes);
  const GgufFile second = std::move(first);
  EXPECT_EQ(second.tensor("b").data.size(), 108u);
  EXPECT_TRUE(second.has("general.architecture"));
}

TEST(GgufFile, EveryTruncationIsRefused) {
  const GgufBytes whole = good_file();
  for (size_t size = 0; size < whole.bytes.size(); ++size) {
    const std::vector<uint8_t> part(whole.bytes.begin(), whole.bytes.begin() + static_cast<ptrdiff_t>(size));
    expect_refused({"cut.gguf"}, [&] { GgufFile::from_memory(part, "cut.gguf"); });
  }
}

TEST(GgufFile, EveryFlippedByteIsHarmless) {
  const GgufBytes whole = good_file();
  for (size_t i = 0; i < whole.bytes.size(); ++i) {
    for (const uint8_t mask : {0x01, 0x40, 0x80, 0xff}) {
      GgufBytes broken = whole;
      broken.bytes[i] ^= mask;
      try {
        const GgufFile file = parse(broken);
        for (const TensorInfo& tensor : file.tensors()) EXPECT_LE(tensor.data.size(), whole.bytes.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::refused);
      }
    }
  }
}

// --- header ---------------------------------------------------------------------------------------------------------

TEST(BrokenHeader, Magic) {
  GgufBytes file = good_file();
  file.bytes[0] = '\n';
  expect_bad(file, {"GGUF", "\\x0aGUF"});
}

TEST(BrokenHeader, Versions) {
  for (const uint32_t version : {1u, 4u, 77u}) expect_bad(good_file(version), {"version"});
  expect_bad(good_file(0x03000000), {"big-endian"});
  expect_bad(good_file(0), {"big-endian"});
}

TEST(BrokenHeader, CountsAreBoundedByTheFile) {
  for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
    GgufBytes tensors, entries;
    expect_bad(tensors.header(count, 0).data(64), {"tensors", "can't fit"});
    expect_bad(entries.header(0, count).data(64), {"metadata", "can't fit"});
  }
}

// --- metadata -------------------------------------------------------------------------------------------------------

TEST(BrokenMetadata, LengthsAreBoundedByTheFile) {
  GgufBytes key, text, array, strings, one_string;
  expect_bad(key.header(0, 1).put<uint64_t>(std::numeric_limits<uint64_t>::max()).data(64), {"key", "cut short"});
  expect_bad(text.header(0, 1).text("k").put<uint32_t>(8).put<uint64_t>(uint64_t{1} << 30).data(64), {"cut short"});
  expect_bad(array.header(0, 1).array("k", kU32, uint64_t{1} << 62).data(64), {"k", "can't fit"});
  expect_bad(strings.header(0, 1).array("k", 8, uint64_t{1} << 61).data(64), {"strings", "can't fit"});
  expect_bad(one_string.header(0, 1).array("k", 8, 1).put<uint64_t>(1000).data(64), {"cut short"});
}

TEST(BrokenMetadata, Keys) {
  GgufBytes empty, long_key, twice;
  expect_bad(empty.header(0, 1).entry<uint32_t>("", kU32, 1).data(64), {"metadata key"});
  expect_bad(long_key.header(0, 1).entry<uint32_t>(std::string(70000, 'k'), kU32, 1), {"65535", "70000"});
  expect_bad(twice.header(0, 2).entry<uint32_t>("k", kU32, 1).entry<uint32_t>("k", kU32, 2), {"k", "twice"});
}

TEST(BrokenMetadata, Types) {
  GgufBytes unknown, nested, element;
  expect_bad(unknown.header(0, 1).entry<uint32_t>("k", 13, 1).data(64), {"value type", "13"});
  expect_bad(nested.header(0, 1).array("k", 9, 1).put<uint32_t>(4).put<uint64_t>(0).data(64), {"arrays of arrays"});
  expect_bad(element.header(0, 1).array("k", 99, 1).data(64), {"value type", "99"});
}

TEST(BrokenMetadata, Alignment) {
  for (const uint32_t value : {0u, 1u, 4u, 33u, 131072u, 0x80000000u, 0xffffffe0u}) {
    GgufBytes file;
    expect_bad(file.header(0, 1).entry(keys::kAlignment, kU32, value), {"general.alignment", "power of two"});
  }
  GgufBytes negative, text, wide;
  expect_bad(negative.header(0, 1).entry<int32_t>(keys::kAlignment, kI32, -32), {"general.alignment"});
  expect_bad(text.header(0, 1).entry(keys::kAlignment, "32"), {"general.alignment", "string"});
  expect_bad(wide.header(0, 1).entry<uint64_t>(keys::kAlignment, 10, 32), {"general.alignment", "u64"});
}

TEST(GgufFile, OtherAlignments) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufBytes file;
    file.header(2, 1).entry<int32_t>(keys::kAlignment, kI32, static_cast<int32_t>(alignment));
    file.tensor("a", {1}, kF32, 0).tensor("b", {1}, kF32, alignment).data(alignment + 4, alignment);
    EXPECT_EQ(parse(file).tensor("b").data[0], static_cast<uint8_t>(alignment));
  }
}

// --- tensors --------------------------------------------------------------------------------------------------------

GgufBytes one_tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset = 0) {
  GgufBytes file;
  file.header(1, 0).tensor(name, dims, type, offset).data(256);
  return file;
}

TEST(BrokenTensor, Names) {
  expect_bad(one_tensor("", {4}, kF32), {"tensor name"});
  expect_bad(one_tensor(std::string(64, 'n'), {4}, kF32), {"tensor name", "63", "64"});
  EXPECT_EQ(parse(one_tensor(std::string(63, 'n'), {4}, kF32)).tensors().size(), 1u);
  GgufBytes twice;
  twice.header(2, 0).tensor("a", {4}, kF32, 0).tensor("a", {4}, kF32, 32).data(64);
  expect_bad(twice, {"a", "twice"});
}

TEST(BrokenTensor, Dimensions) {
  expect_bad(one_tensor("a", {}, kF32), {"dimensions", "0"});
  expect_bad(one_tensor("a", {1, 1, 1, 1, 1}, kF32), {"dimensions", "5"});
  expect_bad(one_tensor("a", {4, 0}, kF32), {"dimensions from 1"});
  expect_bad(one_tensor("a", {uint64_t{1} << 63}, kF32), {"dimensions from 1"});
  expect_bad(one_tensor("a", {uint64_t{1} << 32, uint64_t{1} << 32}, kF32), {"overflows"});
  expect_bad(one_tensor("a", {uint64_t{1} << 61}, kF32), {"overflows"});
  expect_bad(one_tensor("a", {4, uint64_t{1} << 40, uint64_t{1} << 40, 4}, kF32), {"overflows"});
}

TEST(BrokenTensor, RowsMustBeWholeBlocks) { expect_bad(one_tensor("a", {33, 2}, kQ4_0), {"a", "33", "32", "q4_0"}); }

TEST(BrokenTensor, UnknownTypes) {
  for (const uint32_t type : {4u, 5u, 31u, 38u, 43u, 100u, 0xffffffffu})
    expect_bad(one_tensor("a", {32}, type), {"unknown"});
}

TEST(BrokenTensor, Offsets) {
  expect_bad(one_tensor("a", {4}, kF32, 8), {"alignment"});
  expect_bad(one_tensor("a", {4}, kF32, 256), {"cut short"});
  expect_bad(one_tensor("a", {4}, kF32, 0xffffffffffffffe0u), {"cut short"});
  expect_bad(one_tensor("a", {64, 2}, kF32), {"cut short"});
  GgufBytes overlap, backwards, hole;
  expect_bad(overlap.header(2, 0).tensor("a", {16}, kF32, 0).tensor("b", {4}, kF32, 32).data(256),
             {"b", "before the end"});
  expect_bad(backwards.header(2, 0).tensor("a", {4}, kF32, 32).tensor("b", {4}, kF32, 0).data(256),
             {"b", "before the end"});
  hole.header(2, 0).tensor("a", {4}, kF32, 0).tensor("b", {4}, kF32, 128).data(256);
  EXPECT_EQ(parse(hole).tensor("b").data[0], 128);
}

TEST(GgufFile, NamesFromTheFileAreMadePrintable) {
  expect_bad(one_tensor("a\x1b[31m", {5}, kQ4_0), {"a\\x1b[31m"});
  EXPECT_EQ(printable(std::string(200, 'x')).size(), 103u);
}

// --- typed values ---------------------------------------------------------------------------------------------------

GgufBytes typed_file() {
  GgufBytes file;
  file.header(0, 12);
  file.entry<uint8_t>("u8", 0, 200)
      .entry<int8_t>("i8", 1, -3)
      .entry<uint16_t>("u16", 2, 60000)
      .entry<int16_t>("i16", 3, -300);
  file.entry<uint32_t>("u32", kU32, 4000000000u).entry<int32_t>("i32", kI32, 32).entry<float>("f32", 6, 0.5f);
  file.entry<uint8_t>("bool", kBool, 1).entry("string", "text").entry<uint64_t>("u64", 10, uint64_t{1} << 63);
  file.array("numbers", kI32, 3).put<int32_t>(1).put<int32_t>(-2).put<int32_t>(3);
  file.array("strings", 8, 3).text("a").text("").text("\xff\xfe");
  return file;
}

TEST(Values, IntegersConvertInRange) {
  const GgufBytes bytes = typed_file();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get<uint32_t>("u8"), 200u);
  EXPECT_EQ(file.get<int32_t>("i8"), -3);
  EXPECT_EQ(file.get<uint32_t>("u16"), 60000u);
  EXPECT_EQ(file.get<int64_t>("i16"), -300);
  EXPECT_EQ(file.get<uint32_t>("u32"), 4000000000u);
  EXPECT_EQ(file.get<uint32_t>("i32"), 32u);
  EXPECT_EQ(file.get<uint64_t>("u64"), uint64_t{1} << 63);
  EXPECT_EQ(file.get<float>("f32"), 0.5f);
  EXPECT_EQ(file.get<float>("i32"), 32.0f);
  EXPECT_EQ(file.get<double>("f32"), 0.5);
  EXPECT_EQ(file.get<bool>("bool"), true);
  EXPECT_EQ(file.get<uint32_t>("bool"), 1u);
  expect_refused({"u32", "i32", "4000000000"}, [&] { file.get<int32_t>("u32"); });
  expect_refused({"i8", "u32", "-3"}, [&] { file.get<uint32_t>("i8"); });
  expect_refused({"u64", "i64"}, [&] { file.get<int64_t>("u64"); });
}

TEST(Values, WrongTypesAndMissingKeysAreNamed) {
  const GgufBytes bytes = typed_file();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get<uint32_t>("absent"), std::nullopt);
  EXPECT_EQ(file.get_or<uint32_t>("absent", 7), 7u);
  EXPECT_EQ(file.require<std::string>("string"), "text");
  expect_refused({"absent", "u32", "missing"}, [&] { file.require<uint32_t>("absent"); });
  expect_refused({"string", "expected u32", "found string"}, [&] { file.get<uint32_t>("string"); });
  expect_refused({"f32", "expected u32", "found f32"}, [&] { file.get<uint32_t>("f32"); });
  expect_refused({"u8", "expected string", "found u8"}, [&] { file.get<std::string>("u8"); });
  expect_refused({"u8", "expected array"}, [&] { file.get<std::vector<uint32_t>>("u8"); });
  expect_refused({"numbers", "expected u32", "found array"}, [&] { file.get<uint32_t>("numbers"); });
  expect_refused({"strings", "expected u32", "found string"}, [&] { file.get<std::vector<uint32_t>>("strings"); });
  expect_refused({"numbers", "-2"}, [&] { file.get<std::vector<uint32_t>>("numbers"); });
  expect_refused({"numbers", "expected string"}, [&] { file.get_string_views("numbers"); });
}

TEST(Values, Arrays) {
  const GgufBytes bytes = typed_file();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get<std::vector<int32_t>>("numbers"), (std::vector<int32_t>{1, -2, 3}));
  EXPECT_EQ(file.get<std::vector<float>>("numbers"), (std::vector<float>{1, -2, 3}));
  EXPECT_EQ(file.get<std::vector<bool>>("numbers"), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(file.get<std::vector<std::string>>("strings"), (std::vector<std::string>{"a", "", "\xff\xfe"}));
  EXPECT_EQ(file.get_string_views("strings")->at(2), "\xff\xfe");
  EXPECT_EQ(file.get_string_views("absent"), std::nullopt);
  EXPECT_EQ(file.get_per_layer<int32_t>("numbers", 2), (std::vector<int32_t>{1, -2}));
  EXPECT_EQ(file.get_per_layer<int32_t>("i32", 3), (std::vector<int32_t>{32, 32, 32}));
  EXPECT_TRUE(file.get_per_layer<int32_t>("absent", 3).empty());
  expect_refused({"numbers", "4", "3"}, [&] { file.get_per_layer<int32_t>("numbers", 4); });
}

// --- files on disk --------------------------------------------------------------------------------------------------

TEST(GgufFile, UnusablePathsAreRefused) {
  const test::TempDir dir;
  test::write_file(dir.file("empty.gguf"), {});
  expect_refused({"absent.gguf"}, [&] { GgufFile::open(dir.file("absent.gguf")); });
  expect_refused({"empty.gguf", "empty"}, [&] { GgufFile::open(dir.file("empty.gguf")); });
  expect_refused({"no file"}, [&] { GgufFile::open(dir.path().string()); });
}

/// Part `no` of `count`, with a tensor tN of one row.
GgufBytes part(uint16_t no, uint16_t count, int32_t total) {
  GgufBytes file;
  file.header(1, 4).entry("general.architecture", "qwen3").entry("split.no", 2, no).entry("split.count", 2, count);
  file.entry("split.tensors.count", kI32, total).tensor(fmt::format("t{}", no), {4}, kF32, 0).data(16);
  return file;
}

TEST(SplitFiles, AllPartsAreFoundFromTheFirst) {
  const test::TempDir dir;
  for (uint16_t i = 0; i < 3; ++i) {
    test::write_file(dir.file(fmt::format("m-{:05}-of-00003.gguf", i + 1)), part(i, 3, 3).bytes);
  }
  const GgufFile file = GgufFile::open(dir.file("m-00001-of-00003.gguf"));
  ASSERT_EQ(file.tensors().size(), 3u);
  for (const TensorInfo& tensor : file.tensors()) {
    EXPECT_EQ(tensor.data[3], 3);
    file.release(tensor);
    EXPECT_EQ(tensor.data[3], 3);
  }
  EXPECT_EQ(file.file_bytes(), 3 * part(0, 3, 3).bytes.size());
}

TEST(SplitFiles, WrongSetsAreRefused) {
  const test::TempDir dir;
  const std::string first = dir.file("m-00001-of-00002.gguf"), second = dir.file("m-00002-of-00002.gguf");
  test::write_file(first, part(0, 2, 2).bytes);
  expect_refused({"m-00002-of-00002.gguf"}, [&] { GgufFile::open(first); });
  test::write_file(second, part(0, 2, 2).bytes);
  expect_refused({"expected part 2 of 2", "found part 1 of 2"}, [&] { GgufFile::open(first); });
  test::write_file(second, part(1, 3, 2).bytes);
  expect_refused({"expected part 2 of 2", "found part 2 of 3"}, [&] { GgufFile::open(first); });
  test::write_file(second, good_file().bytes);
  expect_refused({"split.no", "missing"}, [&] { GgufFile::open(first); });
  test::write_file(second, part(1, 2, 2).bytes);
  expect_refused({"first part"}, [&] { GgufFile::open(second); });
  EXPECT_EQ(GgufFile::open(first).tensors().size(), 2u);
  test::write_file(first, part(0, 2, 5).bytes);
  expect_refused({"split.tensors.count", "5", "2"}, [&] { GgufFile::open(first); });
  test::write_file(dir.file("renamed.gguf"), part(0, 2, 2).bytes);
  expect_refused({"-00001-of-00002.gguf"}, [&] { GgufFile::open(dir.file("renamed.gguf")); });
  const GgufBytes in_memory = part(0, 2, 2);
  expect_refused({"split"}, [&] { parse(in_memory); });
}

TEST(SplitFiles, ATensorInTwoPartsIsRefused) {
  const test::TempDir dir;
  GgufBytes second = part(1, 2, 2);
  for (size_t i = 0; i + 1 < second.bytes.size(); ++i) {
    if (second.bytes[i] == 't' && second.bytes[i + 1] == '1') second.bytes[i + 1] = '0';
  }
  test::write_file(dir.file("m-00001-of-00002.gguf"), part(0, 2, 2).bytes);
  test::write_file(dir.file("m-00002-of-00002.gguf"), second.bytes);
  expect_refused({"t0", "twice"}, [&] { GgufFile::open(dir.file("m-00001-of-00002.gguf")); });
}

TEST(Keys, TakeTheArchitecture) {
  EXPECT_EQ(keys::block_count("qwen35"), "qwen35.block_count");
  EXPECT_EQ(keys::rms_epsilon("llama"), "llama.attention.layer_norm_rms_epsilon");
  EXPECT_EQ(keys::block(12, keys::kAttnQ), "blk.12.attn_q.weight");
}

}  // namespace
}  // namespace onebit
