// The kernel table for AMX: that of AVX-512, but products of more than a few rows go by way of signed wide blocks.
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/unpack.inl"

namespace onebit::cpu {
namespace {

// Tokens up to which vpdpbusd on strips as they are is faster, since a single tile has to pay for the unpacking alone.
constexpr int64_t kMostDirect = kTileTokens;

}  // namespace

const Kernels* amx_kernels() {
  static const Kernels kTable = [] {
    Kernels table = *avx512_kernels();
    table.isa = "amx";
    table.enter_wide = enter_amx;
    table.leave_wide = leave_amx;
    for (int64_t& most : table.most_direct) most = most < kMostDirect ? most : kMostDirect;
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_amx;
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_amx;
    fill_unpack<0>(table);
    return table;
  }();
  return &kTable;
}

}  // namespace onebit::cpu
