// The walk over a file: choose, declare, then stream each tensor through the row encoder.
#include "convert/quantize.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "convert/file_type.h"
#include "convert/importance.h"
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
  const bool has_mixtures = options.type == BlockType::q4_k || options.type == BlockType::q5_k;
  CHECK(options.finer == Finer::none || has_mixtures);
  CHECK(options.search || (options.importance.empty() && !options.encoder));
  if (options.rotate && options.type != BlockType::q4_0) {
    fail(ErrorKind::usage, "rotated matrices are q4_0: expected --type q4_0 with --hadamard, found {}", info.name);
  }
  for (const auto& [name, type] : options.wishes) {
    if (!type_info(type).encodable) fail(ErrorKind::usage, "type {} can't be written", type_name(type));
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out, ignored)) {
    fail(ErrorKind::usage, "{}: the output must be another file than the input", options.out);
  }
}

StreamTensor stream_tensor(const GgufFile& file, const TensorInfo& tensor, const TensorChoice& choice,
                           TensorEncoder* encoder) {
  StreamTensor out;
  out.name = tensor.name;
  out.choice = choice;
  out.shape = tensor.shape;
  out.release = [&file, &tensor] { file.release(tensor); };
  TensorEncoder* const changes = type_info(tensor.type).decodable ? encoder : nullptr;
  if (choice.type == tensor.type && !choice.rotated && !changes) {
    out.raw = tensor.data;
  } else {
    out.rows = [&tensor, changes](int64_t begin, int64_t end, float* rows) {
      decode_row(tensor.type, tensor.data.data() + begin * tensor.row_bytes(), rows, (end - begin) * tensor.n_cols());
      if (changes) changes->change_rows(tensor, begin, end, rows);
    };
  }
  if (changes) {
    out.begin = [&tensor, changes] { changes->begin_block(block_of(tensor.name)); };
    out.whole = [&tensor, choice, changes] { return changes->encode(tensor, choice); };
  }
  return out;
}

/// Squares of the tensor's inputs as its weights are stored: rotation mixes the channels of a block, so that each has
/// the block's mean.
const ChannelSquares* squares_for(Importance& importance, const TensorInfo& tensor, bool rotated) {
  ChannelSquares* squares = importance.find(tensor);
  if (!squares || !rotated) return squares;
  for (size_t i = 0; i < squares->mean.size(); i += kHadamardBlock) {
    float mean = 0;
    for (size_t j = i; j < i + kHadamardBlock; ++j) mean += squares->mean[j] / kHadamardBlock;
    std::fill_n(squares->mean.begin() + static_cast<int64_t>(i), kHadamardBlock, mean);
  }
  return squares;
}

std::vector<StreamTensor> plan_tensors(const GgufFile& file, const QuantizeOptions& options,
                                       std::optional<Importance>& importance) {
  Mixture mixture{options.type, options.rotate, false, options.wishes, options.finer};
  describe_model(file, mixture);
  std::vector<StreamTensor> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    tensors.push_back(stream_tensor(file, tensor, choose_type(mixture, tensor, file.path()), options.encoder));
    if (importance) tensors.back().squares = squares_for(*importance, tensor, tensors.back().choice.rotated);
  }
  if (options.encoder) {
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const StreamTensor& a, const StreamTensor& b) { return block_of(a.name) < block_of(b.name); });
  }
  return tensors;
}

void copy_metadata(const GgufFile& file, const QuantizeOptions& options, GgufWriter& writer) {
  for (const MetaEntry& entry : file.metadata()) {
    if (!entry.key.starts_with("split.")) writer.add(entry.key, entry.value);
  }
  writer.add(keys::kFileType, file_type_id(options.type, options.finer));
  writer.add(keys::kQuantizationVersion, kQuantizationVersionValue);
  if (options.rotate) writer.add(keys::kHadamard, static_cast<int32_t>(kHadamardBlock));
}

bool is_quantised(BlockType type) { return type_info(type).quantised; }

}  // namespace

void write_with_list(const GgufFile& made, const std::string& path, const Int4List& list) {
  GgufWriter writer(path);
  for (const MetaEntry& entry : made.metadata()) writer.add(entry.key, entry.value);
  writer.add(keys::kW4a4Tensors, list.tensors);
  writer.add(keys::kW4a4Measured, list.measured);
  writer.add(keys::kW4a4Divergence, list.divergence);
  for (const TensorInfo& tensor : made.tensors()) writer.declare(tensor.name, tensor.type, tensor.shape);
  for (const TensorInfo& tensor : made.tensors()) writer.write(tensor.name, tensor.data);
  writer.finish();
}

/// Only exact or nearly exact values may be quantised; a second rounding of coarse ones would be silently bad. Any may
/// be expanded to floats.
void check_source(const GgufFile& file, BlockType type) {
  if (hadamard_stamp(file) != 0) {
    refuse("{}: the file is Hadamard-rotated already; quantise the original f16, bf16, f32 or q8_0 file instead",
           file.path());
  }
  for (const TensorInfo& tensor : file.tensors()) {
    const TypeInfo& info = type_info(tensor.type);
    if (info.quantised && tensor.type != BlockType::q8_0 && (is_quantised(type) || !info.decodable)) {
      refuse("{}: tensor {}: expected f32, f16, bf16 or q8_0, found {}: quantise the original file instead",
             file.path(), printable(tensor.name), info.name);
    }
  }
}

QuantizeResult quantize(const QuantizeOptions& options) {
  check_options(options);
  const GgufFile file = GgufFile::open(options.in);
  check_source(file, options.type);
  std::optional<Importance> importance;
  if (!options.importance.empty()) importance = Importance::read(options.importance);
  const std::vector<StreamTensor> tensors = plan_tensors(file, options, importance);
  const bool known = std::any_of(tensors.begin(), tensors.end(), [](const StreamTensor& t) { return t.squares; });
  if (importance && !known) refuse("{}: knows none of the matrices of {}", options.importance, options.in);
  QuantizeResult result;
  for (const StreamTensor& tensor : tensors) result.n_rotated += tensor.choice.rotated;
  if (options.rotate && result.n_rotated == 0) refuse("{}: holds no matrix that --hadamard could rotate", options.in);

  GgufWriter writer(options.out);
  copy_metadata(file, options, writer);
  write_tensors(writer, tensors, {options.threads, options.progress, options.in, options.search});
  const auto check = [&](const GgufFile& made) {
    CHECK((hadamard_stamp(made) != 0) == options.rotate);
    check_hadamard_tensors(made);
  };
  if (options.choose_int4) {
    writer.review([&](const GgufFile& made) {
      check(made);
      result.int4 = options.choose_int4(made);
      write_with_list(made, options.out, *result.int4);
    });
  } else {
    writer.finish(check);
  }
  result.n_tensors = static_cast<int64_t>(tensors.size());
  result.bytes_in = file.file_bytes();
  result.bytes_out = writer.written();
  return result;
}

}  // namespace onebit
