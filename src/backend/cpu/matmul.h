// The tile kernels of each instruction set, the inner loops of every quantised matrix product. kernels.h (TileFn) says
// what they compute; a kernel's name is op_weight_activation_target.
#pragma once

#include <cstdint>

#include "backend/cpu/layout.h"

namespace onebit::cpu {

#define ONEBIT_TILES(isa)                                                                               \
  void matmul_q4_0_act_##isa(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block,      \
                             const TileOut& out);                                                       \
  void matmul_q8_0_act_##isa(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block,      \
                             const TileOut& out);                                                       \
  void matmul_wide32_act_##isa(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,     \
                               const TileOut& out);                                                     \
  void matmul_wide16_act_##isa(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,     \
                               const TileOut& out);                                                     \
  void matmul_wide32_min_act_##isa(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, \
                                   const TileOut& out);                                                 \
  void matmul_wide16_min_act_##isa(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, \
                                   const TileOut& out);
ONEBIT_TILES(portable)
ONEBIT_TILES(avx2)
ONEBIT_TILES(avxvnni)
ONEBIT_TILES(avx512)
ONEBIT_TILES(dotprod)
#undef ONEBIT_TILES

// AMX: registers are set up by enter_amx and given back by leave_amx. Wide blocks have signed codes
// (Kernels::wide_zero = 0).
constexpr int kLeastAmxTokens = 9;  // of strips: for fewer, vpdpbusd is as fast or faster, and is taken
void enter_amx();
void leave_amx();
#define ONEBIT_AMX(form)                                                                             \
  void matmul_##form##_act_amx(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, \
                               const TileOut& out);
ONEBIT_AMX(wide32)
ONEBIT_AMX(wide16)
ONEBIT_AMX(wide32_min)
ONEBIT_AMX(wide16_min)
ONEBIT_AMX(q4_0)
ONEBIT_AMX(q8_0)
ONEBIT_AMX(q4_k)
ONEBIT_AMX(q5_k)
ONEBIT_AMX(q6_k)
ONEBIT_AMX(iq4_xs)
#undef ONEBIT_AMX
/// As Kernels::gemm_bf16, of rows whose elements are neighbours; sets up its own registers. gemm_amx.cpp.
void gemm_bf16_amx(const float* a, int64_t a_row, const uint16_t* b, int64_t b_row, float* c, int64_t c_row, int64_t m,
                   int64_t n, int64_t k, bool add);

// Packed forms without the detour over wide blocks.
void matmul_q4_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out);
void matmul_q5_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out);
void matmul_q6_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out);
void matmul_iq4_xs_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out);

}  // namespace onebit::cpu
