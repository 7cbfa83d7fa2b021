// The kernel table for AVX-512 F, BW, VL and VNNI: the shared sources (*.inl) over this instruction set's vectors.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/gemm.inl"
#include "backend/cpu/quantize.inl"
#include "backend/cpu/rows.inl"
#include "backend/cpu/soften_avx512.inl"
#include "backend/cpu/unpack.inl"
//
#include "backend/cpu/table.inl"

namespace onebit::cpu {
namespace {

ONEBIT_TABLE(avx512)

void soften_by_four(const Softmax& queries, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    soften_four(queries, i, [&queries](int64_t query, int64_t column, __m512 a, __m512 b) {
      float* to = queries.scores + query * 64 + column;
      _mm512_storeu_ps(to, a);
      _mm512_storeu_ps(to + 16, b);
    });
  }
}

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels kTable = [] {
    Kernels table = make_table();
    table.soften = soften_by_four;
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
