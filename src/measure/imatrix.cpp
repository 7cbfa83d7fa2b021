#include "measure/imatrix.h"

#include <map>

#include "convert/importance.h"
#include "gguf/keys.h"
#include "gguf/writer.h"

namespace onebit {
namespace {

struct Sums {
  int64_t k = 0;
  std::vector<float> squares;  // [n_matrix, k]
  std::vector<float> counts;   // [n_matrix]
};

void add_row(Sums& sums, int64_t matrix, const float* x) {
  float* to = sums.squares.data() + matrix * sums.k;
  for (int64_t i = 0; i < sums.k; ++i) to[i] += x[i] * x[i];
  sums.counts[static_cast<size_t>(matrix)] += 1;
}

void add_rows(Sums& sums, const InputGroup& group, const InputRows& rows) {
  if (group.n_used == 0) {
    for (int64_t r = 0; r < rows.n_row; ++r) add_row(sums, 0, rows.x.data() + r * group.k);
    return;
  }
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / (rows.multiple == 1 ? group.n_used : 1);
    add_row(sums, rows.ids[i], rows.x.data() + row * group.k);
  }
}

std::span<const uint8_t> bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4};
}

}  // namespace

int64_t write_imatrix(Model& model, const TextChunks& chunks, const MeasureOptions& options, const std::string& dataset,
                      const std::string& path, const std::function<void(double)>& progress) {
  GgufWriter writer(path);
  std::map<std::string, Sums> by_tensor;
  BlockWalk walk(model, chunks, options);
  int64_t runs = 0;
  while (walk.next() < walk.blocks().n_block()) {
    std::map<std::pair<int32_t, int64_t>, Sums> by_input;  // matrices of a group share their sums
    const std::vector<InputGroup> groups = walk.blocks().groups(walk.next());
    walk.run(
        [&](const InputGroup& group, const InputRows& rows) {
          Sums& sums = by_input[{group.x.id, group.n_used}];
          if (sums.k == 0) {
            const auto n = static_cast<size_t>(group.n_matrix());
            sums = {group.k, std::vector<float>(n * static_cast<size_t>(group.k)), std::vector<float>(n)};
          }
          add_rows(sums, group, rows);
        },
        [&] {
          progress(static_cast<double>(runs++) / static_cast<double>(walk.blocks().n_block() * chunks.n_chunk()));
        });
    for (const InputGroup& group : groups) {
      for (const Weight* matrix : group.matrices) by_tensor[matrix->name] = by_input[{group.x.id, group.n_used}];
    }
  }
  writer.add(keys::kType, imatrix::kType);
  writer.add(imatrix::kDatasets, std::vector<std::string>{dataset});
  writer.add(imatrix::kChunkCount, static_cast<uint32_t>(chunks.n_chunk()));
  writer.add(imatrix::kChunkSize, static_cast<uint32_t>(chunks.n_ctx));
  for (const auto& [name, sums] : by_tensor) {
    const auto n = static_cast<int64_t>(sums.counts.size());
    writer.declare(name + imatrix::kSums, BlockType::f32, std::vector<int64_t>{n, sums.k});
    writer.declare(name + imatrix::kCounts, BlockType::f32, std::vector<int64_t>{n, 1});
  }
  for (const auto& [name, sums] : by_tensor) {
    writer.write(name + imatrix::kSums, bytes_of(sums.squares));
    writer.write(name + imatrix::kCounts, bytes_of(sums.counts));
  }
  writer.finish();
  return static_cast<int64_t>(by_tensor.size());
}

}  // namespace onebit
