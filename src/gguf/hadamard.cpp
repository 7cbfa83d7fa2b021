// The Sylvester transform of 32 elements and the rule of which tensors carry it.
#include "gguf/hadamard.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

// Roles of blk.N.ROLE.weight, sorted. Experts are rotated along K like any matrix.
constexpr std::array<std::string_view, 24> kRotatedRoles = {
    "attn_gate",        "attn_k",        "attn_k_b",       "attn_kv_a_mqa", "attn_kv_b",     "attn_output",
    "attn_q",           "attn_q_a",      "attn_q_b",       "attn_qkv",      "attn_v",        "attn_v_b",
    "ffn_down",         "ffn_down_exps", "ffn_down_shexp", "ffn_gate",      "ffn_gate_exps", "ffn_gate_shexp",
    "ffn_gate_up_exps", "ffn_up",        "ffn_up_exps",    "ffn_up_shexp",  "ssm_alpha",     "ssm_beta"};
static_assert(std::is_sorted(kRotatedRoles.begin(), kRotatedRoles.end()));

/// The ROLE of "blk.N.ROLE.weight", empty for other names.
std::string_view block_role(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.", kSuffix = ".weight";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  name.remove_prefix(kPrefix.size());
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || name[digits] != '.') return {};
  name.remove_prefix(digits + 1);
  if (name.size() < kSuffix.size()) return {};
  name.remove_suffix(kSuffix.size());
  return name;
}

}  // namespace

void hadamard32(float* x, int64_t n) {
  CHECK(n % kHadamardBlock == 0);
  for (float* block = x; block < x + n; block += kHadamardBlock) {
    for (int stride = 1; stride < kHadamardBlock; stride *= 2) {
      for (int i = 0; i < kHadamardBlock; ++i) {
        if (i & stride) continue;
        const float a = block[i], b = block[i + stride];
        block[i] = a + b;
        block[i + stride] = a - b;
      }
    }
    for (int i = 0; i < kHadamardBlock; ++i) block[i] *= 0.17677669529663687f;  // 1 / sqrt(32)
  }
}

bool rotates(std::string_view tensor_name) {
  if (tensor_name == keys::kFc) return true;
  return std::binary_search(kRotatedRoles.begin(), kRotatedRoles.end(), block_role(tensor_name));
}

int64_t hadamard_stamp(const GgufFile& file) {
  const auto stamp = file.get<int64_t>(keys::kHadamard);
  if (!stamp) return 0;
  if (*stamp != kHadamardBlock) {
    refuse("{}: Hadamard-rotated with an unknown block: key {} is {}, only {} is supported", file.path(),
           keys::kHadamard, *stamp, kHadamardBlock);
  }
  return *stamp;
}

void check_hadamard_tensors(const GgufFile& file) {
  if (hadamard_stamp(file) == 0) return;
  for (const TensorInfo& tensor : file.tensors()) {
    const bool expected = tensor.type != BlockType::q4_0 || rotates(tensor.name) || tensor.name == keys::kTokenEmbd;
    if (!expected) {
      refuse(
          "{}: Hadamard-rotated file ({} = {}) holds tensor {} as q4_0, which is neither a rotated matrix nor {}: make "
          "the file with `1bit quantize --hadamard {}`",
          file.path(), keys::kHadamard, kHadamardBlock, printable(tensor.name), keys::kTokenEmbd, kHadamardBlock);
    }
  }
}

bool is_rotated(const TensorInfo& tensor, int64_t stamp) {
  return stamp == kHadamardBlock && tensor.type == BlockType::q4_0 && rotates(tensor.name);
}

}  // namespace onebit
