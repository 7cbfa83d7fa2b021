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
  static const Kernels kTable = make_table();
  return &kTable;
}

}  // namespace onebit::cpu
