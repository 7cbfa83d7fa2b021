// The gated delta net (plan/op.h: DeltaNetParams). State S is kept [d_k, d_v] per value head.
//
// Generated tokens are steps of the recurrence, one row after another, whether they are decoded, verified as drafts
// (on a trial copy of the state) or accepted from the tape: the same steps in the same order, so a text does not depend
// on how it was drafted, to the last bit. A step reads the state twice and writes it once. The columns of S don't meet,
// so several steps take 64 columns at a time, which stay in L1 from the first row to the last. Rows of a prompt are
// chunks of up to 64 in WY form, where the state is read once for all of them and everything is small matrix products.
// Per value head, with G_i the running sum of log decays g, b_i the rates, q scaled, and S0 the state before the chunk:
//     A_ij = b_i (k_i . k_j) exp(G_i - G_j)  for j < i
//     Y = (I + A)^-1 R,  R_i = b_i (v_i - exp(G_i) k_i S0)                      forward substitution, [n, d_v]
//     o_i = exp(G_i) q_i S0 + sum_{j <= i} (q_i . k_j) exp(G_i - G_j) Y_j
//     S_n = exp(G_{n-1}) S0 + sum_i exp(G_{n-1} - G_i) k_i Y_i^T                the state after the chunk
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/step.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kSolve = 16;    // rows of Y that are solved one by one before the others are updated by a product
constexpr int64_t kColumns = 64;  // of the state at a time: 32 KB at d_k = 128

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

/// A thread's scratch, all f32.
struct Buffers {
  float* kq;       // [2 * kChunk, d_k]: keys, then queries of the chunk
  float* kt;       // [d_k, kChunk]: keys transposed
  float* dots;     // [2 * kChunk, kChunk]: k_i . k_j, then q_i . k_j
  float* seen;     // [2 * kChunk, d_v]: k_i S0, then q_i S0
  float* y;        // [kChunk, d_v]: v, then Y
  float* decays;   // [kChunk, kChunk]: exp(G_i - G_j), j <= i
  float* weights;  // [kChunk, kChunk]: -A, then the factors of Y_j in o_i
  float* faded;    // [kChunk, d_k]: keys times exp(G - G_i)
  float* columns;  // [d_k, kColumns]: a part of the state
  float* trial;    // [d_k, d_v]: a state that must not be kept, between chunks of rows
  float* unused;   // [d_v]
  float g[kChunk], minus_g[kChunk], b[kChunk];

  static int64_t floats(const DeltaNetParams& p) {
    return kChunk * (4 * p.d_k + 4 * kChunk + 3 * p.d_v) + p.d_k * (kColumns + p.d_v) + p.d_v;
  }
  Buffers(const DeltaNetParams& p, float* memory) {
    kq = memory;
    kt = kq + 2 * kChunk * p.d_k;
    dots = kt + p.d_k * kChunk;
    seen = dots + 2 * kChunk * kChunk;
    y = seen + 2 * kChunk * p.d_v;
    decays = y + kChunk * p.d_v;
    weights = decays + kChunk * kChunk;
    faded = weights + kChunk * kChunk;
    columns = faded + kChunk * p.d_k;
    trial = columns + p.d_k * kColumns;
    unused = trial + p.d_k * p.d_v;
  }
};

/// The rows of one sequence: accepted rows of the tape, then the batch's own.
struct Rows {
  const CpuStep& step;
  const DeltaMemory& memory;
  const Sequence& sequence;

  int64_t n_commit() const { return sequence.n_commit; }
  int64_t n() const { return sequence.n_commit + sequence.n_tok; }
  bool verify() const { return sequence.phase == Phase::verify; }
  /// u of row i; negative rows are the window before the first.
  const float* u(int64_t i) const {
    const DeltaNetState& shape = memory.shape;
    if (i < 0) return memory.window(sequence.slot) + (shape.n_tap - 1 + i) * shape.n_channel;
    if (i < n_commit()) return memory.tape(sequence.slot, i);
    return step.in[0].f32(sequence.row + i - n_commit());
  }
  float beta(int64_t i, int64_t head) const { return gate(i, head, 1); }
  float alpha(int64_t i, int64_t head) const { return gate(i, head, 2); }
  float* o(int64_t i, int64_t head, int64_t d_v) const {
    return step.out[0].f32(sequence.row + i - n_commit()) + head * d_v;
  }

 private:
  float gate(int64_t i, int64_t head, int64_t which) const {
    const DeltaNetState& shape = memory.shape;
    if (i < n_commit()) return memory.tape(sequence.slot, i)[shape.n_channel + (which - 1) * shape.n_v_head + head];
    return step.in[static_cast<size_t>(which)].f32(sequence.row + i - n_commit())[head];
  }
};

/// Up to kChunk rows of a prompt that move `state` together.
struct Chunk {
  int64_t first, n;
  float* state;
};

/// Rows of one value head that are computed step by step: `from` is the state before them; the state after the first
/// n_keep of them goes to `kept`, the state after all of them to `after` unless that is nullptr.
struct Steps {
  int64_t first, n, n_keep;
  const float* from;
  float *kept, *after;
};

/// One key head of one sequence with some of the value heads that it serves.
class HeadGroup {
 public:
  HeadGroup(const CpuStep& step, Worker& worker, const Sequence& sequence, int64_t key_head, Range value_heads)
      : params_(step.as<DeltaNetParams>()),
        kernels_(worker.kernels()),
        memory_(step.memory<DeltaMemory>()),
        rows_{step, memory_, sequence},
        taps_(step.plain[0]),
        decay_(step.plain[1]),
        shift_(step.plain[2]),
        key_head_(key_head),
        value_heads_(value_heads),
        buffers_(params_, worker.scratch<float>()) {}

  void compute();

 private:
  int64_t value_head(int64_t i) const {
    const int64_t shared = params_.n_v_head / params_.n_k_head;
    return params_.map == HeadMap::tiled ? key_head_ + i * params_.n_k_head : key_head_ * shared + i;
  }
  void convolve(int64_t row, int64_t channel, int64_t n, float* y) const;
  void load_keys(int64_t first, int64_t n);
  void load_values(int64_t head, int64_t first, int64_t n);
  void run_steps(int64_t n, int64_t n_keep);
  void step_rows(int64_t head, const Steps& steps);
  void step_columns(int64_t head, const Steps& steps, Range columns);
  void put_columns(Range columns, float* state) const;
  void run_chunks(int64_t first, int64_t n);
  void multiply_keys(int64_t n);
  void run_chunk(int64_t head, const Chunk& chunk);
  void add_up_decays(int64_t n);
  void solve(const Chunk& chunk);
  void put_outputs(int64_t head, const Chunk& chunk);
  void move_state(const Chunk& chunk);

  const DeltaNetParams& params_;
  const Kernels& kernels_;
  const DeltaMemory& memory_;
  Rows rows_;
  const float *taps_, *decay_, *shift_;  // [n_tap, n_channel], [n_v_head], [n_v_head]
  int64_t key_head_;
  Range value_heads_;
  Buffers buffers_;
};

/// silu of the short convolution of channels [channel, channel + n) at a row.
void HeadGroup::convolve(int64_t row, int64_t channel, int64_t n, float* y) const {
  const float* inputs[kMaxConvTaps];
  for (int64_t m = 0; m < params_.n_tap; ++m) inputs[m] = rows_.u(row - params_.n_tap + 1 + m) + channel;
  kernels_.conv_silu(inputs, taps_ + channel, memory_.shape.n_channel, params_.n_tap, n, y);
}

/// Keys and queries of some rows, normalised, which all value heads share.
void HeadGroup::load_keys(int64_t first, int64_t n) {
  const int64_t d = params_.d_k, keys_at = params_.n_k_head * d;
  const float q_scale = 1 / std::sqrt(static_cast<float>(d));
  for (int64_t i = 0; i < n; ++i) {
    float *k = buffers_.kq + i * d, *q = buffers_.kq + (n + i) * d;
    convolve(first + i, keys_at + key_head_ * d, d, k);
    convolve(first + i, key_head_ * d, d, q);
    kernels_.scale(k, 1 / std::sqrt(kernels_.sum_squares(k, d) + params_.eps), d, k);
    kernels_.scale(q, q_scale / std::sqrt(kernels_.sum_squares(q, d) + params_.eps), d, q);
  }
}

/// Values, log decays and rates of a value head.
void HeadGroup::load_values(int64_t head, int64_t first, int64_t n) {
  const int64_t d = params_.d_v, values_at = 2 * params_.n_k_head * params_.d_k;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = first + i;
    convolve(row, values_at + head * d, d, buffers_.y + i * d);
    buffers_.g[i] = decay_[head] * softplus(rows_.alpha(row, head) + shift_[head]);
    buffers_.b[i] = 1 / (1 + std::exp(-rows_.beta(row, head)));
  }
}

// --- one row after another -------------------------------------------------------------------------------------------

/// The first n rows step by step; the state is moved by n_keep of them.
void HeadGroup::run_steps(int64_t n, int64_t n_keep) {
  if (n <= kChunk) load_keys(0, n);
  for (int64_t i = value_heads_.begin; i < value_heads_.end; ++i) {
    float* state = memory_.matrix(rows_.sequence.slot, value_head(i));
    const float* from = state;
    for (int64_t at = 0; at < n; at += kChunk) {
      const int64_t size = std::min(kChunk, n - at), keep = std::clamp<int64_t>(n_keep - at, 0, size);
      float* after = at + size < n && keep < size ? buffers_.trial : nullptr;
      if (n > kChunk) load_keys(at, size);
      step_rows(value_head(i), {at, size, keep, from, state, after});
      from = after ? after : state;
    }
  }
}

/// Steps of rows whose keys are loaded.
void HeadGroup::step_rows(int64_t head, const Steps& steps) {
  const int64_t d_k = params_.d_k, d_v = params_.d_v;
  load_values(head, steps.first, steps.n);
  if (steps.n == 1 && steps.n_keep == 1 && steps.from == steps.kept) {
    float* o = steps.first < rows_.n_commit() ? buffers_.unused : rows_.o(steps.first, head, d_v);
    kernels_.delta_step(steps.kept, d_k, d_v, buffers_.kq + d_k, buffers_.kq, buffers_.y, std::exp(buffers_.g[0]),
                        buffers_.b[0], o);
    return;
  }
  for (int64_t j = 0; j < d_v; j += kColumns) step_columns(head, steps, {j, std::min(j + kColumns, d_v)});
}

void HeadGroup::step_columns(int64_t head, const Steps& steps, Range columns) {
  const int64_t d_k = params_.d_k, d_v = params_.d_v, n = steps.n;
  for (int64_t i = 0; i < d_k; ++i) {
    std::copy_n(steps.from + i * d_v + columns.begin, columns.size(), buffers_.columns + i * columns.size());
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool wanted = steps.first + i >= rows_.n_commit();
    kernels_.delta_step(buffers_.columns, d_k, columns.size(), buffers_.kq + (n + i) * d_k, buffers_.kq + i * d_k,
                        buffers_.y + i * d_v + columns.begin, std::exp(buffers_.g[i]), buffers_.b[i],
                        wanted ? rows_.o(steps.first + i, head, d_v) + columns.begin : buffers_.unused);
    if (i + 1 == steps.n_keep) put_columns(columns, steps.kept);
  }
  if (steps.after) put_columns(columns, steps.after);
}

void HeadGroup::put_columns(Range columns, float* state) const {
  for (int64_t i = 0; i < params_.d_k; ++i) {
    std::copy_n(buffers_.columns + i * columns.size(), columns.size(), state + i * params_.d_v + columns.begin);
  }
}

// --- chunks of a prompt ----------------------------------------------------------------------------------------------

void HeadGroup::run_chunks(int64_t first, int64_t n) {
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t size = std::min(kChunk, n - at);
    load_keys(first + at, size);
    multiply_keys(size);
    for (int64_t i = value_heads_.begin; i < value_heads_.end; ++i) {
      run_chunk(value_head(i), {first + at, size, memory_.matrix(rows_.sequence.slot, value_head(i))});
    }
  }
}

/// The products of keys and queries with keys.
void HeadGroup::multiply_keys(int64_t n) {
  const int64_t d = params_.d_k;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < d; ++c) buffers_.kt[c * kChunk + i] = buffers_.kq[i * d + c];
  }
  kernels_.gemm_f32(buffers_.kq, d, 1, buffers_.kt, kChunk, buffers_.dots, kChunk, 2 * n, n, d, false);
}

void HeadGroup::run_chunk(int64_t head, const Chunk& chunk) {
  load_values(head, chunk.first, chunk.n);
  add_up_decays(chunk.n);
  kernels_.gemm_f32(buffers_.kq, params_.d_k, 1, chunk.state, params_.d_v, buffers_.seen, params_.d_v, 2 * chunk.n,
                    params_.d_v, params_.d_k, false);
  solve(chunk);
  put_outputs(head, chunk);
  move_state(chunk);
}

/// g -> G.
void HeadGroup::add_up_decays(int64_t n) {
  float total = 0;
  for (int64_t i = 0; i < n; ++i) {
    total += buffers_.g[i];
    buffers_.g[i] = total;
    buffers_.minus_g[i] = -total;
  }
}

/// buffers_.y = Y.
void HeadGroup::solve(const Chunk& chunk) {
  const int64_t n = chunk.n, d = params_.d_v;
  for (int64_t i = 0; i < n; ++i) {
    float *decays = buffers_.decays + i * kChunk, *r = buffers_.y + i * d;
    kernels_.exp_sum(buffers_.minus_g, buffers_.minus_g[i], i + 1, decays);
    kernels_.mul_scaled(buffers_.dots + i * kChunk, decays, -buffers_.b[i], i, buffers_.weights + i * kChunk);
    kernels_.axpy(-std::exp(buffers_.g[i]), buffers_.seen + i * d, d, r);
    kernels_.scale(r, buffers_.b[i], d, r);
  }
  for (int64_t first = 0; first < n; first += kSolve) {
    const int64_t end = std::min(first + kSolve, n);
    for (int64_t i = first + 1; i < end; ++i) {
      for (int64_t j = first; j < i; ++j) {
        kernels_.axpy(buffers_.weights[i * kChunk + j], buffers_.y + j * d, d, buffers_.y + i * d);
      }
    }
    if (end < n) {
      kernels_.gemm_f32(buffers_.weights + end * kChunk + first, kChunk, 1, buffers_.y + first * d, d,
                        buffers_.y + end * d, d, n - end, d, end - first, true);
    }
  }
}

void HeadGroup::put_outputs(int64_t head, const Chunk& chunk) {
  const int64_t n = chunk.n, d = params_.d_v;
  for (int64_t i = 0; i < n; ++i) {
    float* p = buffers_.weights + i * kChunk;
    kernels_.mul_scaled(buffers_.dots + (n + i) * kChunk, buffers_.decays + i * kChunk, 1, i + 1, p);
    std::fill_n(p + i + 1, n - i - 1, 0.0f);
    kernels_.scale(buffers_.seen + (n + i) * d, std::exp(buffers_.g[i]), d, rows_.o(chunk.first + i, head, d));
  }
  const int64_t o_row = params_.n_v_head * d;
  kernels_.gemm_f32(buffers_.weights, kChunk, 1, buffers_.y, d, rows_.o(chunk.first, head, d), o_row, n, d, n, true);
}

void HeadGroup::move_state(const Chunk& chunk) {
  const int64_t n = chunk.n, d = params_.d_k;
  const float last = buffers_.g[n - 1];
  for (int64_t i = 0; i < n; ++i) {
    kernels_.scale(buffers_.kq + i * d, std::exp(last - buffers_.g[i]), d, buffers_.faded + i * d);
  }
  kernels_.scale(chunk.state, std::exp(last), memory_.matrix_floats(), chunk.state);
  kernels_.gemm_f32(buffers_.faded, 1, d, buffers_.y, params_.d_v, chunk.state, params_.d_v, d, params_.d_v, n, true);
}

void HeadGroup::compute() {
  const int64_t n = rows_.n(), n_commit = rows_.n_commit();
  if (rows_.sequence.phase != Phase::prompt) return run_steps(n, rows_.verify() ? n_commit : n);
  if (n_commit > 0) run_steps(n_commit, n_commit);
  run_chunks(n_commit, n - n_commit);
}

/// The window after `rows` (all of them, or in phase verify the accepted ones), and the tape: channels [begin, end).
void store_inputs(const Rows& rows, Range channels) {
  const DeltaMemory& memory = rows.memory;
  const int64_t slot = rows.sequence.slot, n_before = memory.shape.n_tap - 1;
  const int64_t done = rows.verify() ? rows.n_commit() : rows.n();
  const auto bytes = static_cast<size_t>(channels.size()) * 4;
  for (int64_t i = 0; i < n_before; ++i) {  // ascending: row i of the window may come from row i + done of the old one
    float* to = memory.window(slot) + i * memory.shape.n_channel;
    const float* from = rows.u(done - n_before + i);
    if (from != to) std::memcpy(to + channels.begin, from + channels.begin, bytes);
  }
  for (int64_t i = 0; rows.verify() && i < rows.sequence.n_tok; ++i) {
    std::memcpy(memory.tape(slot, i) + channels.begin, rows.step.in[0].f32(rows.sequence.row + i) + channels.begin,
                bytes);
  }
}

void store_gates(const Rows& rows) {
  if (!rows.verify()) return;
  const DeltaNetState& shape = rows.memory.shape;
  for (int64_t i = 0; i < rows.sequence.n_tok; ++i) {
    float* gates = rows.memory.tape(rows.sequence.slot, i) + shape.n_channel;
    std::copy_n(rows.step.in[1].f32(rows.sequence.row + i), shape.n_v_head, gates);
    std::copy_n(rows.step.in[2].f32(rows.sequence.row + i), shape.n_v_head, gates + shape.n_v_head);
  }
}

}  // namespace

Needs needs_delta_net(const CpuStep& step, const PlanLimits&, int) {
  return {.thread = Buffers::floats(step.as<DeltaNetParams>()) * 4};
}

void run_delta_net(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<DeltaNetParams>();
  const auto& memory = step.memory<DeltaMemory>();
  const auto n_sequence = static_cast<int64_t>(worker.batch().sequences.size());
  const int64_t shared = params.n_v_head / params.n_k_head;  // value heads of a key head
  // Keys are prepared once for their value heads, unless there are too few pieces for the threads.
  const int64_t parts = n_sequence * params.n_k_head >= 2 * worker.n_thread() ? 1 : shared;
  const int64_t n = n_sequence * params.n_k_head * parts;
  for (int64_t i = step.claims->fetch_add(1); i < n; i = step.claims->fetch_add(1)) {
    const Sequence& sequence = worker.batch().sequences[static_cast<size_t>(i / parts / params.n_k_head)];
    const Range heads = parts == 1 ? Range{0, shared} : Range{i % parts, i % parts + 1};
    HeadGroup(step, worker, sequence, i / parts % params.n_k_head, heads).compute();
  }
  worker.barrier();  // the window and the tape were inputs until here
  const Range channels = share(memory.shape.n_channel, kLanes, worker.thread(), worker.n_thread());
  for (const Sequence& sequence : worker.batch().sequences) {
    const Rows rows{step, memory, sequence};
    store_inputs(rows, channels);
    if (worker.thread() == 0) store_gates(rows);
  }
}

}  // namespace onebit::cpu
