// The walk over a checkpoint: recognise, plan the tensors, write keys and tokenizer, stream.
#include "convert/convert.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "convert/hf_keys.h"
#include "convert/hf_tensors.h"
#include "convert/labels.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

constexpr const char* kSizeLabel = "general.size_label";  // string, for readers of listings only

void check_type(BlockType type) {
  const BlockType allowed[] = {BlockType::f32, BlockType::f16, BlockType::bf16, BlockType::q8_0};
  if (std::find(std::begin(allowed), std::end(allowed), type) != std::end(allowed)) return;
  fail(ErrorKind::usage, "expected type f32, f16, bf16 or q8_0, found {}: convert to bf16, then use quantize",
       type_name(type));
}

std::vector<StreamTensor> stream_tensors(const std::vector<HfOutput>& outputs, const ConvertOptions& options) {
  const Mixture mixture{options.type};
  std::vector<StreamTensor> tensors;
  for (const HfOutput& output : outputs) {
    const TensorInfo shape{output.name, BlockType::f32, output.shape, {}};
    StreamTensor tensor;
    tensor.name = output.name;
    tensor.choice = choose_type(mixture, shape, options.in);
    tensor.shape = output.shape;
    tensor.rows = [&output](int64_t begin, int64_t end, float* out) { output.read_rows(begin, end, out); };
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

int64_t rows_of_embedding(const std::vector<HfOutput>& outputs) {
  for (const HfOutput& output : outputs) {
    if (output.name == keys::kTokenEmbd) return output.shape.front();
  }
  return 0;
}

ParameterCount count_parameters(const std::vector<HfOutput>& outputs) {
  ParameterCount count;
  int64_t experts = 0, n_tensor = 0;
  for (const HfOutput& output : outputs) {
    int64_t n = 1;
    for (const int64_t size : output.shape) n *= size;
    count.total += n;
    if (output.name.find("_exps.") == std::string::npos || output.shape.size() < 3) {
      count.shared += n;
      continue;
    }
    count.of_one_expert += n / output.shape[0];
    experts += output.shape[0];
    ++n_tensor;
  }
  if (n_tensor > 0) count.n_expert = experts / n_tensor;
  return count;
}

}  // namespace

ConvertResult convert(const ConvertOptions& options) {
  check_type(options.type);
  const HfModel model = read_hf_model(options.in);
  const Checkpoint checkpoint = Checkpoint::open(options.in);
  const HfOutputs outputs = plan_hf_tensors(checkpoint, model);
  const std::vector<StreamTensor> tensors = stream_tensors(outputs.tensors, options);

  ConvertResult result{model.architecture, static_cast<int64_t>(tensors.size()), outputs.n_mtp};
  GgufWriter writer(options.out);
  const std::string name = std::filesystem::absolute(options.in).lexically_normal().filename().string();
  writer.add(keys::kArchitecture, model.architecture);  // readers like to find it first
  result.tokenizer = write_hf_tokenizer(options.in, rows_of_embedding(outputs.tensors), writer);
  write_hf_keys(model, outputs.n_mtp, options.type, title_of(name), writer);
  writer.add(kSizeLabel, size_label(count_parameters(outputs.tensors)));
  write_tensors(writer, tensors, {options.threads, options.progress, options.in});
  writer.finish();
  result.bytes_out = writer.written();
  return result;
}

}  // namespace onebit
