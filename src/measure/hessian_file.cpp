#include "measure/hessian_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "gguf/keys.h"
#include "gguf/writer.h"

namespace onebit {
namespace {

int64_t triangle(int64_t k) { return k * (k + 1) / 2; }

std::string name_of(const InputGroup& group, const char* suffix) { return group.matrices.front()->name + suffix; }

void write_sums(GgufWriter& writer, const std::string& name, const Moments& moments) {
  const std::vector<float> zeros(static_cast<size_t>(moments.k));
  for (const std::vector<float>& sum : moments.sums) {
    for (int64_t i = 0; i < moments.k; ++i) {
      const float* row = sum.empty() ? zeros.data() : sum.data() + i * moments.k + i;
      writer.write(name, {reinterpret_cast<const uint8_t*>(row), static_cast<size_t>(moments.k - i) * 4});
    }
  }
}

/// Upper triangles into [k, k]. False when a value can't be a moment.
bool read_sums(const TensorInfo& tensor, Moments& moments) {
  const int64_t k = moments.k;
  const uint8_t* from = tensor.data.data();
  bool fine = true;
  for (std::vector<float>& sum : moments.sums) {
    sum.resize(static_cast<size_t>(k * k));
    for (int64_t i = 0; i < k; ++i) {
      float* row = sum.data() + i * k + i;
      std::memcpy(row, from, static_cast<size_t>(k - i) * 4);
      from += (k - i) * 4;
      fine = fine && row[0] >= 0 && std::all_of(row, row + k - i, [](float value) { return std::isfinite(value); });
    }
  }
  return fine;
}

}  // namespace

int64_t write_hessians(Model& model, const TextChunks& chunks, const MeasureOptions& options,
                       const std::string& dataset, const std::string& path,
                       const std::function<void(double)>& progress) {
  GgufWriter writer(path);
  int64_t runs = 0, n_run = 0, n_input = 0;
  TextMoments source(model, chunks, options,
                     [&] { progress(static_cast<double>(runs++) / static_cast<double>(n_run)); });
  n_run = source.blocks().n_block() * chunks.n_chunk();
  writer.add(keys::kType, hessian::kType);
  writer.add(hessian::kArchitecture, model.file().require<std::string>(keys::kArchitecture));
  writer.add(hessian::kBlockCount, static_cast<uint32_t>(source.blocks().n_block()));
  writer.add(hessian::kHadamard, int32_t{0});
  writer.add(hessian::kDatasets, std::vector<std::string>{dataset});
  writer.add(hessian::kChunkCount, static_cast<uint32_t>(chunks.n_chunk()));
  writer.add(hessian::kChunkSize, static_cast<uint32_t>(chunks.n_ctx));
  for (int64_t i = 0; i < source.blocks().n_block(); ++i) {
    for (const InputGroup& group : source.blocks().groups(i)) {
      if (!has_moments(group)) continue;
      const int64_t sums[] = {group.n_matrix(), triangle(group.k)}, counts[] = {group.n_matrix()};
      writer.declare(name_of(group, hessian::kSums), BlockType::f32, sums);
      writer.declare(name_of(group, hessian::kCounts), BlockType::i64, counts);
      ++n_input;
    }
  }
  for (int64_t i = 0; i < source.blocks().n_block(); ++i) {
    for (const auto& [group, moments] : source.block(i)) {
      if (!has_moments(group)) continue;
      write_sums(writer, name_of(group, hessian::kSums), moments);
      writer.write(name_of(group, hessian::kCounts),
                   {reinterpret_cast<const uint8_t*>(moments.counts.data()), moments.counts.size() * 8});
    }
  }
  writer.finish();
  return n_input;
}

HessianFile::HessianFile(const std::string& path, Model& model) : file_(GgufFile::open(path)), blocks_(model) {
  if (file_.get_or<std::string>(keys::kType, "") != hessian::kType) {
    refuse("{}: expected second moments made by `1bit imatrix --hessian`, found another file", path);
  }
  const auto architecture = file_.require<std::string>(hessian::kArchitecture);
  const auto expected = model.file().require<std::string>(keys::kArchitecture);
  if (architecture != expected) {
    refuse("{}: expected moments of a {} model, found {}", path, printable(expected), printable(architecture));
  }
  if (file_.require<uint32_t>(hessian::kBlockCount) != static_cast<uint32_t>(blocks_.n_block())) {
    refuse("{}: expected moments of {} blocks, found {}: is it another model's?", path, blocks_.n_block(),
           file_.require<uint32_t>(hessian::kBlockCount));
  }
  if (const auto rotation = file_.require<int32_t>(hessian::kHadamard); rotation != 0) {
    refuse("{}: expected moments of inputs that are not rotated, found {} = {}", path, hessian::kHadamard, rotation);
  }
  size_t n_known = 0;
  for (int64_t i = 0; i < blocks_.n_block(); ++i) {
    for (const InputGroup& group : blocks_.groups(i)) check(group, n_known);
  }
  if (n_known != file_.tensors().size()) {
    refuse("{}: expected {} tensors, found {}: is it another model's?", path, n_known, file_.tensors().size());
  }
}

/// By any of the matrices that share the input.
const TensorInfo* HessianFile::find(const InputGroup& group, const char* suffix) const {
  for (const Weight* matrix : group.matrices) {
    if (const TensorInfo* tensor = file_.find(matrix->name + suffix)) return tensor;
  }
  return nullptr;
}

void HessianFile::check(const InputGroup& group, size_t& n_known) const {
  if (!has_moments(group)) return;
  const TensorInfo *sums = find(group, hessian::kSums), *counts = find(group, hessian::kCounts);
  const std::string& name = group.matrices.front()->name;
  if (!sums || !counts) refuse("{}: expected moments of the inputs of {}, found none", file_.path(), printable(name));
  const std::vector<int64_t> shape = {group.n_matrix(), triangle(group.k)};
  if (sums->type != BlockType::f32 || sums->shape != shape) {
    refuse("{}: {}: expected {} f32, found {} {}: is it another model's?", file_.path(), printable(sums->name),
           shape_text(shape), shape_text(sums->shape), type_name(sums->type));
  }
  if (counts->type != BlockType::i64 || counts->shape != std::vector<int64_t>{group.n_matrix()}) {
    refuse("{}: {}: expected {} counts (i64), found {} {}", file_.path(), printable(counts->name), group.n_matrix(),
           shape_text(counts->shape), type_name(counts->type));
  }
  n_known += 2;
}

std::vector<InputMoments> HessianFile::block(int64_t i) {
  std::vector<InputMoments> inputs;
  for (const InputGroup& group : blocks_.groups(i)) {
    Moments moments = Moments::none(group.k, group.n_matrix());
    if (has_moments(group)) {
      const TensorInfo *sums = find(group, hessian::kSums), *counts = find(group, hessian::kCounts);
      std::memcpy(moments.counts.data(), counts->data.data(), counts->data.size());
      const bool counted = std::all_of(moments.counts.begin(), moments.counts.end(),
                                       [](int64_t n) { return n >= 0 && n < int64_t{1} << 53; });
      if (!read_sums(*sums, moments) || !counted) {
        refuse("{}: {}: expected finite sums of products, found others", file_.path(), printable(sums->name));
      }
      file_.release(*sums);
    }
    inputs.push_back({group, std::move(moments)});
  }
  return inputs;
}

}  // namespace onebit
