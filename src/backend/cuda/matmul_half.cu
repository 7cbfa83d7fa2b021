// Products for many rows: which kernel runs, and the sorting of rows by expert that its tiles need.
#include <algorithm>

#include "backend/cuda/half.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kGroupThreads = 512;

/// True where wgmma runs: the kernels are built for sm_90a alone.
bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "reading device properties");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading device properties");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "reading device properties");
  return major == 9 && minor == 0;
}

void multiply(WeightForm form, HalfJob& job, int64_t out_tiles, int64_t max_rows, gpuStream_t stream) {
  if (is_hopper()) return multiply_wgmma(form, job, out_tiles, max_rows, stream);
  multiply_mma(form, job, out_tiles, max_rows, stream);
}

int64_t out_tiles_of(const DeviceWeight& weight) { return (weight.n_out + kTileOuts - 1) / kTileOuts; }

/// One block an expert: counts the rows of smaller experts (where its own begin) and lists its own in order. Every
/// block reads all ids, 4 bytes a row, from L2.
__global__ void __launch_bounds__(kGroupThreads) list_rows(ExpertGroups groups) {
  wait_for_previous();
  __shared__ int below[kGroupThreads / kWarp], equal[kGroupThreads / kWarp];
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int smaller = 0;
  for (int64_t i = threadIdx.x; i < groups.n_row; i += kGroupThreads) smaller += groups.ids[i] < expert;
  smaller = warp_sum(smaller);
  if (lane == 0) below[warp] = smaller;
  __syncthreads();
  int at = 0;
  for (int w = 0; w < kGroupThreads / kWarp; ++w) at += below[w];
  if (threadIdx.x == 0) groups.offsets[expert] = at;
  for (int64_t base = 0; base < groups.n_row; base += kGroupThreads) {
    const int64_t i = base + threadIdx.x;
    const bool mine = i < groups.n_row && groups.ids[i] == expert;
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    __syncthreads();  // equal is read from the round before
    if (lane == 0) equal[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kGroupThreads / kWarp; ++w) {
      if (w < warp) before += equal[w];
      all += equal[w];
    }
    if (mine) groups.order[at + before + __popc(votes & ((1u << lane) - 1))] = static_cast<int32_t>(i);
    at += all;
  }
  if (threadIdx.x == 0 && expert + 1 == groups.n_expert) groups.offsets[expert + 1] = at;
}

/// One block an atom of sorted rows, one warp a row: copies its halves, 2 K bytes, and its scale.
__global__ void __launch_bounds__(kActAtomRows* kWarp)
    sort_halves(const uint8_t* halves, const float* row_scales, int64_t from_atoms, int per_input, int n_chunk,
                ExpertGroups groups, uint8_t* sorted, float* sorted_scales, int64_t to_atoms) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, r = threadIdx.x / kWarp;
  const ExpertTile tile =
      find_expert_tile<kActAtomRows>(groups.offsets, static_cast<int>(groups.n_expert), blockIdx.x, lane);
  if (tile.expert < 0 || r >= tile.count) return;
  const int row = groups.order[tile.first + r] / per_input, from_r = row % kActAtomRows;
  const uint8_t* from = halves + row / kActAtomRows * kActAtomBytes + from_r * 128;
  uint8_t* to = sorted + static_cast<int64_t>(tile.atom) * kActAtomBytes + r * 128;
  const int j = lane % 8;
  for (int chunk = lane / 8; chunk < n_chunk; chunk += 4) {
    *reinterpret_cast<uint4*>(to + chunk * to_atoms * kActAtomBytes + ((j ^ r) * 16)) =
        *reinterpret_cast<const uint4*>(from + chunk * from_atoms * kActAtomBytes + ((j ^ from_r) * 16));
  }
  if (lane == 0) sorted_scales[tile.atom * kActAtomRows + r] = row_scales[row];
}

int64_t sorted_atoms(int64_t n_row, int64_t n_expert) { return n_row / kActAtomRows + n_expert; }

}  // namespace

void group_rows(const ExpertGroups& groups, gpuStream_t stream) {
  if (groups.n_row == 0) return;
  launch(list_rows, dim3(static_cast<unsigned>(groups.n_expert)), dim3(kGroupThreads), 0, stream, groups);
}

void matmul_half(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream, bool any_gpu) {
  for (size_t begin = 0; begin < products.size();) {
    const WeightForm form = products[begin].weight->form;
    HalfJob job{};
    int64_t out_tiles = 0;
    size_t end = begin;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->form == form) {
      const Product& p = products[end];
      job.products[end++ - begin] = {p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out),
                                     static_cast<int32_t>(out_tiles)};
      out_tiles += out_tiles_of(*p.weight);
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_units = static_cast<int>(n_unit(acts.n_in));
    job.halves = acts.halves;
    job.row_scales = acts.row_scales;
    job.n_row = static_cast<int>(acts.n_row);
    job.atoms = padded_rows(acts.n_row) / kActAtomRows;
    if (any_gpu) {
      multiply_mma(form, job, out_tiles, acts.n_row, stream);
    } else {
      multiply(form, job, out_tiles, acts.n_row, stream);
    }
    begin = end;
  }
}

int64_t experts_half_workspace(const DeviceWeight& weight, int64_t max_rows) {
  const int64_t atoms = sorted_atoms(max_rows, weight.n_expert);
  return atoms * (n_unit(weight.n_in) * 2 * kActAtomBytes + kActAtomRows * 4);
}

void matmul_experts_half(const DeviceWeight& weight, const DeviceActs& acts, bool shared_input,
                         const ExpertGroups& groups, float* y, const Workspace& workspace, gpuStream_t stream) {
  const int64_t units = n_unit(weight.n_in), atoms = sorted_atoms(groups.n_row, groups.n_expert);
  uint8_t* sorted = workspace.data;
  float* sorted_scales = reinterpret_cast<float*>(sorted + atoms * units * 2 * kActAtomBytes);
  launch(sort_halves, dim3(static_cast<unsigned>(atoms)), dim3(kActAtomRows * kWarp), 0, stream, acts.halves,
         acts.row_scales, padded_rows(acts.n_row) / kActAtomRows, shared_input ? groups.n_used : 1, units * 2, groups,
         sorted, sorted_scales, atoms);
  HalfJob job{};
  job.products[0] = {weight.data, y, nullptr, static_cast<int32_t>(weight.n_out), 0};
  job.n_product = 1;
  job.n_units = static_cast<int>(units);
  job.halves = sorted;
  job.row_scales = sorted_scales;
  job.n_row = static_cast<int>(groups.n_row);
  job.atoms = atoms;
  job.n_expert = static_cast<int>(groups.n_expert);
  job.expert_bytes = weight.expert_bytes;
  job.offsets = groups.offsets;
  job.order = groups.order;
  multiply(weight.form, job, out_tiles_of(weight), groups.n_row, stream);
}

}  // namespace onebit::cuda
