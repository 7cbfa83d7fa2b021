// general.file_type: what the bulk of a file's matrices is. Informative only; readers go by the type of each tensor.
#pragma once

#include <cstdint>

#include "convert/mixture.h"
#include "gguf/types.h"

namespace onebit {

inline constexpr uint32_t kQuantizationVersionValue = 2;  // of the block formats that are written

/// The id of files made of `type`, one of the encodable types.
inline uint32_t file_type_id(BlockType type, Finer finer = Finer::none) {
  switch (type) {
    case BlockType::f16:
      return 1;
    case BlockType::q4_0:
      return 2;
    case BlockType::q4_1:
      return 3;
    case BlockType::q8_0:
      return 7;
    case BlockType::q5_0:
      return 8;
    case BlockType::q5_1:
      return 9;
    case BlockType::q4_k:
      return finer == Finer::medium ? 15 : 14;
    case BlockType::q5_k:
      return finer == Finer::medium ? 17 : 16;
    case BlockType::q6_k:
      return 18;
    case BlockType::bf16:
      return 32;
    default:
      return 0;  // f32
  }
}

}  // namespace onebit
