// Which kernels serve a weight and a batch of rows: the one place that knows all forms. NVIDIA GPUs take the tensor
// core kernels of backend/cuda for every quantised type; elsewhere matmul_plain.cu serves all types, but for prompts on
// the 4-bit grid where backend/hip has a kernel.
#include "backend/gpu/matmul.h"

#include <algorithm>

#include "backend/gpu/acts.h"
#include "backend/gpu/matmul_plain.h"
#include "base/error.h"
#if !defined(__HIP_PLATFORM_AMD__)
#include "backend/cuda/matmul.h"
#define ONEBIT_TENSOR_CORES 1
#else
#include "backend/hip/matmul.h"
#endif

namespace onebit::gpu {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kSplitColumns = 32;  // K of matmul_split is a multiple of this

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

WeightForm form_for(const Weight& weight) {
#ifdef ONEBIT_TENSOR_CORES
  return weight.gather_only ? WeightForm::plain : form_of(weight.type);
#else
  (void)weight;
  return WeightForm::plain;
#endif
}

int64_t expert_bytes(const Weight& weight) {
  const WeightForm form = form_for(weight);
  if (form == WeightForm::plain) return weight.n_out() * row_bytes(weight.type, weight.n_in());
  return form_bytes(form, weight.n_out(), weight.n_in());
}

DeviceWeight describe(const Weight& weight, uint8_t* memory) {
  DeviceWeight made;
  made.type = weight.type;
  made.form = form_for(weight);
  made.n_out = weight.n_out();
  made.n_in = weight.n_in();
  made.n_expert = weight.n_expert();
  made.rotated = weight.rotated;
  made.prompt_int4 = weight.prompt_int4;
  made.data = memory;
  made.expert_bytes = expert_bytes(weight);
  return made;
}

/// Whole strips at a time through the uploader's buffer.
void upload_form(const Weight& weight, const DeviceWeight& to, Uploader& uploader) {
  const int64_t row = row_bytes(weight.type, weight.n_in()), strip = kStripRows * row;
  CHECK(strip <= uploader.chunk_bytes());
  const int64_t rows_at_once = uploader.chunk_bytes() / strip * kStripRows;
  const int64_t strip_to = n_unit(to.n_in) * unit_bytes(to.form);
  for (int64_t expert = 0; expert < to.n_expert; ++expert) {
    const uint8_t* from = weight.data.data() + expert * to.n_out * row;
    for (int64_t at = 0; at < to.n_out; at += rows_at_once) {
      const int64_t n = std::min(rows_at_once, to.n_out - at);
      const uint8_t* rows = uploader.bring(from + at * row, n * row);
      pack_strips(to.type, rows, n, to.n_in, to.data + expert * to.expert_bytes + at / kStripRows * strip_to,
                  uploader.stream());
    }
  }
}

}  // namespace

int64_t device_weight_bytes(const Weight& weight) { return aligned(weight.n_expert() * expert_bytes(weight)); }

DeviceWeight upload_weight(const Weight& weight, uint8_t* memory, Uploader& uploader) {
  const DeviceWeight made = describe(weight, memory);
  if (made.form == WeightForm::plain) {
    uploader.copy(memory, weight.data.data(), static_cast<int64_t>(weight.data.size()));
  } else {
    upload_form(weight, made, uploader);
  }
  return made;
}

void gather(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream) {
  if (weight.form == WeightForm::plain) return gather_plain(weight, ids, n_row, y, stream);
  gather_form(weight, ids, n_row, y, stream);
}

#ifdef ONEBIT_TENSOR_CORES

int64_t acts_bytes(int64_t max_rows, int64_t n_in) { return tiled_acts_bytes(max_rows, n_in, cuda::has_int4()); }

DeviceActs acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix) {
  return tiled_acts_at(memory, max_rows, n_row, n_in, mix, cuda::has_int4());
}

void quantize_acts(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                   const DeviceActs& acts, gpuStream_t stream) {
  quantize_tiled(input, rotate, int4_rows, multiple, acts, stream);
}

int64_t matmul_workspace_bytes(const DeviceWeight& weight, int64_t max_rows) {
  if (weight.form == WeightForm::plain || max_rows <= cuda::kIntegerMatmulRows) return 0;
  return weight.n_expert > 1 ? cuda::experts_half_workspace(weight, max_rows) : cuda::half_workspace(weight, max_rows);
}

void matmul(std::span<const Product> products, const DeviceActs& acts, const Workspace& workspace, gpuStream_t stream) {
  if (acts.n_row == 0) return;
  if (acts.n_row <= cuda::kIntegerMatmulRows) return cuda::matmul_integer(products, acts, stream);
  const auto is_q4_0 = [](const Product& product) { return product.weight->form == WeightForm::n4; };
  if (acts.nibbles && std::all_of(products.begin(), products.end(), is_q4_0)) {
    return cuda::matmul_int4(products, acts, stream);
  }
  cuda::matmul_half(products, acts, workspace, stream);
}

void matmul_float(std::span<const Product> products, const float* x, int64_t n_row, const Workspace&,
                  gpuStream_t stream) {
  if (n_row == 0) return;
  if (products[0].weight->n_in % kSplitColumns == 0) return cuda::matmul_split(products, x, n_row, stream);
  for (const Product& product : products) matmul_float_plain(product, x, n_row, stream);
}

void group_experts(const ExpertGroups& groups, gpuStream_t stream) {
  // The experts of a single token differ: its kernels need no order.
  if (groups.n_row > groups.n_used) cuda::group_rows(groups, stream);
}

void matmul_experts(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                    const ExpertGroups& groups, const Workspace& workspace, gpuStream_t stream) {
  if (groups.n_row == 0) return;
  // Few rows an expert: every row that shares an expert's weights is one column of a tile of 8 at most.
  if (groups.n_row <= kCodeRows || acts.n_row <= kIntegerRows) {
    return cuda::matmul_experts_integer(products, acts, shared_input, groups, stream);
  }
  CHECK(workspace.bytes >= cuda::experts_half_workspace(*products[0].weight, groups.n_row));
  cuda::matmul_experts_half(products, acts, shared_input, groups, workspace, stream);
}

#else

int64_t acts_bytes(int64_t max_rows, int64_t n_in) {
  return aligned(max_rows * n_in) + 2 * aligned(max_rows * (n_in / 32) * 4) + aligned(max_rows * (n_in / 2));
}

DeviceActs acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix) {
  DeviceActs acts{.n_row = n_row, .n_in = n_in, .mix = mix};
  acts.codes = reinterpret_cast<int8_t*>(memory);
  memory += aligned(max_rows * n_in);
  acts.scales = reinterpret_cast<float*>(memory);
  memory += aligned(max_rows * (n_in / 32) * 4);
  acts.sums = reinterpret_cast<int32_t*>(memory);
  memory += aligned(max_rows * (n_in / 32) * 4);
  if (mix == ActsMix::int4 && n_row >= hip::kIu4LeastRows) acts.nibbles = memory;
  return acts;
}

void quantize_acts(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                   const DeviceActs& acts, gpuStream_t stream) {
  quantize_plain(input, rotate, int4_rows, multiple, acts, stream);
}

int64_t matmul_workspace_bytes(const DeviceWeight&, int64_t) { return 0; }

void matmul(std::span<const Product> products, const DeviceActs& acts, const Workspace&, gpuStream_t stream) {
  for (const Product& product : products) {
    if (acts.nibbles && product.weight->type == BlockType::q4_0 && hip::has_iu4()) {
      hip::matmul_iu4(product, acts, stream);
    } else {
      matmul_plain(product, acts, stream);
    }
  }
}

void matmul_float(std::span<const Product> products, const float* x, int64_t n_row, const Workspace&,
                  gpuStream_t stream) {
  for (const Product& product : products) matmul_float_plain(product, x, n_row, stream);
}

void group_experts(const ExpertGroups&, gpuStream_t) {}

void matmul_experts(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                    const ExpertGroups& groups, const Workspace&, gpuStream_t stream) {
  for (const ExpertProduct& p : products) matmul_experts_plain(*p.weight, acts, shared_input, groups, p.y, stream);
}

#endif

void matmul_experts_float(const DeviceWeight& weight, const float* x, bool shared_input, const ExpertGroups& groups,
                          float* y, const Workspace&, gpuStream_t stream) {
  matmul_experts_float_plain(weight, x, shared_input, groups, y, stream);
}

}  // namespace onebit::gpu
