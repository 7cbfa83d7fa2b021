// Writing GGUF files: round trips of random files, and what remains after failures.
#include "gguf/writer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gguf/keys.h"
#include "support/expect_error.h"
#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace onebit {
namespace {

using Temporary = GgufWriter::Temporary;

std::vector<uint8_t> counting_bytes(size_t n, uint8_t start) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(start + i);
  return bytes;
}

TEST(GgufWriter, EveryKindOfValueReadsBack) {
  const test::TempDir dir;
  const std::string path = dir.file("out.gguf");
  {
    GgufWriter writer(path);
    writer.add("string", "text");
    writer.add("bool", true);
    writer.add("u16", uint16_t{65535});
    writer.add("u32", uint32_t{4000000000});
    writer.add("i32", int32_t{-32});
    writer.add("u64", uint64_t{1} << 63);
    writer.add("i64", -(int64_t{1} << 40));
    writer.add("f32", 0.1f);
    writer.add("bools", std::vector<bool>{true, false});
    writer.add("ints", std::vector<int32_t>{-1, 2});
    writer.add("unsigned", std::vector<uint32_t>{1, 2, 3});
    writer.add("floats", std::vector<float>{0.5f});
    writer.add("strings", std::vector<std::string>{"a", ""});
    writer.add("none", std::vector<std::string>{});
    writer.add("u32", uint32_t{5});  // replaces
    writer.add("gone", uint32_t{5});
    writer.remove("gone");
    writer.add(keys::kAlignment, uint32_t{64});
    writer.finish();
  }
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.metadata().size(), 14u);
  EXPECT_EQ(file.require<std::string>("string"), "text");
  EXPECT_EQ(file.require<bool>("bool"), true);
  EXPECT_EQ(file.require<uint32_t>("u16"), 65535u);
  EXPECT_EQ(file.require<uint32_t>("u32"), 5u);
  EXPECT_EQ(file.require<int32_t>("i32"), -32);
  EXPECT_EQ(file.require<uint64_t>("u64"), uint64_t{1} << 63);
  EXPECT_EQ(file.require<int64_t>("i64"), -(int64_t{1} << 40));
  EXPECT_EQ(file.require<float>("f32"), 0.1f);
  EXPECT_EQ(file.require<std::vector<bool>>("bools"), (std::vector<bool>{true, false}));
  EXPECT_EQ(file.require<std::vector<int32_t>>("ints"), (std::vector<int32_t>{-1, 2}));
  EXPECT_EQ(file.require<std::vector<uint32_t>>("unsigned"), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(file.require<std::vector<float>>("floats"), std::vector<float>{0.5f});
  EXPECT_EQ(file.require<std::vector<std::string>>("strings"), (std::vector<std::string>{"a", ""}));
  EXPECT_TRUE(file.require<std::vector<std::string>>("none").empty());
  EXPECT_FALSE(file.has("gone"));
  EXPECT_EQ(dir.count(), 1u);
}

struct RandomTensor {
  BlockType type;
  std::vector<int64_t> shape;
};

RC_GTEST_PROP(GgufWriterProperty, RandomFilesReadBack, ()) {
  const test::TempDir dir;
  const std::string path = dir.file("out.gguf");
  const auto values = *rc::gen::arbitrary<std::vector<int32_t>>();
  const auto texts = *rc::gen::arbitrary<std::vector<std::string>>();
  const auto type_gen =
      rc::gen::element(BlockType::f32, BlockType::f16, BlockType::q4_0, BlockType::q8_0, BlockType::q6_k);
  const auto dims_gen = rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 5));
  const auto n_tensors = *rc::gen::inRange(0, 6);
  std::vector<RandomTensor> tensors;
  for (int i = 0; i < n_tensors; ++i) {
    RandomTensor tensor{*type_gen, {}};
    std::vector<int> dims = *dims_gen;
    dims.resize(std::min<size_t>(dims.size(), 3));
    tensor.shape.assign(dims.begin(), dims.end());
    tensor.shape.push_back(*rc::gen::inRange(1, 4) * type_info(tensor.type).block_elems);
    tensors.push_back(tensor);
  }
  {
    GgufWriter writer(path, *rc::gen::element(Temporary::unnamed, Temporary::named));
    writer.add("values", values);
    writer.add("texts", texts);
    for (size_t i = 0; i < tensors.size(); ++i)
      writer.declare(fmt::format("t{}", i), tensors[i].type, tensors[i].shape);
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorInfo info{"", tensors[i].type, tensors[i].shape, {}};
      const auto bytes = counting_bytes(static_cast<size_t>(info.n_rows() * info.row_bytes()), static_cast<uint8_t>(i));
      const size_t cut = bytes.size() / 3;
      writer.write(fmt::format("t{}", i), std::span(bytes).first(cut));
      writer.write(fmt::format("t{}", i), std::span(bytes).subspan(cut));
    }
    writer.finish();
  }
  const GgufFile file = GgufFile::open(path);
  RC_ASSERT(file.require<std::vector<int32_t>>("values") == values);
  RC_ASSERT(file.require<std::vector<std::string>>("texts") == texts);
  RC_ASSERT(file.tensors().size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& read = file.tensors()[i];
    RC_ASSERT(read.type == tensors[i].type);
    RC_ASSERT(read.shape == tensors[i].shape);
    const auto bytes = counting_bytes(read.data.size(), static_cast<uint8_t>(i));
    RC_ASSERT(std::equal(bytes.begin(), bytes.end(), read.data.begin()));
  }
}

TEST(GgufWriter, CopiesValuesOfOtherFiles) {
  const test::TempDir dir;
  {
    GgufWriter writer(dir.file("a.gguf"));
    writer.add("strings", std::vector<std::string>{"x", "yz"});
    writer.add("number", uint16_t{7});
    writer.finish();
  }
  const GgufFile a = GgufFile::open(dir.file("a.gguf"));
  {
    GgufWriter writer(dir.file("b.gguf"));
    for (const MetaEntry& entry : a.metadata()) writer.add(entry.key, entry.value);
    writer.finish();
  }
  EXPECT_EQ(test::read_file(dir.file("a.gguf")), test::read_file(dir.file("b.gguf")));
}

TEST(GgufWriter, UnstorableTensorsAreErrors) {
  const test::TempDir dir;
  GgufWriter writer(dir.file("out.gguf"));
  const std::vector<std::vector<int64_t>> bad = {{}, {1, 1, 1, 1, 1}, {0}, {-1}, {int64_t{1} << 62, 4}};
  for (const auto& shape : bad) {
    test::expect_error(ErrorKind::usage, {"out.gguf"}, [&] { writer.declare("t", BlockType::f32, shape); });
  }
  const int64_t odd[] = {2, 33}, even[] = {2, 64};
  test::expect_error(ErrorKind::usage, {"32"}, [&] { writer.declare("t", BlockType::q4_0, odd); });
  test::expect_error(ErrorKind::usage, {"63"}, [&] { writer.declare(std::string(64, 'n'), BlockType::f32, even); });
  writer.declare("t", BlockType::q4_0, even);
  test::expect_error(ErrorKind::usage, {"twice"}, [&] { writer.declare("t", BlockType::q4_0, even); });
}

TEST(GgufWriter, AnUnfinishedFileLeavesNothing) {
  for (const Temporary temporary : {Temporary::unnamed, Temporary::named}) {
    const test::TempDir dir;
    test::write_file(dir.file("out.gguf"), counting_bytes(10, 0));
    {
      GgufWriter writer(dir.file("out.gguf"), temporary);
      const int64_t shape[] = {8};
      writer.declare("t", BlockType::f32, shape);
      writer.write("t", counting_bytes(16, 0));
      EXPECT_EQ(dir.count(), temporary == Temporary::named ? 2u : 1u);
    }
    EXPECT_EQ(dir.count(), 1u);
    EXPECT_EQ(test::read_file(dir.file("out.gguf")).size(), 10u);  // the earlier file is untouched
    GgufWriter writer(dir.file("out.gguf"), temporary);
    writer.add("k", uint32_t{1});
    writer.finish();
    EXPECT_EQ(dir.count(), 1u);
    EXPECT_TRUE(GgufFile::open(dir.file("out.gguf")).has("k"));
  }
}

TEST(GgufWriter, UnwritablePlacesAreErrors) {
  const test::TempDir dir;
  test::expect_error(ErrorKind::runtime, {"absent/out.gguf"}, [&] { GgufWriter writer(dir.file("absent/out.gguf")); });
  test::expect_error(ErrorKind::usage, {"folder"}, [&] { GgufWriter writer(dir.path().string()); });
}

TEST(GgufWriter, AFullDiskIsAClearErrorAndLeavesNothing) {
  for (const Temporary temporary : {Temporary::unnamed, Temporary::named}) {
    const test::TempDir dir;
    const std::string message = test::error_on_full_disk(4096, [&] {
      GgufWriter writer(dir.file("out.gguf"), temporary);
      const int64_t shape[] = {4096};
      writer.declare("t", BlockType::f32, shape);
      writer.write("t", counting_bytes(16384, 0));
      writer.finish();
    });
    EXPECT_NE(message.find("full"), std::string::npos) << message;
    EXPECT_EQ(dir.count(), 0u);
  }
}

TEST(GgufWriter, AKilledProcessLeavesNothing) {
  const test::TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    GgufWriter writer(dir.file("out.gguf"));
    const int64_t shape[] = {8};
    writer.declare("t", BlockType::f32, shape);
    writer.write("t", counting_bytes(16, 0));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(dir.count(), 0u);
}

}  // namespace
}  // namespace onebit
