// The walk over a file: choose, declare, then stream each tensor through the row encoder.
#include "convert/quantize.h"

#include <filesystem>
#include <vector>

#include "base/error.h"
#include "convert/file_type.h"
#include "convert/mixture.h"
#include "convert/row_encoder.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "gguf/writer.h"

namespace onebit {
namespace {

void check_options(const QuantizeOptions& options) {
  const TypeInfo& info = type_info(options.type);
  if (!info.encodable) fail(ErrorKind::usage, "type {} can't be written", info.name);
  if (options.rotate && options.type != BlockType::q4_0) {
    fail(ErrorKind::usage, "rotated matrices are q4_0: expected --type q4_0 with --hadamard, found {}", info.name);
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out, ignored)) {
    fail(ErrorKind::usage, "{}: the output must be another file than the input", options.out);
  }
}

/// Only exact or nearly exact values may be quantised; a second rounding of coarse ones would be silently bad.
void check_source(const GgufFile& file) {
  if (hadamard_stamp(file) != 0) {
    refuse("{}: the file is Hadamard-rotated already; quantise the original f16, bf16, f32 or q8_0 file instead",
           file.path());
  }
  for (const TensorInfo& tensor : file.tensors()) {
    const TypeInfo& info = type_info(tensor.type);
    if (info.quantised && tensor.type != BlockType::q8_0) {
      refuse("{}: tensor {}: expected f32, f16, bf16 or q8_0, found {}: quantise the original file instead",
             file.path(), printable(tensor.name), info.name);
    }
  }
}

std::vector<TensorChoice> choose_types(const GgufFile& file, const QuantizeOptions& options) {
  const Mixture mixture{options.type, options.rotate, file.find(keys::kOutput) == nullptr};
  std::vector<TensorChoice> choices;
  for (const TensorInfo& tensor : file.tensors()) choices.push_back(choose_type(mixture, tensor, file.path()));
  return choices;
}

void copy_metadata(const GgufFile& file, const QuantizeOptions& options, GgufWriter& writer) {
  for (const MetaEntry& entry : file.metadata()) {
    if (!entry.key.starts_with("split.")) writer.add(entry.key, entry.value);
  }
  writer.add(keys::kFileType, file_type_id(options.type));
  writer.add(keys::kQuantizationVersion, kQuantizationVersionValue);
  if (options.rotate) writer.add(keys::kHadamard, static_cast<int32_t>(kHadamardBlock));
}

/// Streams the tensors in order and reports as it goes.
class TensorStream {
 public:
  TensorStream(const GgufFile& file, const QuantizeOptions& options, GgufWriter& writer)
      : file_(file), options_(options), writer_(writer), pool_(options.threads) {
    for (const TensorInfo& tensor : file.tensors()) bytes_total_ += tensor.data.size();
  }

  void write(size_t index, const TensorChoice& choice) {
    const TensorInfo& tensor = file_.tensors()[index];
    report(index, 0);
    if (choice.type == tensor.type && !choice.rotated) {
      writer_.write(tensor.name, tensor.data);
    } else {
      encode(index, tensor, choice);
    }
    bytes_done_ += tensor.data.size();
    file_.release(tensor);
  }

  void report(size_t index, uint64_t bytes_of_tensor) const {
    if (!options_.progress) return;
    const auto n = static_cast<int64_t>(file_.tensors().size());
    const QuantizeProgress progress{static_cast<int64_t>(index), n, file_.tensors()[index].name,
                                    bytes_done_ + bytes_of_tensor, bytes_total_};
    if (!options_.progress(progress)) fail(ErrorKind::runtime, "{}: stopped; nothing was written", options_.out);
  }

 private:
  void encode(size_t index, const TensorInfo& tensor, const TensorChoice& choice) {
    uint64_t encoded = 0;
    const auto total = static_cast<uint64_t>(tensor.n_rows() * row_bytes(choice.type, tensor.n_cols()));
    const auto source = [&](int64_t begin, int64_t end, float* out) {
      decode_row(tensor.type, tensor.data.data() + begin * tensor.row_bytes(), out, (end - begin) * tensor.n_cols());
    };
    const auto sink = [&](std::span<const uint8_t> bytes) {
      writer_.write(tensor.name, bytes);
      encoded += bytes.size();
      report(index, static_cast<uint64_t>(static_cast<double>(encoded) / static_cast<double>(total) *
                                          static_cast<double>(tensor.data.size())));
    };
    encode_rows(pool_, choice, tensor.n_rows(), tensor.n_cols(), source, sink,
                file_.path() + ": tensor " + printable(tensor.name));
  }

  const GgufFile& file_;
  const QuantizeOptions& options_;
  GgufWriter& writer_;
  ThreadPool pool_;
  uint64_t bytes_done_ = 0, bytes_total_ = 0;
};

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options) {
  check_options(options);
  const GgufFile file = GgufFile::open(options.in);
  check_source(file);
  const std::vector<TensorChoice> choices = choose_types(file, options);
  QuantizeResult result;
  for (const TensorChoice& choice : choices) result.n_rotated += choice.rotated;
  if (options.rotate && result.n_rotated == 0) refuse("{}: holds no matrix that --hadamard could rotate", options.in);

  GgufWriter writer(options.out);
  copy_metadata(file, options, writer);
  for (size_t i = 0; i < choices.size(); ++i) {
    writer.declare(file.tensors()[i].name, choices[i].type, file.tensors()[i].shape);
  }
  TensorStream stream(file, options, writer);
  for (size_t i = 0; i < choices.size(); ++i) stream.write(i, choices[i]);
  writer.finish([&](const GgufFile& made) {
    CHECK((hadamard_stamp(made) != 0) == options.rotate);
    check_hadamard_tensors(made);
  });

  result.n_tensors = static_cast<int64_t>(choices.size());
  result.bytes_in = file.file_bytes();
  result.bytes_out = writer.written();
  return result;
}

}  // namespace onebit
