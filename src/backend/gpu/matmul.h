// Weights on the device, quantised activations, and the products of the two: what the program asks of the matmul
// kernels. In: views of a file's weights, rows of f32. Out: device layouts, rows of f32.
//
// Meanings are those of plan/op.h and backend/ref: an integer dot product per block (q2_k, q3_k, q6_k: per 16 columns),
// scaled and summed in f32. Everything is enqueued on a stream; nothing here waits. Row counts are known to the host.
#pragma once

#include <cstdint>
#include <span>

#include "backend/gpu/runtime.h"
#include "plan/op.h"
#include "plan/weight.h"

namespace onebit::gpu {

// --- weights ---------------------------------------------------------------------------------------------------------

/// The forms that weights take on the device; forms.h says what each holds.
enum class WeightForm : uint8_t {
  plain,  // the file's rows as they are: float types, and all types where matmul_plain.cu is all there is
  n4,     // q4_0
  n4k,    // q4_k
  n5k,    // q5_k
  n6k,    // q6_k
  t4,     // iq4_nl
  t4k,    // iq4_xs
  b8,     // q8_0, q5_0
  b8f,    // q4_1, q5_1, mxfp4
  b8k,    // q3_k
  b8km,   // q2_k
};

/// A matrix (or, with n_expert > 1, a stack of them) in device memory. The memory belongs to the store that loaded it.
struct DeviceWeight {
  BlockType type = BlockType::f32;
  WeightForm form = WeightForm::plain;
  int64_t n_out = 0, n_in = 0, n_expert = 1;  // N, K
  bool rotated = false, prompt_int4 = false;
  uint8_t* data = nullptr;   // 256-byte aligned
  int64_t expert_bytes = 0;  // from one expert's matrix to the next
};

/// Carries a file's bytes to the device through pinned memory, so that reading the next piece overlaps the copy.
class Uploader {
 public:
  virtual ~Uploader() = default;
  virtual gpuStream_t stream() const = 0;
  /// Copies `bytes` bytes (at most chunk_bytes()) from pageable memory into a device buffer and returns that buffer.
  /// Work on it must be enqueued on stream(); it is reused by a later call once that work is done.
  virtual const uint8_t* bring(const uint8_t* from, int64_t bytes) = 0;
  virtual int64_t chunk_bytes() const = 0;
  /// Copies straight to `to` on the device, any size.
  virtual void copy(uint8_t* to, const uint8_t* from, int64_t bytes) = 0;
};

/// Bytes of device memory that the weight will take.
int64_t device_weight_bytes(const Weight& weight);
/// Fills `memory` (device_weight_bytes, 256-byte aligned) with the weight in the layout its kernels want.
DeviceWeight upload_weight(const Weight& weight, uint8_t* memory, Uploader& uploader);

/// y[i] = row ids[i] of the weight (experts one after another) as f32 [n_row, n_in]; equals decode_row of the file's
/// row. ids is device memory, every id in range.
void gather(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream);

// --- activations -----------------------------------------------------------------------------------------------------

/// Which grids the rows of a batch are quantised to.
enum class ActsMix : uint8_t { int8, int4, mixed };

/// Quantised rows. For matmul_plain.cu: codes [n_row, K] int8 (int4 rows too: -8..7), scales [n_row, K/32] and sums of
/// codes [n_row, K/32]; for hip/iu4_tile.h nibbles [n_row, K/32, 16] in the order of q4_0's. For all other kernels
/// codes and scales are tiled and more parts follow: acts.h.
struct DeviceActs {
  int64_t n_row = 0, n_in = 0;
  ActsMix mix = ActsMix::int8;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* sums = nullptr;
  int16_t* starts = nullptr;
  int16_t* half_sums = nullptr;
  uint8_t* halves = nullptr;
  float* row_scales = nullptr;
  uint8_t* nibbles = nullptr;
  float* nibble_scales = nullptr;
};

/// Bytes for up to max_rows rows of K columns.
int64_t acts_bytes(int64_t max_rows, int64_t n_in);
/// The parts of acts inside `memory` (256-byte aligned) for n_row of at most max_rows rows.
DeviceActs acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix);

/// What is quantised, made in one pass over the row, before the rotation. In this order, each where it is set:
///   v = x, or silu(x) * up;  v = v / sqrt(mean(v^2 over its group) + eps) * norm[c % group];
///   v *= silu(silu_gate);  v *= sigmoid(sigmoid_gate)
struct ActsInput {
  const float* x = nullptr;     // [n_row, K]
  const float* up = nullptr;    // [n_row, K]
  const float* norm = nullptr;  // [group]
  int64_t group = 0;            // columns normalised together; divides K
  float eps = 0;
  const float* silu_gate = nullptr;     // [n_row, K]
  const float* sigmoid_gate = nullptr;  // [n_row, K]
  float* keep = nullptr;                // [n_row, K]: the f32 values that were quantised, for steps that read them
  Int4Rule int4_rule = Int4Rule::search;
};

/// Rows r with int4_rows[r / multiple] take the int4 grid, all others int8; int4_rows is read only when acts.mix is
/// mixed. `rotate`: the 32-point transform first, bit for bit as gguf/hadamard.h.
void quantize_acts(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                   const DeviceActs& acts, gpuStream_t stream);

// --- products --------------------------------------------------------------------------------------------------------

/// Scratch memory of one product; its contents need not outlive the call.
struct Workspace {
  uint8_t* data = nullptr;
  int64_t bytes = 0;
};
/// Bytes that products with this weight need for up to max_rows result rows; several at once: the sum over them.
int64_t matmul_workspace_bytes(const DeviceWeight& weight, int64_t max_rows);

/// One of several products that read the same activations: y [n_row, N] = acts W^T (+ add).
struct Product {
  const DeviceWeight* weight = nullptr;
  float* y = nullptr;
  const float* add = nullptr;  // [n_row, N]; may be y itself
};

/// All products of `acts`, in as few launches as their layouts allow (q, k, v of a block are one at decoding); the
/// weights' types are quantised, their types may differ.
void matmul(std::span<const Product> products, const DeviceActs& acts, const Workspace& workspace, gpuStream_t stream);
/// y [n_row, N] = x [n_row, K] W^T in f32; the weights' types are f32, f16 or bf16.
void matmul_float(std::span<const Product> products, const float* x, int64_t n_row, const Workspace& workspace,
                  gpuStream_t stream);

/// The rows of a batch sorted by expert: offsets [n_expert + 1] into `order` [n_row], the result rows of each expert in
/// ascending order. Made once per routing and used by all of its products.
struct ExpertGroups {
  int64_t n_row = 0, n_used = 1, n_expert = 0;  // n_row = tokens * n_used result rows
  const int32_t* ids = nullptr;                 // [n_row] expert of each result row
  int32_t* offsets = nullptr;
  int32_t* order = nullptr;
};
void group_experts(const ExpertGroups& groups, gpuStream_t stream);

/// One of several products that read the same activations for the same experts.
struct ExpertProduct {
  const DeviceWeight* weight = nullptr;
  float* y = nullptr;  // [groups.n_row, N]
};
/// y row r = x row (r, or r / n_used when shared_input) times W[ids[r]]^T. acts.n_row is the row count of x. Several
/// products (gate and up) are one launch where their forms agree; the workspace is that of any one of them.
void matmul_experts(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                    const ExpertGroups& groups, const Workspace& workspace, gpuStream_t stream);
inline void matmul_experts(const DeviceWeight& weight, const DeviceActs& acts, bool shared_input,
                           const ExpertGroups& groups, float* y, const Workspace& workspace, gpuStream_t stream) {
  const ExpertProduct product{&weight, y};
  matmul_experts(std::span(&product, 1), acts, shared_input, groups, workspace, stream);
}
void matmul_experts_float(const DeviceWeight& weight, const float* x, bool shared_input, const ExpertGroups& groups,
                          float* y, const Workspace& workspace, gpuStream_t stream);

}  // namespace onebit::gpu
