// The kernel table for AMX: that of AVX-512, but products of more than a few rows are those of tiles of signed codes.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/unpack.inl"

namespace onebit::cpu {
namespace {

// One tile of tokens is multiplied while its strips are unpacked; for several, strips are unpacked once.
constexpr int64_t kMostDirect = kTileTokens;
constexpr int64_t kLeastRows = 9;  // of f32, to be split for tiles of bf16

void gemm_bf16(const float* a, int64_t a_row, int64_t a_col, const void* b, int64_t b_row, float* c, int64_t c_row,
               int64_t m, int64_t n, int64_t k, bool add) {
  if (m < kLeastRows || a_col != 1) {
    return avx512_kernels()->gemm_bf16(a, a_row, a_col, b, b_row, c, c_row, m, n, k, add);
  }
  gemm_bf16_amx(a, a_row, static_cast<const uint16_t*>(b), b_row, c, c_row, m, n, k, add);
}

}  // namespace

const Kernels* amx_kernels() {
  static const Kernels kTable = [] {
    Kernels table = *avx512_kernels();
    table.isa = "amx";
    table.enter = enter_amx;
    table.leave = leave_amx;
    table.enter_from = kLeastAmxTokens;
    for (int64_t& most : table.most_direct) most = most < kMostDirect ? most : kMostDirect;
    table.matmul[static_cast<int>(Strip::q4_0)] = matmul_q4_0_act_amx;
    table.matmul[static_cast<int>(Strip::q8_0)] = matmul_q8_0_act_amx;
    table.matmul[static_cast<int>(Strip::q4_k)] = matmul_q4_k_act_amx;
    table.matmul[static_cast<int>(Strip::q5_k)] = matmul_q5_k_act_amx;
    table.matmul[static_cast<int>(Strip::q6_k)] = matmul_q6_k_act_amx;
    table.matmul[static_cast<int>(Strip::iq4_xs)] = matmul_iq4_xs_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_amx;
    table.gemm_bf16 = gemm_bf16;
    fill_unpack<0>(table);
    return table;
  }();
  return &kTable;
}

}  // namespace onebit::cpu
