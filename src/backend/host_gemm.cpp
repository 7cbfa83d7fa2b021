#include "backend/host_gemm.h"

#include "backend/cpu/dispatch.h"

namespace onebit {

void host_gemm(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_row, float* c, int64_t c_row,
               int64_t m, int64_t n, int64_t k, bool add) {
  static const cpu::GemmFn gemm = cpu::choose_kernels("").gemm_f32;
  gemm(a, a_row, a_col, b, b_row, c, c_row, m, n, k, add);
}

}  // namespace onebit
