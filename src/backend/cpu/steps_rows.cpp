// Steps that work on one row at a time or move rows: norms, elementwise ops, rope, embedding, gathers, row buffers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/step.h"
#include "plan/rope.h"

namespace onebit::cpu {
namespace {

constexpr float kLargestHalf = 65504;

void copy_floats(const float* from, int64_t n, float* to) {
  if (from != to) std::memmove(to, from, static_cast<size_t>(n) * 4);
}

/// Calls f(x, y, scale) for every group of columns of this thread's rows; x, y: [group].
template <class F>
void each_group(const CpuStep& step, Worker& worker, F f) {
  const auto& params = step.as<NormParams>();
  const Range rows = worker.rows(step.out[0]);
  const int64_t width = step.out[0].width(), group = params.group;
  for (int64_t at = rows.begin * width; at < rows.end * width; at += group) {
    const float* x = step.in[0].f32() + at;
    const float mean = worker.kernels().sum_squares(x, group) / static_cast<float>(group);
    f(at, x, step.out[0].f32() + at, 1 / std::sqrt(mean + params.eps));
  }
}

}  // namespace

/// Devices meet on one of their threads each.
void run_sum_devices(const CpuStep& step, Worker& worker) {
  if (worker.thread() != 0) return;
  const int64_t n = worker.n_row(step.out[0]) * step.out[0].width();
  copy_floats(step.in[0].f32(), n, step.out[0].f32());
  worker.membership().sum(step.out[0].f32(), n, nullptr);
}

void run_embed(const CpuStep& step, Worker& worker) {
  const Range rows = worker.rows(step.out[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t token = worker.batch().tokens[static_cast<size_t>(r)];
    gather_row(worker.kernels(), *step.matrices[0], token, step.out[0].f32(r));
  }
}

void run_rms_norm(const CpuStep& step, Worker& worker) {
  each_group(step, worker, [&](int64_t, const float* x, float* y, float scale) {
    worker.kernels().mul_scaled(x, step.plain[0], scale, step.as<NormParams>().group, y);
  });
}

void run_gated_norm(const CpuStep& step, Worker& worker) {
  each_group(step, worker, [&](int64_t at, const float* x, float* y, float scale) {
    worker.kernels().gate_scaled(x, step.plain[0], step.in[1].f32() + at, scale, step.as<NormParams>().group, y);
  });
}

void run_add(const CpuStep& step, Worker& worker) {
  const Range rows = worker.rows(step.out[0]);
  worker.kernels().add(step.in[0].f32(rows.begin), step.in[1].f32(rows.begin), rows.size() * step.out[0].width(),
                       step.out[0].f32(rows.begin));
}

void run_sigmoid_mul(const CpuStep& step, Worker& worker) {
  const Operand &x = step.in[0], &gate = step.in[1], &y = step.out[0];
  const Range rows = worker.rows(y);
  if (gate.width() == y.width()) {
    return worker.kernels().sigmoid_mul(x.f32(rows.begin), gate.f32(rows.begin), rows.size() * y.width(),
                                        y.f32(rows.begin));
  }
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    worker.kernels().scale(x.f32(r), 1 / (1 + std::exp(-*gate.f32(r))), y.width(), y.f32(r));
  }
}

void run_swiglu(const CpuStep& step, Worker& worker) {
  const Range rows = worker.rows(step.out[0]);
  worker.kernels().swiglu(step.in[0].f32(rows.begin), step.in[1].f32(rows.begin), rows.size() * step.out[0].width(),
                          step.out[0].f32(rows.begin));
}

void run_softcap(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<SoftcapParams>();
  const Range rows = worker.rows(step.out[0]);
  worker.kernels().softcap(step.in[0].f32(rows.begin), params.scale, params.cap, rows.size() * step.out[0].width(),
                           step.out[0].f32(rows.begin));
}

void run_slice_heads(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<SliceParams>();
  const Range rows = worker.rows(step.out[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t g = 0; g < params.n_group; ++g) {
      copy_floats(step.in[0].f32(r) + g * params.stride + params.offset, params.length,
                  step.out[0].f32(r) + g * params.length);
    }
  }
}

void run_gather_rows(const CpuStep& step, Worker& worker) {
  const Range rows = worker.rows(step.out[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    copy_floats(step.in[0].f32(worker.token(step.out[0], r)), step.out[0].width(), step.out[0].f32(r));
  }
}

void run_store_rows(const CpuStep& step, Worker& worker) {
  if (worker.batch().tap_rows.empty()) return;
  const auto& memory = step.memory<RowsMemory>();
  const Operand& x = step.in[0];
  const Range rows = worker.rows(x);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t to = worker.batch().tap_rows[static_cast<size_t>(r)];
    if (to < 0) continue;
    copy_floats(x.f32(r), x.width(), memory.memory.as<float>() + to * memory.width + step.as<RowsParams>().offset);
  }
}

void run_load_rows(const CpuStep& step, Worker& worker) {
  const auto& memory = step.memory<RowsMemory>();
  const Range rows = worker.rows(step.out[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t source = worker.batch().source_rows[static_cast<size_t>(r)];
    const float* x = memory.memory.as<float>() + source * memory.width;
    float* y = step.out[0].f32(r);
    for (int64_t c = 0; c < memory.width; ++c) {
      y[c] = std::isnan(x[c]) ? 0 : std::clamp(x[c], -kLargestHalf, kLargestHalf);
    }
  }
}

void run_block_conv(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<BlockConvParams>();
  const Operand &x = step.in[0], &delta = step.in[1], &y = step.out[0];
  const int64_t width = y.width(), n_group = width / params.group;
  const Range rows = worker.rows(y);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t in_sequence = r - worker.sequence(r).row;
    std::fill_n(y.f32(r), width, 0.0f);
    for (int64_t t = 0; t < params.n_tap && t <= in_sequence; ++t) {
      const int64_t tap = params.side * params.n_tap + t;
      worker.kernels().group_axpy(step.plain[0] + tap * width, delta.f32(r) + tap * n_group, params.group, x.f32(r - t),
                                  width, y.f32(r));
    }
  }
}

void run_rope(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<RopeParams>();
  const int64_t n_pair = params.n_rot / 2;
  const Range rows = worker.rows(step.out[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t token = worker.token(step.out[0], r);
    const float *cosine = step.rope->cosine.data() + token * n_pair, *sine = step.rope->sine.data() + token * n_pair;
    copy_floats(step.in[0].f32(r), step.out[0].width(), step.out[0].f32(r));
    for (int64_t h = 0; h < params.n_head; ++h) {
      float* y = step.out[0].f32(r) + h * params.d_head;
      if (params.style == RopeStyle::neox) {
        worker.kernels().rotate(y, y + n_pair, cosine, sine, n_pair);
        continue;
      }
      for (int64_t i = 0; i < n_pair; ++i) {
        const float a = y[2 * i], b = y[2 * i + 1];
        y[2 * i] = a * cosine[i] - b * sine[i];
        y[2 * i + 1] = a * sine[i] + b * cosine[i];
      }
    }
  }
}

RopeTable make_rope_table(const RopeParams& params, const float* factors, int64_t n_tok) {
  RopeTable table;
  table.params = params;
  table.factors = factors;
  table.frequencies = rope_frequencies(params, factors);
  table.magnitude = rope_magnitude(params);
  table.cosine.resize(static_cast<size_t>(n_tok) * table.frequencies.size());
  table.sine.resize(table.cosine.size());
  return table;
}

void fill_rope_table(RopeTable& table, const Run& run, Range rows) {
  auto at = static_cast<size_t>(rows.begin) * table.frequencies.size();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (const double frequency : table.frequencies) {
      const double angle = run.rows[static_cast<size_t>(r)].pos * frequency;
      table.cosine[at] = static_cast<float>(std::cos(angle) * table.magnitude);
      table.sine[at++] = static_cast<float>(std::sin(angle) * table.magnitude);
    }
  }
}

}  // namespace onebit::cpu
