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

/// `type` where the rows allow it, else the nearest type that they allow.
BlockType fitting(BlockType type, int64_t n_cols) {
  if (n_cols % type_info(type).block_elems == 0) return type;
  return n_cols % 32 == 0 ? BlockType::q8_0 : BlockType::f16;
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
  if (tensor.name.ends_with(keys::kSsmOut)) return BlockType::q5_k;
  return BlockType::q8_0;
}

BlockType plain_type(const Mixture& mixture, const TensorInfo& tensor) {
  if (tensor.name == keys::kOutput || tensor.name.ends_with(keys::kNextnSharedHeadHead))
    return output_type(mixture.type);
  if (tensor.name == keys::kTokenEmbd && mixture.tied) return output_type(mixture.type);
  if (is_drafter_detail(tensor.name) && !is_float(mixture.type)) return BlockType::q8_0;
  return mixture.type;
}

bool is_integer(BlockType type) { return !type_info(type).quantised && !type_info(type).decodable; }

}  // namespace

int64_t block_of(std::string_view tensor) {
  if (!tensor.starts_with("blk.")) return -1;
  int64_t index = -1;
  std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), index);
  return index;
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
