// The kernel table for AVX2 with AVX-VNNI: that of AVX2 with products by vpdpbusd.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"

namespace onebit::cpu {

const Kernels* avxvnni_kernels() {
  static const Kernels kTable = [] {
    Kernels table = *avx2_kernels();
    table.isa = "avxvnni";
    table.matmul[static_cast<int>(Strip::q4_0)] = matmul_q4_0_act_avxvnni;
    table.matmul[static_cast<int>(Strip::q8_0)] = matmul_q8_0_act_avxvnni;
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_avxvnni;
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_avxvnni;
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_avxvnni;
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_avxvnni;
    return table;
  }();
  return &kTable;
}

}  // namespace onebit::cpu
