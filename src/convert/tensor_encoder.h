// What a quantiser may know beyond a tensor's own values, such as how a model uses it. Implemented on a higher floor.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/mixture.h"

namespace onebit {

class TensorEncoder {
 public:
  virtual ~TensorEncoder() = default;
  /// Called before the first tensor of each block, in ascending order; -1: the tensors outside of blocks, first.
  virtual void begin_block(int64_t block) = 0;
  /// Changes rows [begin, end) of the source before they are rotated and encoded: rows [end - begin, n_cols]. Called
  /// from several threads.
  virtual void change_rows(const TensorInfo& tensor, int64_t begin, int64_t end, float* rows) const = 0;
  /// All bytes of the tensor in the chosen type, or none: the ordinary encoder does it.
  virtual std::vector<uint8_t> encode(const TensorInfo& tensor, const TensorChoice& choice) = 0;
};

/// The block of a tensor "blk.N....", -1 for others.
int64_t block_of(std::string_view tensor);

}  // namespace onebit
