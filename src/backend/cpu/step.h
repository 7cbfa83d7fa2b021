// One step of a compiled program and the threads that run it. A step is bound once, when the plan is compiled:
// operands, weights, state and scratch are plain pointers, so that running it touches no map and allocates nothing.
//
// All threads of the pool walk the list of steps together. A step's function is called on every thread and takes its
// share of the work: by rows (row-local steps), or by claiming pieces from a counter.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/states.h"
#include "backend/cpu/weights.h"
#include "backend/team.h"
#include "base/thread_pool.h"
#include "plan/batch.h"
#include "plan/plan.h"

namespace onebit::cpu {

/// A value in memory.
struct Operand {
  uint8_t* data = nullptr;
  ValueInfo info;

  int64_t width() const { return info.width; }
  float* f32(int64_t row = 0) const { return reinterpret_cast<float*>(data) + row * info.width; }
  int32_t* i32(int64_t row = 0) const { return reinterpret_cast<int32_t*>(data) + row * info.width; }
};

/// Cosines and sines of one set of rope parameters for the rows of the current batch, shared by all its steps.
struct RopeTable {
  RopeParams params;
  const float* factors = nullptr;
  std::vector<double> frequencies;  // [n_rot/2], radians per position
  double magnitude = 1;
  std::vector<float> cosine, sine;  // [n_tok, n_rot/2]
};

/// What a row of the batch belongs to.
struct RowInfo {
  int32_t sequence = 0;  // index into Batch::sequences
  int32_t pos = 0;
};

class Worker;

/// What threads keep of a product that only serves a choice of k columns of each row.
struct Shortlists {
  Shortlists(int64_t n_column, int64_t n_row, int n_thread, const uint8_t* output);

  int64_t k;
  const uint8_t* output;  // the product, where the caller may read it as well, or nullptr
  int64_t thread_bytes;   // by thread, row: count, columns [k], values [k]
  Pages memory;

  static int64_t row_bytes(int64_t k) { return 8 + 8 * k; }
};

struct CpuStep {
  Op op;
  OpParams params;
  std::vector<Operand> in, out;
  std::vector<const LoadedWeight*> matrices;  // by weight; nullptr where plain is used
  std::vector<const float*> plain;            // by weight; nullptr where a matrix is used
  Memory* state = nullptr;
  const RopeTable* rope = nullptr;
  Shortlists* shortlists = nullptr;  // of a product and the choice that follows it

  void (*run)(const CpuStep& step, Worker& worker) = nullptr;
  std::atomic<int64_t>* claims = nullptr;  // this step's counter of thread 0, 0 when a run starts
  int64_t claims_stride = 0;               // to the counter of the next thread
  uint8_t* shared = nullptr;               // scratch of all threads

  template <class T>
  const T& as() const {
    return std::get<T>(params);
  }
  template <class T>
  T& memory() const {
    return std::get<T>(*state);
  }
};

/// What all threads know of the current run.
struct Run {
  const Kernels* kernels = nullptr;
  const Batch* batch = nullptr;
  std::vector<RowInfo> rows;  // [n_tok], room for the largest batch
  int64_t n_tok = 0, n_out = 0;
  Membership membership;
};

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Share `index` of `n` things cut into `parts` contiguous shares, in multiples of `unit`; the first shares are the
/// larger ones, so a single thing goes to the first.
Range share(int64_t n, int64_t unit, int index, int parts);

/// Batches whose rows fill one tile of activations at most, but are more than one.
inline bool is_one_tile(int64_t n_tok) { return n_tok > 1 && n_tok <= kTileTokens; }

/// One thread's view of a run.
class Worker {
 public:
  Worker(const Run& run, ThreadPool& pool, int thread, uint8_t* scratch)
      : run_(run), pool_(pool), thread_(thread), scratch_(scratch) {}

  const Kernels& kernels() const { return *run_.kernels; }
  const Batch& batch() const { return *run_.batch; }
  int thread() const { return thread_; }
  int n_thread() const { return pool_.size(); }
  int64_t n_tok() const { return run_.n_tok; }
  const Membership& membership() const { return run_.membership; }
  /// The batch's row that output row or token row r of a value belongs to.
  int64_t token(const Operand& value, int64_t r) const {
    const int64_t i = r / value.info.multiple;
    return value.info.rows == Rows::tokens ? i : batch().outputs[static_cast<size_t>(i)];
  }
  const RowInfo& row(int64_t token) const { return run_.rows[static_cast<size_t>(token)]; }
  const Sequence& sequence(int64_t token) const { return batch().sequences[static_cast<size_t>(row(token).sequence)]; }

  int64_t n_row(const Operand& value) const { return n_token(value) * value.info.multiple; }
  /// This thread's rows of a value. Row-local steps rely on it: the same tokens are always the same thread's.
  Range rows(const Operand& value) const {
    const int64_t n = n_token(value);
    const int64_t unit = n >= kTileTokens * n_thread() ? kTileTokens : 1;  // whole tiles share no cache lines
    const Range tokens = share(n, unit, thread_, n_thread());
    return {tokens.begin * value.info.multiple, tokens.end * value.info.multiple};
  }

  /// Deals out [0, n) in ranges of up to `per_claim`: a thread works through a contiguous share of its own, in order,
  /// and then through what is left of the others', so that one that isn't running holds nobody up.
  template <class F>
  void deal(const CpuStep& step, int64_t n, int64_t per_claim, F f) {
    for (int i = 0; i < n_thread(); ++i) {
      const int owner = (thread_ + i) % n_thread();
      const Range all = share(n, 1, owner, n_thread());
      std::atomic<int64_t>& taken = step.claims[owner * step.claims_stride];
      while (true) {
        const int64_t first = all.begin + taken.fetch_add(per_claim, std::memory_order_relaxed);
        if (first >= all.end) break;
        f(Range{first, std::min(first + per_claim, all.end)});
      }
    }
  }

  /// This thread's scratch, as large as the step's needs() asked for, aligned to 64 bytes.
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(scratch_);
  }
  /// Waits for all threads, inside a step.
  void barrier() { pool_.barrier(); }

 private:
  int64_t n_token(const Operand& value) const { return value.info.rows == Rows::tokens ? run_.n_tok : run_.n_out; }

  const Run& run_;
  ThreadPool& pool_;
  int thread_;
  uint8_t* scratch_;
};

/// Scratch memory of a step, in bytes, for the largest batch.
struct Needs {
  int64_t thread = 0;  // of each thread
  int64_t shared = 0;
};

/// How this backend runs an op.
struct OpEntry {
  void (*run)(const CpuStep& step, Worker& worker);
  Needs (*needs)(const CpuStep& step, const PlanLimits& limits, int n_thread);  // nullptr: none
  /// Row r of the outputs depends only on row r of the inputs, and each thread works on Worker::rows().
  bool row_local;
};
const OpEntry& op_entry(Op op);

// steps_rows.cpp
void run_embed(const CpuStep& step, Worker& worker);
void run_rms_norm(const CpuStep& step, Worker& worker);
void run_gated_norm(const CpuStep& step, Worker& worker);
void run_add(const CpuStep& step, Worker& worker);
void run_sigmoid_mul(const CpuStep& step, Worker& worker);
void run_swiglu(const CpuStep& step, Worker& worker);
void run_softcap(const CpuStep& step, Worker& worker);
void run_slice_heads(const CpuStep& step, Worker& worker);
void run_gather_rows(const CpuStep& step, Worker& worker);
void run_rope(const CpuStep& step, Worker& worker);
void run_block_conv(const CpuStep& step, Worker& worker);
void run_store_rows(const CpuStep& step, Worker& worker);
void run_load_rows(const CpuStep& step, Worker& worker);
void run_sum_devices(const CpuStep& step, Worker& worker);
RopeTable make_rope_table(const RopeParams& params, const float* factors, int64_t n_tok);
void fill_rope_table(RopeTable& table, const Run& run, Range rows);
// steps_matmul.cpp
void run_quantize(const CpuStep& step, Worker& worker);
void run_matmul(const CpuStep& step, Worker& worker);
Needs needs_matmul(const CpuStep& step, const PlanLimits& limits, int n_thread);
// steps_shortlist.cpp: a product and the choice after it, without rows of results between them
void run_matmul_shortlist(const CpuStep& step, Worker& worker);
void run_choose_shortlist(const CpuStep& step, Worker& worker);
int64_t shortlist_scratch_bytes(const CpuStep& step, const PlanLimits& limits);
// steps_experts.cpp
void run_route(const CpuStep& step, Worker& worker);
Needs needs_route(const CpuStep& step, const PlanLimits& limits, int n_thread);
void run_matmul_experts(const CpuStep& step, Worker& worker);
Needs needs_matmul_experts(const CpuStep& step, const PlanLimits& limits, int n_thread);
void run_combine_experts(const CpuStep& step, Worker& worker);
// steps_kv_store.cpp
void run_kv_store(const CpuStep& step, Worker& worker);
Needs needs_kv_store(const CpuStep& step, const PlanLimits& limits, int n_thread);
// steps_attention.cpp
void run_attention(const CpuStep& step, Worker& worker);
Needs needs_attention(const CpuStep& step, const PlanLimits& limits, int n_thread);
// steps_delta_net.cpp
void run_delta_net(const CpuStep& step, Worker& worker);
Needs needs_delta_net(const CpuStep& step, const PlanLimits& limits, int n_thread);
// steps_select.cpp
void run_top_k(const CpuStep& step, Worker& worker);  // argmax too
Needs needs_top_k(const CpuStep& step, const PlanLimits& limits, int n_thread);
void run_select_walk(const CpuStep& step, Worker& worker);
Needs needs_select_walk(const CpuStep& step, const PlanLimits& limits, int n_thread);
/// Columns of the k largest of x[from..to), largest first, lowest column among equals; NaN counts as -infinity. Returns
/// how many there are: min(k, to - from). `ranks`: [k] scratch.
int64_t largest(const Kernels& kernels, const float* x, int64_t from, int64_t to, int64_t k, int32_t* columns,
                float* ranks);

}  // namespace onebit::cpu
