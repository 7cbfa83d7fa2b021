// Fills the table of one instruction set from the shared kernels and its own tile kernels; included last by
// kernels_*.cpp.
#pragma once

namespace onebit::cpu {
namespace {

#define ONEBIT_TABLE(isa_name)                                                              \
  Kernels make_table() {                                                                    \
    Kernels table{};                                                                        \
    table.isa = #isa_name;                                                                  \
    table.matmul[static_cast<int>(Strip::q4_0)] = matmul_q4_0_act_##isa_name;               \
    table.matmul[static_cast<int>(Strip::q8_0)] = matmul_q8_0_act_##isa_name;               \
    table.matmul_wide[static_cast<int>(Wide::by32)] = matmul_wide32_act_##isa_name;         \
    table.matmul_wide[static_cast<int>(Wide::by16)] = matmul_wide16_act_##isa_name;         \
    table.matmul_wide[static_cast<int>(Wide::by32_min)] = matmul_wide32_min_act_##isa_name; \
    table.matmul_wide[static_cast<int>(Wide::by16_min)] = matmul_wide16_min_act_##isa_name; \
    fill_unpack(table);                                                                     \
    fill_rows(table);                                                                       \
    return table;                                                                           \
  }

void fill_unpack(Kernels& table) {
#define ONEBIT_UNPACK(form) table.unpack[static_cast<int>(Strip::form)] = unpack_strip<Strip::form>
  ONEBIT_UNPACK(q4_0);
  ONEBIT_UNPACK(q4_1);
  ONEBIT_UNPACK(q5_0);
  ONEBIT_UNPACK(q5_1);
  ONEBIT_UNPACK(q8_0);
  ONEBIT_UNPACK(q2_k);
  ONEBIT_UNPACK(q3_k);
  ONEBIT_UNPACK(q4_k);
  ONEBIT_UNPACK(q5_k);
  ONEBIT_UNPACK(q6_k);
  ONEBIT_UNPACK(iq4_nl);
  ONEBIT_UNPACK(iq4_xs);
  ONEBIT_UNPACK(mxfp4);
#undef ONEBIT_UNPACK
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
  table.delta_step = delta_step;
}

}  // namespace
}  // namespace onebit::cpu
