// Which kernels serve a weight and a batch of rows: the one place that knows all layouts.
#include "backend/gpu/matmul.h"

#include <cstring>

#include "backend/gpu/matmul_plain.h"

namespace onebit::gpu {
namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

DeviceWeight describe(const Weight& weight) {
  DeviceWeight made;
  made.type = weight.type;
  made.n_out = weight.n_out();
  made.n_in = weight.n_in();
  made.n_expert = weight.n_expert();
  made.rotated = weight.rotated;
  made.prompt_int4 = weight.prompt_int4;
  made.expert_bytes = made.n_out * row_bytes(weight.type, made.n_in);
  return made;
}

}  // namespace

int64_t device_weight_bytes(const Weight& weight) { return aligned(static_cast<int64_t>(weight.data.size())); }

DeviceWeight upload_weight(const Weight& weight, uint8_t* memory, Uploader& uploader) {
  DeviceWeight made = describe(weight);
  made.data = memory;
  uploader.copy(memory, weight.data.data(), static_cast<int64_t>(weight.data.size()));
  return made;
}

void gather(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream) {
  gather_plain(weight, ids, n_row, y, stream);
}

int64_t acts_bytes(int64_t max_rows, int64_t n_in) {
  return aligned(max_rows * n_in) + 2 * aligned(max_rows * (n_in / 32) * 4);
}

DeviceActs acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix) {
  DeviceActs acts{.n_row = n_row, .n_in = n_in, .mix = mix};
  acts.codes = reinterpret_cast<int8_t*>(memory);
  memory += aligned(max_rows * n_in);
  acts.scales = reinterpret_cast<float*>(memory);
  memory += aligned(max_rows * (n_in / 32) * 4);
  acts.sums = reinterpret_cast<int32_t*>(memory);
  return acts;
}

void quantize_acts(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                   const DeviceActs& acts, gpuStream_t stream) {
  quantize_plain(input, rotate, int4_rows, multiple, acts, stream);
}

int64_t matmul_workspace_bytes(const DeviceWeight&, int64_t) { return 0; }

void matmul(std::span<const Product> products, const DeviceActs& acts, const Workspace&, gpuStream_t stream) {
  for (const Product& product : products) matmul_plain(product, acts, stream);
}

void matmul_float(std::span<const Product> products, const float* x, int64_t n_row, const Workspace&,
                  gpuStream_t stream) {
  for (const Product& product : products) matmul_float_plain(product, x, n_row, stream);
}

void group_experts(const ExpertGroups&, gpuStream_t) {}

void matmul_experts(const DeviceWeight& weight, const DeviceActs& acts, bool shared_input, const ExpertGroups& groups,
                    float* y, const Workspace&, gpuStream_t stream) {
  matmul_experts_plain(weight, acts, shared_input, groups, y, stream);
}

void matmul_experts_float(const DeviceWeight& weight, const float* x, bool shared_input, const ExpertGroups& groups,
                          float* y, const Workspace&, gpuStream_t stream) {
  matmul_experts_float_plain(weight, x, shared_input, groups, y, stream);
}

}  // namespace onebit::gpu
