// Mixture of experts: choosing experts, multiplying each token by the matrices of its experts, and adding the results.
//
// Rows of a batch that chose the same expert are brought together first, so that an expert's weights are read once,
// with the same kernels as a plain matmul.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/step.h"
#include "backend/cpu/tiles.h"

namespace onebit::cpu {
namespace {

/// (token, j) pairs ordered by expert: `order` lists result rows, those of expert e are first[e] .. first[e + 1] - 1.
/// `used` lists the n_used experts that have any.
struct Grouping {
  int32_t *first, *order, *used;
  int64_t n_used;
};

int64_t grouping_bytes(int64_t n_expert, int64_t n_pair) { return (2 * n_expert + 2 + n_pair) * 4; }

/// Counting sort. Every thread makes its own copy: that is cheaper than waiting for one thread.
Grouping group_by_expert(const int32_t* ids, int64_t n_pair, int64_t n_expert, int32_t* memory) {
  Grouping g{memory, memory + n_expert + 2, memory + n_expert + 2 + n_pair, 0};
  std::fill_n(g.first, n_expert + 2, 0);
  for (int64_t i = 0; i < n_pair; ++i) ++g.first[ids[i] + 2];
  for (int64_t e = 2; e < n_expert + 2; ++e) g.first[e] += g.first[e - 1];
  for (int64_t i = 0; i < n_pair; ++i) g.order[g.first[ids[i] + 1]++] = static_cast<int32_t>(i);
  for (int64_t e = 0; e < n_expert; ++e) {
    if (g.first[e + 1] > g.first[e]) g.used[g.n_used++] = static_cast<int32_t>(e);
  }
  return g;
}

/// Copies one token's activations from tile to tile.
void copy_act(const ActRows& from, int64_t row, const ActRows& to, int64_t to_row) {
  const int64_t from_tile = row / kTileTokens, to_tile = to_row / kTileTokens;
  const int from_n = from.tile_tokens(from_tile), to_n = to.tile_tokens(to_tile);
  const int64_t t = row % kTileTokens, u = to_row % kTileTokens;
  const uint8_t* src = from.tile(from_tile);
  uint8_t* dst = to.tile(to_tile);
  for (int64_t b = 0; b < from.n_block; ++b, src += kActBlockBytes * from_n, dst += kActBlockBytes * to_n) {
    std::memcpy(dst + 32 * u, src + 32 * t, 32);
    for (int word = 0; word < 3; ++word) {
      std::memcpy(dst + (32 + 4 * word) * to_n + 4 * u, src + (32 + 4 * word) * from_n + 4 * t, 4);
    }
  }
}

struct ExpertJob {
  const CpuStep& step;
  Worker& worker;
  const LoadedWeight& weight;
  Grouping groups;
  int64_t n_pair, n_used;
  bool quantised;

  int64_t row_bytes() const { return quantised ? weight.n_in / kBlock * kActBlockBytes : weight.n_in * 4; }
  int64_t n_rows_of(int64_t expert) const { return groups.first[expert + 1] - groups.first[expert]; }
  uint8_t* packed(int64_t expert) const { return step.shared + groups.first[expert] * row_bytes(); }
};

/// Brings the input rows of [begin, end) of the order next to those of the same expert.
void pack_rows(const ExpertJob& job, Range pairs) {
  const Operand& x = job.step.in[0];
  const int64_t n_block = job.weight.n_in / kBlock;
  int64_t expert = 0;
  for (int64_t i = pairs.begin; i < pairs.end; ++i) {
    while (job.groups.first[expert + 1] <= i) ++expert;
    const int64_t pair = job.groups.order[i], at = i - job.groups.first[expert];
    const int64_t row = x.info.multiple == 1 ? pair / job.n_used : pair;
    if (job.quantised) {
      const ActRows from{x.data, job.worker.n_row(x), n_block};
      copy_act(from, row, {job.packed(expert), job.n_rows_of(expert), n_block}, at);
    } else {
      std::memcpy(job.packed(expert) + at * job.row_bytes(), x.f32(row), static_cast<size_t>(job.row_bytes()));
    }
  }
}

/// Strips `strips` of one expert for all its rows.
void multiply_expert(const ExpertJob& job, int64_t expert, Range strips, uint8_t* scratch) {
  const uint8_t* matrix = job.weight.data + expert * job.weight.expert_bytes;
  const Operand& y = job.step.out[0];
  const Results to{y.f32(), y.width(), job.groups.order + job.groups.first[expert]};
  const int64_t n = job.n_rows_of(expert);
  if (job.quantised) {
    const ActRows rows{job.packed(expert), n, job.weight.n_in / kBlock};
    multiply_strips(job.worker.kernels(), job.weight, matrix, strips, rows, to, scratch);
  } else {
    const auto* rows = reinterpret_cast<const float*>(job.packed(expert));
    multiply_floats(job.worker.kernels(), job.weight, matrix, strips, rows, n, to, reinterpret_cast<float*>(scratch));
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Needs needs_matmul_experts(const CpuStep& step, const PlanLimits& limits, int) {
  const LoadedWeight& weight = *step.matrices[0];
  const int64_t n_pair = max_rows(step.out[0].info, limits);
  const bool quantised = weight.form == LoadedWeight::Form::strips;
  const int64_t row_bytes = quantised ? weight.n_in / kBlock * kActBlockBytes : weight.n_in * 4;
  const int64_t multiply = quantised ? strip_scratch_bytes() : n_pair * kFloatStrip * 4;
  return {.thread = aligned(grouping_bytes(weight.n_expert, n_pair)) + multiply, .shared = n_pair * row_bytes};
}

void run_matmul_experts(const CpuStep& step, Worker& worker) {
  const LoadedWeight& weight = *step.matrices[0];
  const int64_t n_pair = worker.n_row(step.out[0]);
  const Grouping groups = group_by_expert(step.in[1].i32(), n_pair, weight.n_expert, worker.scratch<int32_t>());
  const ExpertJob job{
      step, worker, weight, groups, n_pair, step.in[1].width(), weight.form == LoadedWeight::Form::strips};
  pack_rows(job, share(n_pair, 1, worker.thread(), worker.n_thread()));
  worker.barrier();
  uint8_t* scratch = worker.scratch<uint8_t>() + aligned(grouping_bytes(weight.n_expert, n_pair));
  const int64_t per_claim = std::clamp<int64_t>(weight.n_strip() / (2 * worker.n_thread()), 1, 16);
  const int64_t claims = (weight.n_strip() + per_claim - 1) / per_claim;  // of each expert in use
  const Entered entered(worker.kernels(), weight, n_pair);
  worker.deal(step, groups.n_used * claims, 1, [&](Range claim) {
    const int64_t first = claim.begin % claims * per_claim;
    multiply_expert(job, groups.used[claim.begin / claims], {first, std::min(first + per_claim, weight.n_strip())},
                    scratch);
  });
}

Needs needs_route(const CpuStep& step, const PlanLimits&, int) {
  return {.thread = (step.in[0].width() + step.out[0].width()) * 4};
}

// The largest are chosen by their logits: both gates are monotone, and equal bits give equal choices.
void run_route(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<RouteParams>();
  const int64_t n_expert = step.in[0].width(), n_used = params.n_used;
  float* p = worker.scratch<float>();
  const Range rows = worker.rows(step.in[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = step.in[0].f32(r);
    int32_t* ids = step.out[0].i32(r);
    float* weights = step.out[1].f32(r);
    largest(worker.kernels(), x, 0, n_expert, n_used, ids, p + n_expert);
    float total = 1;
    const bool softmax = params.gate == RouterGate::softmax;
    const float peak = softmax ? worker.kernels().max(x, n_expert) : 0;
    if (softmax) total = worker.kernels().exp_sum(x, peak, n_expert, p);
    float sum = 0;
    for (int64_t j = 0; j < n_used; ++j) {
      weights[j] = softmax ? p[ids[j]] / total : 1 / (1 + std::exp(-x[ids[j]]));
      sum += weights[j];
    }
    const float divisor = params.normalise ? std::max(sum, 0x1p-14f) : 1.0f;
    for (int64_t j = 0; j < n_used; ++j) weights[j] = weights[j] / divisor * params.scale;
  }
}

void run_combine_experts(const CpuStep& step, Worker& worker) {
  const Operand &x = step.in[0], &weights = step.in[1], &y = step.out[0];
  const int64_t n_used = weights.width();
  const Range rows = worker.rows(y);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    worker.kernels().scale(x.f32(r * n_used), weights.f32(r)[0], y.width(), y.f32(r));
    for (int64_t j = 1; j < n_used; ++j) {
      worker.kernels().axpy(weights.f32(r)[j], x.f32(r * n_used + j), y.width(), y.f32(r));
    }
  }
}

}  // namespace onebit::cpu
