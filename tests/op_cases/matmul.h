// Cases of quantize, matmul and matmul_experts: every weight type, rotated and int4 inputs, mixed phases in one batch.
#pragma once

#include <algorithm>

namespace onebit::test {

struct MatmulSize {
  int32_t n_tok;
  int64_t n_out, n_in;
};

/// Euclidean norms of the rows of values [n, width].
inline std::vector<double> row_norms(const std::vector<float>& values, int64_t width) {
  std::vector<double> norms(values.size() / static_cast<size_t>(width));
  for (size_t i = 0; i < values.size(); ++i) {
    norms[i / static_cast<size_t>(width)] += static_cast<double>(values[i]) * values[i];
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

/// |x_r| |w_n| bounds the sum of the absolute products; quantised inputs are up to one step of their grid larger.
inline Bound matmul_bound(const std::vector<float>& x, const Weight& w) {
  const bool quantised = type_info(w.type).quantised;
  auto magnitude = [x_norms = row_norms(x, w.n_in()), w_norms = row_norms(decoded(w), w.n_in())](int64_t row,
                                                                                                 int64_t column) {
    return 1.2 * x_norms[static_cast<size_t>(row)] * w_norms[static_cast<size_t>(column)];
  };
  const double terms = static_cast<double>(quantised ? w.n_in() / 16 : w.n_in());
  return {quantised ? Tolerance::integer : Tolerance::reduction, terms, magnitude};
}

enum class Activation { int8, rotated_int8, rotated_int4 };

/// Rows of several sizes: all but the first eighth of each row are small, so that blocks have different scales.
inline std::vector<float> matmul_rows(Rng& rng, int64_t n, int64_t width) {
  std::vector<float> x = random_values(rng, n * width);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % static_cast<size_t>(width) > static_cast<size_t>(width) / 8) x[i] *= 0.1f;
  }
  return x;
}

/// The first batch is one prompt, the second a prompt and a decoding sequence side by side, the third a single row.
inline std::vector<TestBatch> mixed_phase_batches(int32_t n_tok) {
  std::vector<TestBatch> batches = {prompt_batch(n_tok)};
  if (n_tok > 1) {
    TestBatch mixed = prompt_batch(n_tok);
    mixed.sequences = {{.n_tok = n_tok / 2, .phase = Phase::prompt},
                       {.n_tok = n_tok - n_tok / 2, .pos = 7, .phase = Phase::verify, .slot = 1}};
    batches.push_back(mixed);
  }
  batches.push_back(prompt_batch(1, Phase::decode));
  return batches;
}

inline std::unique_ptr<OpRig> matmul_rig(BlockType type, MatmulSize size, Activation activation, Codes codes) {
  auto rig = std::make_unique<OpRig>("matmul", size.n_tok, static_cast<uint64_t>(type) + 100);
  TestWeight& made = rig->new_weight();
  set_random(made, rig->random(), "w", type, {size.n_out, size.n_in}, codes);
  made.weight.rotated = activation != Activation::int8;
  made.weight.prompt_int4 = activation == Activation::rotated_int4;
  const std::vector<float> rows = matmul_rows(rig->random(), rig->n_token(), size.n_in);
  Value x = rig->feed(size.n_in, rows);
  if (type_info(type).quantised) x = rig->plan.quantize(x, made.weight.input());
  rig->check("y", rig->plan.matmul(x, made.weight), matmul_bound(rows, made.weight));
  rig->finish();
  rig->batches = mixed_phase_batches(size.n_tok);
  return rig;
}

/// Inputs at and around the halves between two codes, and blocks that are zero, tiny, or one outlier.
inline std::unique_ptr<OpRig> rounding_rig(int32_t n_tok, bool int4, Int4Rule rule) {
  auto rig = std::make_unique<OpRig>("rounding", n_tok);
  constexpr int64_t n_in = 608;  // 19 blocks: more than a vector has lanes, and a rest
  const Weight& w = rig->random_weight(BlockType::q4_0, {19, n_in});
  std::vector<float> rows = random_values(rig->random(), rig->n_token() * n_in);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float grid = int4 ? 7 : 127, half = std::floor(rows[i] * grid / 4) + 0.5f;
    const float values[8] = {half, half,           std::nextafter(half, 0.0f), half, 0, rows[i] * 0x1p-104f,
                             half, rows[i] * 1e-3f};
    rows[i] = std::clamp(values[i / 32 % 8], -grid, grid);
    if (i % 32 == 9 && i / 32 % 8 < 4) rows[i] = i / 32 % 2 ? -grid : grid;  // makes the step exactly 1
    if (i % 32 == 9 && i / 32 % 8 == 7) rows[i] = 1e4f;
  }
  const Value x = rig->plan.quantize(rig->feed(n_in, rows), {.prompt_int4 = int4, .rule = rule});
  rig->check("y", rig->plan.matmul(x, w), matmul_bound(rows, w));
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1, Phase::decode)};
  return rig;
}

inline void add_matmul_case(OpCases& cases, BlockType type, MatmulSize size, Activation activation,
                            Codes codes = Codes::any) {
  constexpr const char* kActivations[] = {"", "_rotated", "_rotated_int4"};
  cases.push_back({fmt::format("matmul_{}_{}x{}x{}{}{}", type_name(type), size.n_tok, size.n_out, size.n_in,
                               kActivations[static_cast<int>(activation)], codes == Codes::extreme ? "_extreme" : ""),
                   [=] { return matmul_rig(type, size, activation, codes); }});
}

inline void add_matmul_cases(OpCases& cases) {
  constexpr MatmulSize kSmall[] = {{1, 1, 32},    {1, 33, 96},  {2, 3, 64},   {3, 17, 160}, {4, 16, 32},
                                   {5, 48, 224},  {7, 65, 96},  {8, 32, 64},  {9, 31, 96},  {16, 64, 128},
                                   {17, 33, 288}, {33, 19, 96}, {65, 35, 64}, {11, 18, 32}};
  constexpr MatmulSize kSuper[] = {{1, 1, 256},   {1, 33, 768},  {2, 3, 256},  {3, 17, 512},
                                   {5, 48, 256},  {8, 65, 256},  {9, 31, 256}, {17, 33, 768},
                                   {33, 19, 256}, {65, 35, 512}, {16, 20, 512}};
  for (const BlockType type : decodable_types()) {
    const bool super = type_info(type).block_elems == 256;
    for (const MatmulSize size : super ? std::span<const MatmulSize>(kSuper) : std::span<const MatmulSize>(kSmall)) {
      add_matmul_case(cases, type, size, Activation::int8);
    }
    add_matmul_case(cases, type, {1, 512, 1024}, Activation::int8);
    add_matmul_case(cases, type, {12, 256, 1024}, Activation::int8);
    if (type_info(type).quantised) {
      add_matmul_case(cases, type, {1, 17, 512}, Activation::int8, Codes::extreme);
      add_matmul_case(cases, type, {9, 65, 512}, Activation::rotated_int8, Codes::extreme);
      add_matmul_case(cases, type, {18, 33, 256}, Activation::rotated_int4);
    }
  }
  for (const MatmulSize size : kSmall) {
    add_matmul_case(cases, BlockType::q4_0, size, Activation::rotated_int8);
    add_matmul_case(cases, BlockType::q4_0, size, Activation::rotated_int4);
  }
  cases.push_back({"quantize_rounding_int8", [] { return rounding_rig(11, false, Int4Rule::amax); }});
  cases.push_back({"quantize_rounding_int4_amax", [] { return rounding_rig(11, true, Int4Rule::amax); }});
  cases.push_back({"quantize_rounding_int4_extreme", [] { return rounding_rig(11, true, Int4Rule::extreme); }});
  cases.push_back({"quantize_rounding_int4_search", [] { return rounding_rig(11, true, Int4Rule::search); }});
  add_matmul_case(cases, BlockType::q4_0, {40, 512, 1024}, Activation::rotated_int4, Codes::extreme);
}

}  // namespace onebit::test
