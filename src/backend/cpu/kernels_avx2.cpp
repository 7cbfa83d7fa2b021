// The kernel table for AVX2, FMA and F16C: the shared sources (*.inl) over this instruction set's vectors.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx2.h"
//
#include "backend/cpu/gemm.inl"
#include "backend/cpu/quantize.inl"
#include "backend/cpu/rows.inl"
#include "backend/cpu/unpack.inl"
//
#include "backend/cpu/table.inl"

namespace onebit::cpu {
namespace {

ONEBIT_TABLE(avx2)

}  // namespace

const Kernels* avx2_kernels() {
  static const Kernels kTable = make_table();
  return &kTable;
}

}  // namespace onebit::cpu
