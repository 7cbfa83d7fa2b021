// Fills the table of one instruction set from the shared kernels and its own tile kernels; included last by
// kernels_*.cpp.
#pragma once

namespace onebit::cpu {
namespace {

#define ONEBIT_TABLE(isa_name)                                                              \
  Kernels make_table() {                                                                    \
    Kernels table{};                                                                        \
    table.isa = #isa_name;                                                                  \
    table.most_direct[static_cast<int>(Strip::q4_0)] = kAnyTokens;                          \
    table.most_direct[static_cast<int>(Strip::q8_0)] = kAnyTokens;                          \
    table.matmul[static_cast<int>(Strip::q4_0)] = matmul_q4_0_act_##isa_name;               \
    table.matmul[static_cast<int>(Strip::q8_0)] = matmul_q8_0_act_##isa_name;               \
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_##isa_name;         \
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_##isa_name;         \
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_##isa_name; \
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_##isa_name; \
    fill_unpack<kQ8Bias>(table);                                                            \
    fill_rows(table);                                                                       \
    return table;                                                                           \
  }

void fill_rows(Kernels& table) {
  table.quantize = quantize;
  table.gemm_f32 = gemm<float>;
  table.gemm_f16 = gemm<F16>;
  table.gemm_bf16 = gemm<Bf16>;
  table.sum_squares = sum_squares;
  table.dot = dot;
  table.max = max_of;
  table.exp_sum = exp_sum;
  table.soften = soften;
  table.scale = scale;
  table.add = add;
  table.axpy = axpy;
  table.mul_scaled = mul_scaled;
  table.gate_scaled = gate_scaled;
  table.sigmoid_mul = sigmoid_mul;
  table.swiglu = swiglu;
  table.softcap = softcap;
  table.rotate = rotate;
  table.conv_silu = conv_silu;
  table.group_axpy = group_axpy;
  table.find_above = find_above;
  table.to_f16 = to_f16;
  table.from_f16 = from_f16;
  table.from_q8_columns = from_q8_columns;
  table.from_q8_blocks = from_q8_blocks;
  table.delta_step = delta_step;
}

}  // namespace
}  // namespace onebit::cpu
