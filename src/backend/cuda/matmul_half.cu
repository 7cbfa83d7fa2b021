// Products for many rows: which kernel runs, and the sorting of rows by expert that its tiles need.
#include <algorithm>
#include <cmath>

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

HalfKernel kernel_for(int64_t n_row, bool experts, bool any_gpu) {
  return !any_gpu && is_hopper() ? wgmma_kernel(n_row, experts) : mma_kernel();
}

int64_t out_tiles_of(const DeviceWeight& weight) { return (weight.n_out + kTileOuts - 1) / kTileOuts; }

/// One block an expert: counts the rows of smaller experts (where its own begin) and lists its own in order. Every
/// block reads all ids, 4 bytes a row, from L2.
__global__ void __launch_bounds__(kGroupThreads) list_rows(ExpertGroups groups) {
  let_next_start();
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
  let_next_start();
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

constexpr int kMaxSplit = 8;

/// Into how many parts each tile's sum is cut: few tiles leave SMs idle, but parts are written and read once more.
/// Times in units of 128 columns of one tile of 256 rows, about 1.7 us.
int split_of(int64_t tiles, int64_t units, int64_t results, int64_t n_sm) {
  if (tiles > 2 * n_sm) return 1;
  int best = 1;
  double best_time = INFINITY;
  for (const int split : {1, 2, 3, 4, 6, kMaxSplit}) {
    if (units / split < 4) break;
    const double waves = static_cast<double>((tiles * split + n_sm - 1) / n_sm);
    const double adding = split == 1 ? 0 : 3 + static_cast<double>(results) * 8 * split / 4e6;  // 2.4 TB/s
    const double time = waves * static_cast<double>(units) / split + adding;
    if (time < 0.97 * best_time) {
      best = split;
      best_time = time;
    }
  }
  return best;
}

/// Most results for which split_of() may cut tiles.
int64_t most_split_results(int64_t n_sm) { return (2 * n_sm + 1) * kTileOuts * 256; }

/// y = sum of the parts (+ add), in order.
__global__ void __launch_bounds__(256) add_parts(const float* parts, int split, int64_t n, float* y, const float* add) {
  let_next_start();
  wait_for_previous();
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
    float sum = parts[i];
    for (int p = 1; p < split; ++p) sum += parts[p * n + i];
    y[i] = add ? sum + add[i] : sum;
  }
}

int64_t sorted_atoms(int64_t n_row, int64_t n_expert) { return n_row / kActAtomRows + n_expert; }

}  // namespace

void group_rows(const ExpertGroups& groups, gpuStream_t stream) {
  if (groups.n_row == 0) return;
  launch(list_rows, dim3(static_cast<unsigned>(groups.n_expert)), dim3(kGroupThreads), 0, stream, groups);
}

int64_t half_workspace(const DeviceWeight& weight, int64_t max_rows) {
  return std::min(max_rows * weight.n_out, most_split_results(count_sms())) * kMaxSplit * 4;
}

void matmul_half(std::span<const Product> products, const DeviceActs& acts, const Workspace& workspace,
                 gpuStream_t stream, bool any_gpu) {
  const HalfKernel kernel = kernel_for(acts.n_row, false, any_gpu);
  for (size_t begin = 0; begin < products.size();) {
    const WeightForm form = products[begin].weight->form;
    HalfJob job{};
    int64_t out_tiles = 0, results = 0;
    size_t end = begin;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->form == form) {
      const Product& p = products[end];
      job.products[end++ - begin] = {
          p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out), static_cast<int32_t>(out_tiles), 0};
      out_tiles += out_tiles_of(*p.weight);
      results += acts.n_row * p.weight->n_out;
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_units = static_cast<int>(n_unit(acts.n_in));
    job.n_tiles = static_cast<int>(out_tiles);
    job.n_row_tiles = static_cast<int>((acts.n_row + kernel.rows - 1) / kernel.rows);
    job.split = split_of(out_tiles * job.n_row_tiles, job.n_units, results, count_sms());
    if (results * job.split * 4 > workspace.bytes) job.split = 1;
    job.halves = acts.halves;
    job.row_scales = acts.row_scales;
    job.n_row = static_cast<int>(acts.n_row);
    job.atoms = padded_rows(acts.n_row) / kActAtomRows;
    float* parts = reinterpret_cast<float*>(workspace.data);
    for (size_t i = begin; job.split > 1 && i < end; ++i) {
      HalfProduct& product = job.products[i - begin];
      product.y = parts;
      product.add = nullptr;
      parts += job.split * acts.n_row * product.n_out;
    }
    kernel.run(form, job, stream);
    for (size_t i = begin; job.split > 1 && i < end; ++i) {
      const int64_t n = acts.n_row * products[i].weight->n_out;
      launch(add_parts, dim3(static_cast<unsigned>(std::min<int64_t>((n + 255) / 256, 1056))), dim3(256), 0, stream,
             job.products[i - begin].y, job.split, n, products[i].y, products[i].add);
    }
    begin = end;
  }
}

int64_t experts_half_workspace(const DeviceWeight& weight, int64_t max_rows) {
  const int64_t atoms = sorted_atoms(max_rows, weight.n_expert);
  return atoms * (n_unit(weight.n_in) * 2 * kActAtomBytes + kActAtomRows * 4);
}

void matmul_experts_half(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                         const ExpertGroups& groups, const Workspace& workspace, gpuStream_t stream) {
  const int64_t units = n_unit(acts.n_in), atoms = sorted_atoms(groups.n_row, groups.n_expert);
  uint8_t* sorted = workspace.data;
  float* sorted_scales = reinterpret_cast<float*>(sorted + atoms * units * 2 * kActAtomBytes);
  launch(sort_halves, dim3(static_cast<unsigned>(atoms)), dim3(kActAtomRows * kWarp), 0, stream, acts.halves,
         acts.row_scales, padded_rows(acts.n_row) / kActAtomRows, shared_input ? groups.n_used : 1, units * 2, groups,
         sorted, sorted_scales, atoms);
  const HalfKernel kernel = kernel_for(groups.n_row, true, false);
  for (size_t begin = 0; begin < products.size();) {
    const WeightForm form = products[begin].weight->form;
    HalfJob job{};
    size_t end = begin;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->form == form) {
      const DeviceWeight& weight = *products[end].weight;
      job.products[end - begin] = {weight.data, products[end].y,    nullptr, static_cast<int32_t>(weight.n_out),
                                   job.n_tiles, weight.expert_bytes};
      job.n_tiles += static_cast<int>(out_tiles_of(weight));
      ++end;
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_units = static_cast<int>(units);
    job.n_row_tiles = static_cast<int>((groups.n_row + kernel.rows - 1) / kernel.rows + groups.n_expert);
    job.split = 1;
    job.halves = sorted;
    job.row_scales = sorted_scales;
    job.n_row = static_cast<int>(groups.n_row);
    job.atoms = atoms;
    job.n_expert = static_cast<int>(groups.n_expert);
    job.offsets = groups.offsets;
    job.order = groups.order;
    kernel.run(form, job, stream);
    begin = end;
  }
}

}  // namespace onebit::cuda
