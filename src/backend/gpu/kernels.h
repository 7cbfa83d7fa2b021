// Every op of plan/op.h except the matrix products (matmul.h), as functions that enqueue kernels. Shapes and formulas
// are those of plan/op.h; pointers are device memory; a call with no rows does nothing.
#pragma once

#include <vector>

#include "backend/gpu/rows.h"
#include "backend/gpu/state_memory.h"
#include "plan/op.h"

namespace onebit::gpu {

/// Keeps the stream busy for about `cycles` cycles, so that what follows is enqueued before it starts.
void hold(int64_t cycles, gpuStream_t stream);

// elementwise.cu: bandwidth-bound, each input read once and each output written once.
void add(const float* a, const float* b, float* y, int64_t n, gpuStream_t stream);
void sigmoid_mul(const float* x, const float* gate, float* y, int64_t n_row, int64_t width, int64_t gate_width,
                 gpuStream_t stream);
void swiglu(const float* gate, const float* up, float* y, int64_t n, gpuStream_t stream);
void softcap(const float* x, float* y, int64_t n, const SoftcapParams& params, gpuStream_t stream);
void slice_heads(const float* x, float* y, int64_t n_row, int64_t width, const SliceParams& params, gpuStream_t stream);
void gather_rows(const float* x, const int32_t* rows, float* y, int64_t n_row, int64_t width, gpuStream_t stream);
void store_rows(const float* x, const int32_t* tap_rows, int64_t n_row, int64_t width, const RowsMemory& memory,
                int64_t offset, gpuStream_t stream);
void load_rows(const RowsMemory& memory, const int32_t* source_rows, float* y, int64_t n_row, gpuStream_t stream);
/// add: [n_row, width] or null, added to the result; may be y.
void combine_experts(const float* x, const float* weights, const float* add, float* y, int64_t n_row, int64_t n_used,
                     int64_t width, gpuStream_t stream);
void block_conv(const float* x, const float* delta, const float* base, float* y, const BatchRows& rows, int64_t width,
                const BlockConvParams& params, gpuStream_t stream);

// norm.cu
void rms_norm(const float* x, const float* w, float* y, int64_t n_group, int64_t group, float eps, gpuStream_t stream);
void gated_norm(const float* x, const float* w, const float* z, float* y, int64_t n_group, int64_t group, float eps,
                gpuStream_t stream);

// rope.cu: cosines and sines of all rows' positions once per run, shared by all steps with the same angles.
/// table: [n_tok, n_pair] of (cos, sin), times `magnitude`, of position * turns[i]; turns: rope_frequencies() of
/// plan/rope.h.
void rope_table(const double* turns, int64_t n_pair, double magnitude, const BatchRows& rows, float2* table,
                gpuStream_t stream);
/// y may be x.
void rope(const float* x, float* y, int64_t n_row, const RopeParams& params, const float2* table, const RowMap& map,
          gpuStream_t stream);

// heads.cu
/// One value on its way from a projection to attention: heads selected, normed, rotated and stored, each where asked.
struct HeadJob {
  enum class Store : uint8_t { none, key, value };
  const float* x = nullptr;  // row r, head h: x + r * row_stride + h * head_stride, d_head columns
  int64_t row_stride = 0, head_stride = 0;
  int32_t n_head = 0;
  const float* norm = nullptr;  // [d_head]
  float eps = 0;
  bool rotate = false;
  float* y = nullptr;  // [n_tok, n_head * d_head]; null: only stored
  Store store = Store::none;
};
struct HeadsCall {
  static constexpr int kMostJobs = 6;
  HeadJob jobs[kMostJobs];
  int32_t n_job = 0, d_head = 0, n_rot = 0;
  bool neox = true;
  const float2* table = nullptr;
  KvMemory cache;  // where jobs store
};
void prepare_heads(const HeadsCall& call, const BatchRows& rows, gpuStream_t stream);

// attention.cu
void kv_store(const float* k, const float* v, const BatchRows& rows, const KvMemory& memory, gpuStream_t stream);
struct AttentionCall {
  const float* q = nullptr;  // [n_row, n_head * d_head]
  const float* k = nullptr;  // block_attention only: the rows' own keys and values [n_tok, n_head_kv * d_head]
  const float* v = nullptr;
  float* y = nullptr;
  int64_t n_row = 0;
  int64_t context = 0;  // no row sees more cached positions than this
  RowMap map;
  uint8_t* scratch = nullptr;  // attention_scratch_bytes
  int64_t n_multiprocessor = 0;
  int64_t shared_bytes = 0;  // most shared memory of a block
};
/// Head sizes that the kernels are made for.
bool attention_fits(const AttentionParams& params);
int64_t attention_scratch_bytes(const AttentionParams& params, int64_t n_multiprocessor);
void attention(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows, const KvMemory& memory,
               gpuStream_t stream);

// delta_net.cu
struct DeltaNetCall {
  const float *u = nullptr, *beta = nullptr, *alpha = nullptr;
  const float *conv = nullptr, *a = nullptr, *dt = nullptr;
  float* y = nullptr;
  float* scratch = nullptr;     // delta_net_scratch_bytes
  int32_t* counters = nullptr;  // [slots, n_k_head] of 0, as every call leaves them
};
/// Head sizes that the kernels are made for.
bool delta_net_fits(const DeltaNetParams& params);
int64_t delta_net_scratch_bytes(const DeltaNetParams& params, const DeltaMemory& memory, int64_t max_tok);
void delta_net(const DeltaNetCall& call, const DeltaNetParams& params, const BatchRows& rows, const DeltaMemory& memory,
               gpuStream_t stream);

// select.cu
void route(const float* logits, int32_t* ids, float* weights, int64_t n_row, int64_t n_expert,
           const RouteParams& params, gpuStream_t stream);
int64_t top_k_scratch_bytes(int64_t max_rows, int64_t width, int32_t k);
/// values may be null (argmax: k = 1).
void top_k(const float* x, int64_t n_row, int64_t width, int32_t k, int32_t* ids, float* values, uint8_t* scratch,
           gpuStream_t stream);
struct WalkCall {
  const int32_t* candidates = nullptr;  // [n_row, k]
  const float *unary = nullptr, *gamma = nullptr;
  const float* predecessors = nullptr;  // [n_sequence + n_row * k, rank]: rows A of the anchors, then of candidates
  const float* successors = nullptr;    // [n_row * k, rank]: rows B of the candidates
  int32_t* ids = nullptr;
  float *confidence = nullptr, *scores = nullptr;
};
void select_walk(const WalkCall& call, int64_t n_row, int64_t k, int64_t rank, const BatchRows& rows, const RowMap& map,
                 gpuStream_t stream);
/// ids[i] = token of the first row of sequence i, followed by a copy of candidates [n].
void walk_ids(const BatchRows& rows, const int32_t* candidates, int64_t n, int32_t* ids, gpuStream_t stream);

}  // namespace onebit::gpu
