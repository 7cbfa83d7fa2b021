// The rule of types, as a short list of cases from the most special to the ordinary.
#include "convert/mixture.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "convert/tensor_encoder.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// Small or sensitive tensors that are never quantised.
bool stays_f32(const TensorInfo& tensor) {
  return tensor.shape.size() == 1 || !tensor.name.ends_with(".weight") ||
         ends_with_any(tensor.name, {"_norm.weight", keys::kFfnGateInp, keys::kFfnGateInpShexp, keys::kSsmConv1d});
}

/// Matrices of a drafter that are too small to gain and too sensitive to lose.
bool is_drafter_detail(std::string_view name) {
  return name.starts_with("selector_") || ends_with_any(name, {keys::kAttnConvProj, keys::kFfnConvProj});
}

bool is_float(BlockType type) { return !type_info(type).quantised; }

/// `type` where the rows allow it, else the next larger type that they allow.
BlockType fitting(BlockType type, int64_t n_cols) {
  if (n_cols % type_info(type).block_elems == 0) return type;
  if (n_cols % 32 != 0) return BlockType::f16;
  if (type == BlockType::q4_k) return BlockType::q5_0;
  return type == BlockType::q5_k ? BlockType::q5_1 : BlockType::q8_0;
}

/// The output matrix decides among all tokens, so it takes more bits than the ordinary ones.
BlockType output_type(BlockType type) {
  const bool better = is_float(type) || type == BlockType::q8_0;
  return better ? type : BlockType::q6_k;
}

/// Types beside rotated matrices. q4_0 is reserved for those and for the embedding that is only looked up.
BlockType type_beside_rotated(const Mixture& mixture, const TensorInfo& tensor) {
  if (tensor.name == keys::kOutput || tensor.name.ends_with(keys::kNextnSharedHeadHead)) return BlockType::q6_k;
  if (tensor.name == keys::kTokenEmbd) return mixture.tied ? BlockType::q8_0 : BlockType::q4_0;
  if (tensor.name.ends_with(keys::kSsmOut) && tensor.n_cols() % 256 == 0) return BlockType::q5_k;
  return BlockType::q8_0;
}

/// Matrices that make attention's values, alone or with others.
bool makes_values(std::string_view name) {
  return ends_with_any(name, {keys::kAttnV, keys::kAttnQkv, ".attn_kv_b.weight"});
}

/// The first and the last eighth of n, and every third between.
bool wants_more_bits(int64_t i, int64_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

/// Values and ffn_down lose most.
BlockType finer_type(const Mixture& mixture, const TensorInfo& tensor) {
  const bool values = makes_values(tensor.name), down = tensor.name.find(".ffn_down") != std::string::npos;
  if (!values && !down) return mixture.type;
  const std::vector<int64_t>& blocks = mixture.value_blocks;
  const int64_t block = block_of(tensor.name);
  const int64_t i = values ? std::lower_bound(blocks.begin(), blocks.end(), block) - blocks.begin() : block;
  const int64_t n = values ? static_cast<int64_t>(blocks.size()) : mixture.n_block;
  if (mixture.finer == Finer::medium) return wants_more_bits(i, n) ? BlockType::q6_k : mixture.type;
  const bool first = i < (values ? 4 : n / 8);
  return mixture.type == BlockType::q4_k && first ? BlockType::q5_k : mixture.type;
}

BlockType plain_type(const Mixture& mixture, const TensorInfo& tensor) {
  if (tensor.name == keys::kOutput || tensor.name.ends_with(keys::kNextnSharedHeadHead))
    return output_type(mixture.type);
  if (tensor.name == keys::kTokenEmbd && mixture.tied) return output_type(mixture.type);
  if (is_drafter_detail(tensor.name) && !is_float(mixture.type)) return BlockType::q8_0;
  return mixture.finer == Finer::none ? mixture.type : finer_type(mixture, tensor);
}

bool is_integer(BlockType type) { return !type_info(type).quantised && !type_info(type).decodable; }

}  // namespace

int64_t block_of(std::string_view tensor) {
  if (!tensor.starts_with("blk.")) return -1;
  int64_t index = -1;
  std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), index);
  return index;
}

void describe_model(const GgufFile& file, Mixture& mixture) {
  mixture.tied = file.find(keys::kOutput) == nullptr;
  for (const TensorInfo& tensor : file.tensors()) {
    const int64_t block = block_of(tensor.name);
    mixture.n_block = std::max(mixture.n_block, block + 1);
    if (makes_values(tensor.name)) mixture.value_blocks.push_back(block);
  }
  std::sort(mixture.value_blocks.begin(), mixture.value_blocks.end());
}

TensorChoice choose_type(const Mixture& mixture, const TensorInfo& tensor, const std::string& file) {
  if (is_integer(tensor.type)) return {tensor.type, false};
  if (stays_f32(tensor)) return {BlockType::f32, false};
  for (const auto& [name, type] : mixture.wishes) {
    const bool rotated = mixture.rotate && type == BlockType::q4_0 && rotates(tensor.name);
    if (tensor.name.find(name) != std::string::npos && !rotated) return {fitting(type, tensor.n_cols()), false};
  }
  if (!mixture.rotate) return {fitting(plain_type(mixture, tensor), tensor.n_cols()), false};
  if (!rotates(tensor.name)) return {fitting(type_beside_rotated(mixture, tensor), tensor.n_cols()), false};
  if (tensor.n_cols() % kHadamardBlock != 0) {
    refuse("{}: tensor {} can't be rotated: expected rows of a multiple of {} elements, found {}", file,
           printable(tensor.name), kHadamardBlock, shape_text(tensor.shape));
  }
  return {BlockType::q4_0, true};
}

}  // namespace onebit
