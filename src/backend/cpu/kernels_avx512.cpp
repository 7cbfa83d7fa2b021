// The kernel table for AVX-512 F, BW, VL and VNNI: the shared sources (*.inl) over this instruction set's vectors.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/gemm.inl"
#include "backend/cpu/quantize.inl"
#include "backend/cpu/rows.inl"
#include "backend/cpu/unpack.inl"
//
#include "backend/cpu/table.inl"

namespace onebit::cpu {
namespace {

ONEBIT_TABLE(avx512)

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels kTable = [] {
    Kernels table = make_table();
    table.matmul[static_cast<int>(Strip::q4_k)] = matmul_q4_k_act_avx512;
    table.matmul[static_cast<int>(Strip::q5_k)] = matmul_q5_k_act_avx512;
    table.matmul[static_cast<int>(Strip::q6_k)] = matmul_q6_k_act_avx512;
    table.matmul[static_cast<int>(Strip::iq4_xs)] = matmul_iq4_xs_act_avx512;
    // One tile of tokens reads these as they lie; for several they are unpacked once.
    constexpr Strip kPacked[] = {Strip::q4_k, Strip::q5_k, Strip::q6_k, Strip::iq4_xs};
    for (const Strip form : kPacked) table.most_direct[static_cast<int>(form)] = kTileTokens;
    return table;
  }();
  return &kTable;
}

}  // namespace onebit::cpu
