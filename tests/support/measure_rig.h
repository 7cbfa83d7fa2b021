// What tests of measurements share: a tiny model with a text, and options that make every run the same.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/rng.h"
#include "convert/convert.h"
#include "measure/evaluation.h"
#include "measure/quantize_model.h"
#include "support/temp_dir.h"
#include "support/tiny_text_model.h"

namespace onebit::test {

inline const MeasureOptions kOneThread = {
    .device = "cpu", .backend = {.n_threads = 1, .isa = {}}, .cache = CacheType::f32};

inline void no_stop() {}
inline void no_progress(double) {}

inline std::string random_text(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>('a' + static_cast<int>(rng.uniform() * 20));
  return text;
}

class Measure : public ::testing::Test {
 protected:
  Measure() { write_tiny_text_model(path()); }
  std::string path() const { return dir_.file("tiny.gguf"); }
  TextChunks chunks(const std::string& text, int64_t n_ctx = 32, int64_t n = 0) {
    return cut_text(*Model::open(path(), W4a4::none), text, n_ctx, n, "text");
  }
  LoadedModel load(const std::string& file, W4a4Choice choice = W4a4::none) {
    return {Model::open(file, choice), kOneThread, 32};
  }
  ModelQuantizeOptions wish(const std::string& out) {
    ModelQuantizeOptions options;
    options.file.in = path();
    options.file.out = dir_.file(out);
    options.file.threads = 1;
    options.measure = kOneThread;
    options.text = random_text(40 * 32, 3);
    options.text_name = "text";
    options.n_ctx = 32;
    options.stop = no_stop;
    return options;
  }
  TempDir dir_;
};

/// One of tests/golden/tiny as an f32 file in `dir`; its path.
inline std::string write_golden_model(const TempDir& dir, const std::string& name) {
  ConvertOptions options;
  options.in = ONEBIT_SOURCE_DIR "/tests/golden/tiny/" + name;
  options.out = dir.file(name + ".gguf");
  options.type = BlockType::f32;
  convert(options);
  return options.out;
}

}  // namespace onebit::test
