#include "measure/balance.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace onebit {
namespace {

const Step* producer(const Plan& plan, Value v) {
  for (const Step& step : plan.steps()) {
    for (Value out : step.out) {
      if (out.id == v.id) return &step;
    }
  }
  return nullptr;
}

std::vector<const Step*> readers(const Plan& plan, Value v) {
  std::vector<const Step*> all;
  for (const Step& step : plan.steps()) {
    const bool reads = std::any_of(step.in.begin(), step.in.end(), [&](Value in) { return in.id == v.id; });
    if (reads) all.push_back(&step);
  }
  return all;
}

/// True when `v` goes into products with `matrices` and nowhere else.
bool only_multiplied(const Plan& plan, Value v, const std::vector<const Weight*>& matrices) {
  for (const Step* step : readers(plan, v)) {
    if (step->op == Op::quantize) {
      if (!only_multiplied(plan, step->out[0], matrices)) return false;
    } else if (step->op == Op::matmul || step->op == Op::matmul_experts) {
      if (std::find(matrices.begin(), matrices.end(), step->weights[0]) == matrices.end()) return false;
    } else {
      return false;
    }
  }
  return true;
}

/// The plain matrix whose product `v` is, if `v` has one reader and the matrix one use.
const Weight* sole_product(const Plan& plan, Value v) {
  const Step* step = producer(plan, v);
  return step && step->op == Op::matmul && readers(plan, v).size() == 1 ? step->weights[0] : nullptr;
}

/// Where an input's factors go: a norm's columns or a matrix's rows.
struct Source {
  const Weight* weight = nullptr;
  bool rows = false;
  int64_t repeat = 1;  // query heads per key head: channels of that many heads share a row
  int64_t d_head = 0;  // of attention
};

Source attention_source(const Plan& plan, const Step& attention) {
  for (const Step& step : plan.steps()) {
    if (step.op != Op::kv_store || step.state != attention.state) continue;
    const auto& params = std::get<AttentionParams>(attention.params);
    return {sole_product(plan, step.in[1]), true, params.n_head / params.n_head_kv, params.d_head};
  }
  return {};
}

Source source_of(const Plan& plan, Value x) {
  const Step* step = producer(plan, x);
  if (!step) return {};
  if (step->op == Op::sigmoid_mul) {  // a gate on an attention's output
    if (readers(plan, step->in[0]).size() != 1) return {};
    step = producer(plan, step->in[0]);
    return step && step->op == Op::attention ? attention_source(plan, *step) : Source{};
  }
  if (step->op == Op::attention) return attention_source(plan, *step);
  if (step->op == Op::swiglu) return {sole_product(plan, step->in[1]), true, 1, 0};
  if (step->op == Op::rms_norm && step->weights[0]->n_in() == plan.info(x).width)
    return {step->weights[0], false, 1, 0};
  return {};
}

/// Logarithms of channels that share a row become their mean.
void share_rows(const Source& source, std::vector<double>& logs) {
  if (source.repeat == 1) return;
  const auto d = static_cast<size_t>(source.d_head), group = d * static_cast<size_t>(source.repeat);
  for (size_t first = 0; first < logs.size(); first += group) {
    for (size_t i = 0; i < d; ++i) {
      double sum = 0;
      for (size_t j = i; j < group; j += d) sum += logs[first + j];
      for (size_t j = i; j < group; j += d) logs[first + j] = sum / static_cast<double>(source.repeat);
    }
  }
}

void multiply(std::vector<float>& to, const std::vector<float>& by) {
  if (to.empty()) to.assign(by.size(), 1.0f);
  CHECK(to.size() == by.size());
  for (size_t i = 0; i < by.size(); ++i) to[i] *= by[i];
}

}  // namespace

void balance_input(const Plan& plan, const BalancedInput& input, double exponent,
                   std::map<std::string, TensorFactors>& factors) {
  const Source source = source_of(plan, input.x);
  if (!source.weight || !only_multiplied(plan, input.x, input.matrices)) return;
  constexpr double kLeast = 1e-6;
  std::vector<double> logs(input.rms.size());
  for (size_t i = 0; i < logs.size(); ++i) {
    logs[i] = exponent * (std::log(std::max<double>(input.column_norm[i], kLeast)) -
                          std::log(std::max<double>(input.rms[i], kLeast)));
  }
  share_rows(source, logs);
  double mean = 0;
  for (const double value : logs) mean += value / static_cast<double>(logs.size());
  std::vector<float> up, down;
  for (const double value : logs) {
    up.push_back(static_cast<float>(std::exp(value - mean)));
    down.push_back(1 / up.back());
  }
  for (const Weight* matrix : input.matrices) multiply(factors[matrix->name].columns, down);
  TensorFactors& made = factors[source.weight->name];
  if (source.repeat > 1) {  // one row for all heads of a group
    const auto d = static_cast<size_t>(source.d_head), group = d * static_cast<size_t>(source.repeat);
    std::vector<float> rows;
    for (size_t first = 0; first < up.size(); first += group) {
      rows.insert(rows.end(), up.begin() + static_cast<int64_t>(first), up.begin() + static_cast<int64_t>(first + d));
    }
    up = rows;
  }
  multiply(source.rows ? made.rows : made.columns, up);
}

}  // namespace onebit
