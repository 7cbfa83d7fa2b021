// The kernel table for plain C++: the shared sources (*.inl) over this instruction set's vectors.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_portable.h"
//
#include "backend/cpu/gemm.inl"
#include "backend/cpu/quantize.inl"
#include "backend/cpu/rows.inl"
#include "backend/cpu/unpack.inl"
//
#include "backend/cpu/table.inl"

namespace onebit::cpu {
namespace {

ONEBIT_TABLE(portable)

}  // namespace

const Kernels* portable_kernels() {
  static const Kernels kTable = make_table();
  return &kTable;
}

}  // namespace onebit::cpu
