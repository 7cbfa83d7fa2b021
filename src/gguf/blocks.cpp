// Dispatch from a block type to its codec.
#include "gguf/blocks.h"

#include "base/error.h"
#include "gguf/block_codecs.h"

namespace onebit {
namespace {

codec::Decode* find_decoder(BlockType type) {
  switch (type) {
    case BlockType::f32:
      return codec::decode_f32;
    case BlockType::f16:
      return codec::decode_f16;
    case BlockType::bf16:
      return codec::decode_bf16;
    case BlockType::q4_0:
      return codec::decode_q4_0;
    case BlockType::q4_1:
      return codec::decode_q4_1;
    case BlockType::q5_0:
      return codec::decode_q5_0;
    case BlockType::q5_1:
      return codec::decode_q5_1;
    case BlockType::q8_0:
      return codec::decode_q8_0;
    case BlockType::q2_k:
      return codec::decode_q2_k;
    case BlockType::q3_k:
      return codec::decode_q3_k;
    case BlockType::q4_k:
      return codec::decode_q4_k;
    case BlockType::q5_k:
      return codec::decode_q5_k;
    case BlockType::q6_k:
      return codec::decode_q6_k;
    case BlockType::iq4_nl:
      return codec::decode_iq4_nl;
    case BlockType::iq4_xs:
      return codec::decode_iq4_xs;
    case BlockType::mxfp4:
      return codec::decode_mxfp4;
    default:
      return nullptr;
  }
}

codec::Encode* find_encoder(BlockType type) {
  switch (type) {
    case BlockType::f32:
      return codec::encode_f32;
    case BlockType::f16:
      return codec::encode_f16;
    case BlockType::bf16:
      return codec::encode_bf16;
    case BlockType::q4_0:
      return codec::encode_q4_0;
    case BlockType::q4_1:
      return codec::encode_q4_1;
    case BlockType::q5_0:
      return codec::encode_q5_0;
    case BlockType::q5_1:
      return codec::encode_q5_1;
    case BlockType::q8_0:
      return codec::encode_q8_0;
    case BlockType::q4_k:
      return codec::encode_q4_k;
    case BlockType::q5_k:
      return codec::encode_q5_k;
    case BlockType::q6_k:
      return codec::encode_q6_k;
    default:
      return nullptr;
  }
}

int64_t count_blocks(BlockType type, int64_t n) {
  const int64_t block_elems = type_info(type).block_elems;
  CHECK(n >= 0 && n % block_elems == 0);
  return n / block_elems;
}

}  // namespace

void decode_row(BlockType type, const uint8_t* src, float* dst, int64_t n) {
  codec::Decode* decode = find_decoder(type);
  if (!decode) refuse("tensor type {} is not supported: its values can't be decoded", type_name(type));
  decode(src, dst, count_blocks(type, n));
}

void encode_row(BlockType type, const float* src, uint8_t* dst, int64_t n) {
  codec::Encode* encode = find_encoder(type);
  if (!encode) fail(ErrorKind::usage, "tensor type {} can't be written", type_name(type));
  encode(src, dst, count_blocks(type, n));
}

void encode_row_search(BlockType type, const float* src, uint8_t* dst, int64_t n, const float* weights) {
  codec::EncodeSearch* search = type == BlockType::q4_0   ? codec::encode_q4_0_lanes
                                : type == BlockType::q4_1 ? codec::encode_q4_1_lanes
                                : type == BlockType::q5_0 ? codec::encode_q5_0_lanes
                                : type == BlockType::q5_1 ? codec::encode_q5_1_lanes
                                : type == BlockType::q4_k ? codec::encode_q4_k_lanes
                                : type == BlockType::q5_k ? codec::encode_q5_k_lanes
                                : type == BlockType::q6_k ? codec::encode_q6_k_lanes
                                                          : nullptr;
  if (search) return search(src, weights, dst, count_blocks(type, n));
  encode_row(type, src, dst, n);
}

}  // namespace onebit
