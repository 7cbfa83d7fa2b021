// The weights of a Hugging Face checkpoint: one safetensors file or several shards, mapped and checked.
// In: a folder, trusted in nothing. Out: tensors by name, in bounds and of consistent size.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/types.h"

namespace onebit {

struct HfTensor {
  std::string name;
  std::string dtype;              ///< as in the file: "BF16"
  std::optional<BlockType> type;  ///< f32, f16 or bf16; nothing for other dtypes
  std::vector<int64_t> shape;     ///< outermost first, each >= 0; empty for a scalar
  std::span<const uint8_t> data;  ///< lives as long as the Checkpoint

  int64_t n_elements() const;
  int64_t n_cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t n_rows() const { return n_cols() > 0 ? n_elements() / n_cols() : 0; }
};

class Checkpoint {
 public:
  /// Opens model.safetensors.index.json and its shards, or model.safetensors, or the folder's only .safetensors file.
  /// Throws Error(refused) naming what is wrong and where.
  static Checkpoint open(const std::string& folder);

  /// All tensors, sorted by name.
  const std::map<std::string, HfTensor>& tensors() const { return tensors_; }
  const HfTensor* find(const std::string& name) const;
  /// Tells the system that the tensor's pages need not stay resident.
  void release(const HfTensor& tensor) const;

 private:
  void add_file(const std::string& path);

  std::vector<MappedFile> files_;
  std::map<std::string, HfTensor> tensors_;
};

}  // namespace onebit
