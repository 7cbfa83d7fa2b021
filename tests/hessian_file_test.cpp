// Second moments in a file: quantising from it gives the bytes that the text gives, and files of other models or with
// impossible values are refused.
#include "measure/hessian_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "gguf/keys.h"
#include "gguf/writer.h"
#include "measure/calibration.h"
#include "measure/imatrix.h"
#include "support/expect_error.h"
#include "support/measure_rig.h"

namespace onebit {
namespace {

using test::kOneThread, test::no_progress, test::no_stop, test::random_text;

class Hessians : public test::Measure {
 protected:
  std::string write(const std::string& name) {
    auto model = Model::open(path(), W4a4::none);
    write_hessians(*model, chunks(random_text(40 * 32, 3)), kOneThread, "text", dir_.file(name), no_progress);
    return dir_.file(name);
  }
  /// A copy with one metadata value and one tensor's bytes changed; `drop` names a tensor that is left out.
  std::string change(const std::string& key, int32_t value, const std::string& tensor = "", int64_t at = 0,
                     std::vector<uint8_t> bytes = {}, const std::string& drop = "") {
    const GgufFile file = GgufFile::open(dir_.file("h.gguf"));
    GgufWriter writer(dir_.file("changed.gguf"));
    for (const MetaEntry& entry : file.metadata()) writer.add(entry.key, entry.value);
    if (!key.empty()) writer.add(key, value);
    for (const TensorInfo& t : file.tensors()) {
      if (t.name != drop) writer.declare(t.name, t.type, t.shape);
    }
    for (const TensorInfo& t : file.tensors()) {
      std::vector<uint8_t> data(t.data.begin(), t.data.end());
      if (t.name == tensor) std::copy(bytes.begin(), bytes.end(), data.begin() + at);
      if (t.name != drop) writer.write(t.name, data);
    }
    writer.finish();
    return dir_.file("changed.gguf");
  }
  void expect_refusal(std::initializer_list<const char*> words, const std::string& hessians) {
    ModelQuantizeOptions options = wish("out.gguf");
    options.gptq = true;
    options.hessians = hessians;
    test::expect_refused(words, [&] { quantize_model(options); });
    EXPECT_FALSE(std::filesystem::exists(options.file.out));
  }
};

TEST_F(Hessians, AFileGivesTheBytesOfItsText) {
  const std::string file = write("h.gguf");
  for (const bool rotate : {false, true}) {
    ModelQuantizeOptions options = wish("text.gguf");
    options.file.rotate = rotate;
    options.gptq = true;
    options.balance = 0.25;
    quantize_model(options);
    options.file.out = dir_.file("file.gguf");
    options.hessians = file;
    options.text.clear();
    quantize_model(options);
    EXPECT_EQ(test::read_file(dir_.file("file.gguf")), test::read_file(dir_.file("text.gguf"))) << rotate;
  }
}

TEST(HessiansOfExperts, AFileGivesTheBytesOfItsText) {
  test::TempDir dir;
  const std::string path = test::write_golden_model(dir, "qwen3_5_moe");
  Model model(GgufFile::open(path), W4a4::none);
  TextChunks chunks{16, {}, -1};
  for (int32_t i = 0; i < 32; ++i) chunks.tokens.push_back((i * 7 + 1) % static_cast<int32_t>(model.config().n_vocab));
  write_hessians(model, chunks, kOneThread, "text", dir.file("h.gguf"), no_progress);
  TextMoments text(model, chunks, kOneThread, no_stop);
  HessianFile file(dir.file("h.gguf"), model);
  QuantizeOptions options;
  options.in = path;
  options.rotate = true;
  CalibrationOptions calibration;
  calibration.threads = 1;
  calibration.balance = 0.25;
  calibration.stop = no_stop;
  for (MomentSource* source : {static_cast<MomentSource*>(&text), static_cast<MomentSource*>(&file)}) {
    Calibration encoder(model.file(), *source, calibration);
    options.encoder = &encoder;
    options.out = dir.file(source == &text ? "text.gguf" : "file.gguf");
    quantize(options);
  }
  EXPECT_EQ(test::read_file(dir.file("file.gguf")), test::read_file(dir.file("text.gguf")));
}

TEST_F(Hessians, EachInputIsStoredOnce) {
  const GgufFile file = GgufFile::open(write("h.gguf"));
  EXPECT_EQ(file.require<std::string>(keys::kType), "hessian");
  EXPECT_EQ(file.require<std::string>("hessian.architecture"), "qwen35");
  EXPECT_EQ(file.require<int32_t>("hessian.hadamard"), 0);
  EXPECT_EQ(file.require<uint32_t>("hessian.chunk_count"), 40u);
  EXPECT_EQ(file.require<uint32_t>("hessian.chunk_size"), 32u);
  const int64_t k = GgufFile::open(path()).tensor("blk.0.ffn_gate.weight").n_cols();
  const TensorInfo& sums = file.tensor("blk.0.ffn_gate.weight.in_moments");
  EXPECT_EQ(sums.shape, (std::vector<int64_t>{1, k * (k + 1) / 2}));
  EXPECT_EQ(file.find("blk.0.ffn_up.weight.in_moments"), nullptr);  // shares that of ffn_gate
  int64_t rows = 0;
  std::memcpy(&rows, file.tensor("blk.0.ffn_gate.weight.in_counts").data.data(), 8);
  EXPECT_EQ(rows, 40 * 32);
}

TEST_F(Hessians, TheDiagonalIsTheImportanceMatrix) {
  const GgufFile file = GgufFile::open(write("h.gguf"));
  auto model = Model::open(path(), W4a4::none);
  write_imatrix(*model, chunks(random_text(40 * 32, 3)), kOneThread, "text", dir_.file("im.gguf"), no_progress);
  const GgufFile squares = GgufFile::open(dir_.file("im.gguf"));
  const TensorInfo& moments = file.tensor("blk.1.ffn_down.weight.in_moments");
  const TensorInfo& sums = squares.tensor("blk.1.ffn_down.weight.in_sum2");
  const auto value = [](const TensorInfo& tensor, int64_t i) {
    float x;
    std::memcpy(&x, tensor.data.data() + i * 4, 4);
    return x;
  };
  const int64_t k = sums.n_cols();
  for (int64_t i = 0, at = 0; i < k; at += k - i, ++i) {
    EXPECT_NEAR(value(moments, at), value(sums, i), 1e-4f * value(sums, i)) << i;
  }
}

TEST_F(Hessians, FilesOfOthersAreRefused) {
  write("h.gguf");
  expect_refusal({"tiny.gguf", "imatrix --hessian"}, path());
  Model other(GgufFile::open(test::write_golden_model(dir_, "qwen3_5")), W4a4::none);
  TextChunks tokens{16, std::vector<int32_t>(16, 1), -1};
  write_hessians(other, tokens, kOneThread, "text", dir_.file("other.gguf"), no_progress);
  expect_refusal({"other.gguf", "another model's"}, dir_.file("other.gguf"));
  Model llama(GgufFile::open(test::write_golden_model(dir_, "llama")), W4a4::none);
  write_hessians(llama, tokens, kOneThread, "text", dir_.file("llama.gguf"), no_progress);
  expect_refusal({"llama.gguf", "qwen35 model", "found llama"}, dir_.file("llama.gguf"));
  expect_refusal({"changed.gguf", "not rotated", "32"}, change(hessian::kHadamard, 32));
  expect_refusal({"changed.gguf", "blk.0.ffn_gate.weight", "none"},
                 change("", 0, "", 0, {}, "blk.0.ffn_gate.weight.in_moments"));
}

TEST_F(Hessians, ValuesThatAreNoMomentsAreRefused) {
  write("h.gguf");
  const std::string sums = "blk.0.ffn_gate.weight.in_moments", counts = "blk.0.ffn_gate.weight.in_counts";
  expect_refusal({"changed.gguf", "finite"}, change("", 0, sums, 4, {0, 0, 0xc0, 0x7f}));          // NaN
  expect_refusal({"changed.gguf", "finite"}, change("", 0, sums, 0, {0, 0, 0x80, 0xbf}));          // -1 on the diagonal
  expect_refusal({"changed.gguf", "finite"}, change("", 0, counts, 4, {0xff, 0xff, 0xff, 0xff}));  // negative
}

TEST_F(Hessians, AnInterruptedRunLeavesNoFile) {
  auto model = Model::open(path(), W4a4::none);
  const size_t before = dir_.count();
  test::expect_error(ErrorKind::runtime, {"interrupted"}, [&] {
    write_hessians(*model, chunks(random_text(200, 2)), kOneThread, "text", dir_.file("h.gguf"), [](double share) {
      if (share > 0.5) fail(ErrorKind::runtime, "interrupted");
    });
  });
  EXPECT_EQ(dir_.count(), before);
}

}  // namespace
}  // namespace onebit
