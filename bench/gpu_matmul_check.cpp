// Checks of the products: every kernel, form and row count against sums made on the CPU in f64.
#include <cmath>
#include <functional>

#include "gpu_matmul_data.h"

namespace onebit::gpu {
namespace {

/// Worst |y - sum| / sum of |terms| over all results; NaN counts as infinite. dot returns both sums.
struct Sums {
  double sum = 0, size = 0;
};
double worst_error(const std::vector<float>& y, int64_t n_row, int64_t n_out,
                   const std::function<Sums(int64_t row, int64_t out)>& dot) {
  double worst = 0;
  for (int64_t n = 0; n < n_out; ++n) {
    for (int64_t r = 0; r < n_row; ++r) {
      const Sums expected = dot(r, n);
      const double error =
          std::fabs(static_cast<double>(y[static_cast<size_t>(r * n_out + n)]) - expected.sum) / expected.size;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

Sums dot_codes(const ref::CodedRow& w, const ref::ActBlock* x) {
  Sums sums;
  for (size_t g = 0; g < w.scale.size(); ++g) {
    const size_t at = g * static_cast<size_t>(w.group);
    const ref::ActBlock& block = x[at / 32];
    for (size_t i = 0; i < static_cast<size_t>(w.group); ++i) {
      const double weight = static_cast<double>(w.scale[g]) * w.codes[at + i] - (w.min.empty() ? 0.0 : w.min[g]);
      const double term = weight * block.codes[at % 32 + i] * block.scale;
      sums.sum += term;
      sums.size += std::fabs(term);
    }
  }
  return sums;
}

int failures = 0;
void report(const std::string& what, double error, double bound, bool guard) {
  const bool good = error <= bound && guard;
  failures += !good;
  std::printf("%s %-44s error %.2e of %.2e%s\n", good ? "ok  " : "FAIL", what.c_str(), error, bound,
              guard ? "" : ", guard overwritten");
}

void check_type(BlockType type, int64_t n_out, int64_t n_in, bool rotate, ActsMix mix) {
  const Buffer parts(kParts);
  const TestWeight weight(type, 1, n_out, n_in), second(type, 1, 40, n_in);
  std::vector<ref::CodedRow> coded(static_cast<size_t>(n_out + 40));
  const int64_t bytes = row_bytes(type, n_in);
  for (int64_t n = 0; n < n_out; ++n)
    ref::read_codes(type, weight.rows.data() + n * bytes, n_in, coded[static_cast<size_t>(n)]);
  for (int64_t n = 0; n < 40; ++n)
    ref::read_codes(type, second.rows.data() + n * bytes, n_in, coded[static_cast<size_t>(n_out + n)]);
  // Lookup.
  {
    std::vector<int32_t> ids = {0, static_cast<int32_t>(n_out - 1), 17};
    Buffer device_ids(12), y(static_cast<size_t>(3 * n_in * 4));
    device_ids.put(ids.data(), 12);
    gather_form(weight.device, device_ids.as<int32_t>(), 3, y.as<float>(), nullptr);
    const auto got = y.get<float>(static_cast<size_t>(3 * n_in));
    std::vector<float> row(static_cast<size_t>(n_in));
    double wrong = 0;
    for (size_t i = 0; i < 3; ++i) {
      decode_row(type, weight.rows.data() + ids[i] * bytes, row.data(), n_in);
      for (size_t k = 0; k < row.size(); ++k) wrong += row[k] != got[i * row.size() + k];
    }
    report(std::string(type_name(type)) + " lookup", wrong, 0, y.guard_whole());
  }
  for (const int64_t n_row : {1, 3, 8, 9, 16, 17, 33, 64, 65, 128, 130, 300}) {
    TestActs acts(n_row, n_in, rotate, mix);
    if (const int64_t wrong = acts.differences(); wrong >= 0 && type == BlockType::q4_0) {
      report("codes of " + std::to_string(n_row) + " rows", static_cast<double>(wrong), 0, acts.memory.guard_whole());
    }
    const auto run = [&](const char* kernel, double bound, const auto& multiply) {
      Buffer y(static_cast<size_t>(n_row * n_out * 4)), y2(static_cast<size_t>(n_row * 40 * 4));
      std::vector<float> add(static_cast<size_t>(n_row * 40), 0.0f);
      y2.put(add.data(), add.size() * 4);  // added to itself
      const Product products[] = {{&weight.device, y.as<float>(), nullptr},
                                  {&second.device, y2.as<float>(), y2.as<float>()}};
      multiply(std::span<const Product>(products));
      check(cudaDeviceSynchronize(), kernel);
      const auto dot = [&](int64_t first) {
        return [&, first](int64_t r, int64_t n) {
          return dot_codes(coded[static_cast<size_t>(first + n)], acts.blocks.data() + r * (n_in / 32));
        };
      };
      const double error = std::max(worst_error(y.get<float>(static_cast<size_t>(n_row * n_out)), n_row, n_out, dot(0)),
                                    worst_error(y2.get<float>(static_cast<size_t>(n_row * 40)), n_row, 40, dot(n_out)));
      report(std::string(type_name(type)) + " " + kernel + " " + std::to_string(n_row) + " rows", error, bound,
             y.guard_whole() && y2.guard_whole());
    };
    const double units = (4 + 2 * std::sqrt(static_cast<double>(n_in))) * 0x1p-24;
    if (n_row <= cuda::kIntegerMatmulRows) {
      run("integer", units, [&](auto products) { cuda::matmul_integer(products, acts.device, nullptr); });
    }
    if (acts.device.halves) {
      run("half", 0x1p-10, [&](auto products) {
        cuda::matmul_half(products, acts.device, {parts.as(), kParts}, nullptr);
      });
      if (acts.device.nibbles) {
        run("int4", units, [&](auto products) { cuda::matmul_int4(products, acts.device, nullptr); });
      }
      run("half (mma)", 0x1p-10, [&](auto products) {
        cuda::matmul_half(products, acts.device, {parts.as(), kParts}, nullptr, true);
      });
    }
  }
}

void check_experts(BlockType type, int64_t n_tok, int64_t n_used, bool shared_input) {
  const int64_t n_expert = 16, n_out = 200, n_in = 512, n_pair = n_tok * n_used;
  const TestWeight weight(type, n_expert, n_out, n_in);
  TestActs acts(shared_input ? n_tok : n_pair, n_in, true, ActsMix::int8);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < n_tok; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(n_expert));
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    std::shuffle(all.begin(), all.end() - 3, random_bits);  // the last three are never chosen
    ids.insert(ids.end(), all.begin(), all.begin() + n_used);
  }
  Buffer device_ids(ids.size() * 4), offsets(static_cast<size_t>(n_expert + 1) * 4), order(ids.size() * 4);
  device_ids.put(ids.data(), ids.size() * 4);
  const ExpertGroups groups{
      n_pair, n_used, n_expert, device_ids.as<int32_t>(), offsets.as<int32_t>(), order.as<int32_t>()};
  cuda::group_rows(groups, nullptr);
  Buffer y(static_cast<size_t>(n_pair * n_out * 4));
  Buffer y2(static_cast<size_t>(n_pair * n_out * 4));  // the same product again, as another one
  const cuda::ExpertProduct products[] = {{&weight.device, y.as<float>()}, {&weight.device, y2.as<float>()}};
  const bool integer = n_pair <= kCodeRows || acts.device.n_row <= kIntegerRows;
  Buffer workspace(static_cast<size_t>(cuda::experts_half_workspace(weight.device, n_pair)));
  if (integer) {
    cuda::matmul_experts_integer(products, acts.device, shared_input, groups, nullptr);
  } else {
    cuda::matmul_experts_half(products, acts.device, shared_input, groups, {workspace.as(), 0}, nullptr);
  }
  check(cudaDeviceSynchronize(), "experts");
  std::vector<ref::CodedRow> coded(static_cast<size_t>(n_expert * n_out));
  for (size_t i = 0; i < coded.size(); ++i) {
    ref::read_codes(type, weight.rows.data() + static_cast<int64_t>(i) * row_bytes(type, n_in), n_in, coded[i]);
  }
  const double error =
      worst_error(y.get<float>(static_cast<size_t>(n_pair * n_out)), n_pair, n_out, [&](int64_t r, int64_t n) {
        return dot_codes(coded[static_cast<size_t>(ids[static_cast<size_t>(r)] * n_out + n)],
                         acts.blocks.data() + (shared_input ? r / n_used : r) * (n_in / 32));
      });
  const size_t n_result = static_cast<size_t>(n_pair * n_out);
  if (y.get<float>(n_result) != y2.get<float>(n_result)) report("two products of experts", 1, 0, true);
  report(std::string(type_name(type)) + " experts, " + (integer ? "integer" : "half") + ", " + std::to_string(n_tok) +
             (shared_input ? " shared" : " own") + " rows",
         error, integer ? 50 * 0x1p-24 : 0x1p-10, y.guard_whole() && workspace.guard_whole() && order.guard_whole());
}

void check_float(BlockType type, int64_t n_row) {
  const int64_t n_out = 72, n_in = 1056;
  const TestWeight weight(type, 1, n_out, n_in);
  const TestActs acts(n_row, n_in, false, ActsMix::int8);
  Buffer y(static_cast<size_t>(n_row * n_out * 4));
  const Product product{&weight.device, y.as<float>(), nullptr};
  cuda::matmul_split({&product, 1}, acts.input.as<float>(), n_row, nullptr);
  check(cudaDeviceSynchronize(), "float");
  std::vector<float> w(static_cast<size_t>(n_out * n_in));
  decode_row(type, weight.rows.data(), w.data(), n_out * n_in);
  const double error =
      worst_error(y.get<float>(static_cast<size_t>(n_row * n_out)), n_row, n_out, [&](int64_t r, int64_t n) {
        Sums sums;
        for (int64_t k = 0; k < n_in; ++k) {
          const double term =
              static_cast<double>(w[static_cast<size_t>(n * n_in + k)]) * acts.x[static_cast<size_t>(r * n_in + k)];
          sums.sum += term;
          sums.size += std::fabs(term);
        }
        return sums;
      });
  report(std::string(type_name(type)) + " float " + std::to_string(n_row) + " rows", error, 16 * 0x1p-24,
         y.guard_whole());
}

}  // namespace

int check_products() {
  using enum BlockType;
  check_type(q4_0, 136, 1056, true, ActsMix::int4);  // K is no multiple of a unit
  check_type(q4_0, 152, 1024, true, ActsMix::int8);
  for (const BlockType type : {q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4}) check_type(type, 72, 416, false, ActsMix::int8);
  for (const BlockType type : {q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs}) check_type(type, 72, 768, false, ActsMix::int8);
  for (const int64_t n_tok : {1, 2, 9, 16, 40, 300}) {
    for (const bool shared : {true, false}) check_experts(q4_0, n_tok, 4, shared);
  }
  check_experts(q4_k, 7, 4, true);
  check_experts(q6_k, 100, 4, false);
  for (const BlockType type : {f32, f16, bf16}) {
    for (const int64_t n_row : {1, 8, 9, 70}) check_float(type, n_row);
  }
  std::printf(failures ? "%d checks FAILED\n" : "all checks passed\n", failures);
  return failures;
}

}  // namespace onebit::gpu
