// The kernel table for 64-bit Arm with the dot product instructions: the portable sources, which the compiler turns
// into NEON there, with products by sdot.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"

namespace onebit::cpu {

const Kernels* dotprod_kernels() {
  static const Kernels kTable = [] {
    Kernels table = *portable_kernels();
    table.isa = "dotprod";
    table.matmul[static_cast<int>(Strip::q4_0)] = matmul_q4_0_act_dotprod;
    table.matmul[static_cast<int>(Strip::q8_0)] = matmul_q8_0_act_dotprod;
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_dotprod;
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_dotprod;
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_dotprod;
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_dotprod;
    return table;
  }();
  return &kTable;
}

}  // namespace onebit::cpu
