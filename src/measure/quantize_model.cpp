#include "measure/quantize_model.h"

#include <filesystem>

#include "base/error.h"
#include "gguf/hadamard.h"
#include "measure/calibration.h"
#include "measure/hessian_file.h"
#include "model/drafter.h"

namespace onebit {
namespace {

Int4List measure_budget(const GgufFile& made, const ModelQuantizeOptions& options, std::vector<Int4Unit>& units) {
  auto file = std::make_unique<Model>(GgufFile::open(made.path()), W4a4::none);
  if (options.text_name.empty()) {
    units = measured_int4(*file);
  } else {
    LoadedModel model(std::move(file), options.measure, options.n_ctx);
    const TextChunks chunks =
        cut_text(model.model(), options.text, options.n_ctx, options.n_budget_chunks, options.text_name);
    units = measure_int4(model, chunks, [&](double share) {
      options.stop();
      if (options.on_budget) options.on_budget(share);
    });
  }
  keep_exact(units, *options.budget);
  Int4List list;
  for (const Int4Unit& unit : units) {
    if (!unit.exact) list.tensors.push_back(unit.tensor);
    list.measured.push_back(unit.tensor);
    list.divergence.push_back(static_cast<float>(unit.divergence));
  }
  return list;
}

/// A rotated file stays as it is but for its list.
QuantizeResult list_again(const GgufFile& file, const ModelQuantizeOptions& options, std::vector<Int4Unit>& units) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.file.in, options.file.out, ignored)) {
    fail(ErrorKind::usage, "{}: the output must be another file than the input", options.file.out);
  }
  QuantizeResult result;
  result.int4 = measure_budget(file, options, units);
  write_with_list(file, options.file.out, *result.int4);
  result.n_tensors = static_cast<int64_t>(file.tensors().size());
  for (const TensorInfo& tensor : file.tensors()) result.n_rotated += is_rotated(tensor, kHadamardBlock);
  result.bytes_in = file.file_bytes();
  result.bytes_out = GgufFile::open(options.file.out).file_bytes();
  return result;
}

}  // namespace

ModelQuantizeResult quantize_model(ModelQuantizeOptions options) {
  CHECK(options.stop);
  ModelQuantizeResult result;
  if (options.budget) {
    options.file.choose_int4 = [&](const GgufFile& made) { return measure_budget(made, options, result.units); };
  }
  GgufFile file = GgufFile::open(options.file.in);
  if (options.budget && !options.gptq && hadamard_stamp(file) != 0) {
    result.file = list_again(file, options, result.units);
    return result;
  }
  if (options.budget && !options.file.rotate) {
    fail(ErrorKind::usage, "{}: only rotated matrices use 4-bit activations: --w4a4-budget needs --hadamard {}",
         options.file.in, kHadamardBlock);
  }
  if (options.budget && options.text_name.empty()) {
    fail(ErrorKind::usage, "-f FILE is missing: --w4a4-budget reads a text");
  }
  if (!options.gptq) {
    result.file = quantize(options.file);
    return result;
  }
  check_source(file, options.file.type);
  if (is_drafter(file)) {
    refuse("{}: a drafter can't be run without its target: quantise it without --gptq", options.file.in);
  }
  Model model(std::move(file), W4a4::none);
  std::optional<TextChunks> chunks;
  std::unique_ptr<MomentSource> moments;
  if (options.hessians.empty()) {
    chunks = cut_text(model, options.text, options.n_ctx, options.n_chunks, options.text_name);
    moments = std::make_unique<TextMoments>(model, *chunks, options.measure, options.stop);
  } else {
    moments = std::make_unique<HessianFile>(options.hessians, model);
  }
  CalibrationOptions calibration;
  calibration.threads = options.measure.backend.n_threads;
  calibration.balance = options.balance;
  calibration.stop = options.stop;
  Calibration encoder(model.file(), *moments, calibration);
  options.file.encoder = &encoder;
  result.file = quantize(options.file);
  return result;
}

}  // namespace onebit
