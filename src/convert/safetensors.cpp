// A safetensors file is u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
#include "convert/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "convert/json_file.h"
#include "gguf/file.h"

namespace onebit {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeaderBytes = 32 << 20;  // room for a quarter of a million tensors

struct Dtype {
  const char* name;
  int64_t bytes;
  std::optional<BlockType> type;
};

constexpr Dtype kDtypes[] = {
    {"F32", 4, BlockType::f32},
    {"F16", 2, BlockType::f16},
    {"BF16", 2, BlockType::bf16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

const Dtype& find_dtype(const std::string& name, const std::string& where) {
  const auto found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return name == d.name; });
  if (found == std::end(kDtypes)) refuse("{}: field dtype: {} is unknown", where, printable(name));
  return *found;
}

HfTensor read_tensor(const std::string& name, const JsonObject& entry, std::span<const uint8_t> data) {
  HfTensor tensor;
  tensor.name = name;
  tensor.dtype = entry.text("dtype").value_or("");
  const Dtype& dtype = find_dtype(tensor.dtype, entry.where());
  tensor.type = dtype.type;
  const auto shape = entry.integers("shape"), offsets = entry.integers("data_offsets");
  if (!shape || !offsets || offsets->size() != 2) refuse("{}: expected shape and two data_offsets", entry.where());
  tensor.shape = *shape;
  int64_t bytes = dtype.bytes;
  bool bad = shape->size() > 8;
  for (const int64_t size : *shape) bad = bad || size < 0 || __builtin_mul_overflow(bytes, size, &bytes);
  if (bad) refuse("{}: the shape {} is impossible", entry.where(), shape_text(*shape));
  const int64_t begin = offsets->at(0), end = offsets->at(1);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > data.size()) {
    refuse("{}: data from {} to {} lies outside the {} bytes of the file: it is cut short or damaged", entry.where(),
           begin, end, data.size());
  }
  if (end - begin != bytes) {
    refuse("{}: {} {} needs {} bytes, data_offsets give {}", entry.where(), shape_text(*shape), dtype.name, bytes,
           end - begin);
  }
  tensor.data = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  return tensor;
}

/// Names of the shards that an index lists. They must be plain names: an index can't point out of its folder.
std::set<std::string> shard_names(const std::string& index_path) {
  const auto map = JsonObject::read(index_path).object("weight_map");
  if (!map) refuse("{}: field weight_map is missing", index_path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->json().items()) {
    const std::string name = map->text(tensor).value_or("");
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      refuse("{}: tensor {}: expected the name of a file in the same folder, found {}", index_path, printable(tensor),
             printable(name));
    }
    names.insert(name);
  }
  return names;
}

/// The one .safetensors file of a folder without an index.
std::string only_file(const std::string& folder) {
  if (!fs::is_directory(folder)) refuse("{}: expected a folder with a Hugging Face checkpoint", folder);
  const std::string usual = folder + "/model.safetensors";
  if (fs::exists(usual)) return usual;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path().string());
  }
  if (found.size() != 1) refuse("{}: expected model.safetensors, found {} files of that kind", folder, found.size());
  return found.front();
}

}  // namespace

int64_t HfTensor::n_elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

void Checkpoint::add_file(const std::string& path) {
  const std::span<const uint8_t> bytes = files_.emplace_back(path).bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() >= 8) std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes < 2 || header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - 8) {
    refuse("{}: expected a safetensors file, found a header of {} bytes in a file of {}", path, header_bytes,
           bytes.size());
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
  const JsonObject header = JsonObject::parse({text, header_bytes}, path);
  const std::span<const uint8_t> data = bytes.subspan(8 + header_bytes);
  for (const auto& [name, entry] : header.json().items()) {
    if (name == "__metadata__") continue;
    HfTensor tensor = read_tensor(name, JsonObject(entry, path + ": tensor " + printable(name)), data);
    if (!tensors_.emplace(name, std::move(tensor)).second) refuse("{}: tensor {} occurs twice", path, printable(name));
  }
}

Checkpoint Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  const std::string index = folder + "/model.safetensors.index.json";
  if (!fs::exists(index)) {
    checkpoint.add_file(only_file(folder));
    return checkpoint;
  }
  for (const std::string& name : shard_names(index)) checkpoint.add_file(folder + "/" + name);
  const auto map = JsonObject::read(index).object("weight_map");
  for (const auto& [tensor, file] : map->json().items()) {
    if (!checkpoint.find(tensor)) refuse("{}: tensor {} is in none of the shards", index, printable(tensor));
  }
  return checkpoint;
}

const HfTensor* Checkpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void Checkpoint::release(const HfTensor& tensor) const {
  for (const MappedFile& file : files_) {
    const auto bytes = file.bytes();
    if (tensor.data.data() >= bytes.data() && tensor.data.data() < bytes.data() + bytes.size()) {
      return file.release(tensor.data);
    }
  }
}

}  // namespace onebit
