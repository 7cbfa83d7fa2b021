// The walk over a file: choose, declare, then stream each tensor through the row encoder.
#include "convert/quantize.h"

#include <filesystem>
#include <vector>

#include "base/error.h"
#include "convert/file_type.h"
#include "convert/mixture.h"
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

StreamTensor stream_tensor(const GgufFile& file, const TensorInfo& tensor, const TensorChoice& choice) {
  StreamTensor out{tensor.name, choice, tensor.shape, {}, {}, [&file, &tensor] { file.release(tensor); }};
  if (choice.type == tensor.type && !choice.rotated) {
    out.raw = tensor.data;
  } else {
    out.rows = [&tensor](int64_t begin, int64_t end, float* rows) {
      decode_row(tensor.type, tensor.data.data() + begin * tensor.row_bytes(), rows, (end - begin) * tensor.n_cols());
    };
  }
  return out;
}

std::vector<StreamTensor> plan_tensors(const GgufFile& file, const QuantizeOptions& options) {
  const Mixture mixture{options.type, options.rotate, file.find(keys::kOutput) == nullptr};
  std::vector<StreamTensor> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    tensors.push_back(stream_tensor(file, tensor, choose_type(mixture, tensor, file.path())));
  }
  return tensors;
}

void copy_metadata(const GgufFile& file, const QuantizeOptions& options, GgufWriter& writer) {
  for (const MetaEntry& entry : file.metadata()) {
    if (!entry.key.starts_with("split.")) writer.add(entry.key, entry.value);
  }
  writer.add(keys::kFileType, file_type_id(options.type));
  writer.add(keys::kQuantizationVersion, kQuantizationVersionValue);
  if (options.rotate) writer.add(keys::kHadamard, static_cast<int32_t>(kHadamardBlock));
}

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options) {
  check_options(options);
  const GgufFile file = GgufFile::open(options.in);
  check_source(file);
  const std::vector<StreamTensor> tensors = plan_tensors(file, options);
  QuantizeResult result;
  for (const StreamTensor& tensor : tensors) result.n_rotated += tensor.choice.rotated;
  if (options.rotate && result.n_rotated == 0) refuse("{}: holds no matrix that --hadamard could rotate", options.in);

  GgufWriter writer(options.out);
  copy_metadata(file, options, writer);
  write_tensors(writer, tensors, {options.threads, options.progress, options.in});
  writer.finish([&](const GgufFile& made) {
    CHECK((hadamard_stamp(made) != 0) == options.rotate);
    check_hadamard_tensors(made);
  });
  result.n_tensors = static_cast<int64_t>(tensors.size());
  result.bytes_in = file.file_bytes();
  result.bytes_out = writer.written();
  return result;
}

}  // namespace onebit
