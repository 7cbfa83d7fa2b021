// Reading a file: header, metadata, tensor directory, split parts. Typed access to metadata is in file_values.cpp.
#include "gguf/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "gguf/keys.h"
#include "gguf/reader.h"

namespace onebit {
namespace {

constexpr uint32_t kMagic = 0x46554747;       // "GGUF"
constexpr uint64_t kMaxKeyBytes = 65535;      // the format's own limit
constexpr uint64_t kMaxTensorNameBytes = 63;  // what other readers hold
constexpr uint32_t kMaxParts = 9999;          // parts of a split file; five digits in the name, far above real files
// Smallest records: what a count may at most promise, given the bytes that are left.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // key of one byte, type, one byte of value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name of one byte, one dimension

struct Header {
  uint32_t version;
  uint64_t n_tensors, n_entries;
};

Header read_header(Reader& in) {
  const auto magic = in.number<uint32_t>("the magic number");
  if (magic != kMagic) {
    refuse("{}: expected a GGUF file (first bytes \"GGUF\"), found \"{}\"", in.name(),
           printable({reinterpret_cast<const char*>(&magic), 4}));
  }
  Header header{};
  header.version = in.number<uint32_t>("the version");
  if ((header.version & 0xffff) == 0) {
    refuse("{}: the file is big-endian (version {:#x}); convert it to little-endian", in.name(), header.version);
  }
  if (header.version != 2 && header.version != 3) {
    refuse("{}: expected GGUF version 2 or 3, found {}", in.name(), header.version);
  }
  header.n_tensors = in.number<uint64_t>("the tensor count");
  header.n_entries = in.number<uint64_t>("the metadata count");
  if (header.n_entries > in.left() / kMinEntryBytes) {
    refuse("{}: {} metadata entries can't fit into {} bytes", in.name(), header.n_entries, in.left());
  }
  if (header.n_tensors > in.left() / kMinTensorBytes) {
    refuse("{}: {} tensors can't fit into {} bytes", in.name(), header.n_tensors, in.left());
  }
  return header;
}

ValueType read_value_type(Reader& in, std::string_view key) {
  const auto id = in.number<uint32_t>("a value type");
  if (id > static_cast<uint32_t>(ValueType::f64)) {
    refuse("{}: key {}: expected a value type of 0 to 12, found {}", in.name(), printable(key), id);
  }
  return static_cast<ValueType>(id);
}

/// The bytes of `count` elements, walked once so that later access needs no checks.
std::span<const uint8_t> take_elements(Reader& in, std::string_view key, ValueType type, uint64_t count) {
  if (type == ValueType::array) refuse("{}: key {}: arrays of arrays are not supported", in.name(), printable(key));
  if (type != ValueType::string) {
    const uint64_t size = value_bytes(type);
    if (count > in.left() / size) {
      refuse("{}: key {}: {} elements of {} bytes can't fit into the {} bytes that are left", in.name(), printable(key),
             count, size, in.left());
    }
    return in.take(count * size, "a value");
  }
  if (count > in.left() / sizeof(uint64_t)) {
    refuse("{}: key {}: {} strings can't fit into the {} bytes that are left", in.name(), printable(key), count,
           in.left());
  }
  Reader measure = in;
  for (uint64_t i = 0; i < count; ++i) measure.string("a string");
  return in.take(measure.position() - in.position(), "strings");
}

MetaEntry read_entry(Reader& in) {
  MetaEntry entry;
  const std::string_view key = in.string("a metadata key");
  if (key.empty() || key.size() > kMaxKeyBytes) {
    refuse("{}: expected a metadata key of 1 to {} bytes, found {}", in.name(), kMaxKeyBytes, key.size());
  }
  entry.key = key;
  MetaValue& value = entry.value;
  value.type = value.element = read_value_type(in, key);
  if (value.type == ValueType::array) {
    value.element = read_value_type(in, key);
    value.count = in.number<uint64_t>("an array length");
  }
  value.bytes = take_elements(in, key, value.element, value.count);
  return entry;
}

/// Alignment of the data section. Some writers store it as i32.
uint64_t read_alignment(const std::vector<MetaEntry>& entries, const std::string& name) {
  for (const MetaEntry& entry : entries) {
    if (entry.key != keys::kAlignment) continue;
    const ValueType type = entry.value.type;
    if (type != ValueType::u32 && type != ValueType::i32) {
      refuse("{}: key {}: expected u32, found {}", name, keys::kAlignment, value_type_name(type));
    }
    uint32_t alignment;
    std::memcpy(&alignment, entry.value.bytes.data(), sizeof alignment);
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > 65536) {
      refuse("{}: key {}: expected a power of two from 8 to 65536, found {}", name, keys::kAlignment, alignment);
    }
    return alignment;
  }
  return 32;
}

/// Shape and type of a tensor and where its data lies, before the data section is known.
struct Record {
  TensorInfo info;
  uint64_t offset, size;
};

uint64_t data_bytes(const TensorInfo& info, const std::string& file) {
  const TypeInfo& type = type_info(info.type);
  if (info.n_cols() % type.block_elems != 0) {
    refuse("{}: tensor {}: rows of {} elements are no multiple of the {} elements of a {} block", file,
           printable(info.name), info.n_cols(), type.block_elems, type.name);
  }
  int64_t size = 0;
  bool overflow = __builtin_mul_overflow(info.n_cols() / type.block_elems, type.block_bytes, &size);
  for (size_t i = 0; i + 1 < info.shape.size(); ++i) overflow |= __builtin_mul_overflow(size, info.shape[i], &size);
  if (overflow) refuse("{}: tensor {}: the shape {} overflows", file, printable(info.name), shape_text(info.shape));
  return static_cast<uint64_t>(size);
}

Record read_record(Reader& in) {
  Record record{};
  TensorInfo& info = record.info;
  const std::string_view name = in.string("a tensor name");
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    refuse("{}: expected a tensor name of 1 to {} bytes, found {} bytes", in.name(), kMaxTensorNameBytes, name.size());
  }
  info.name = name;
  const auto n_dims = in.number<uint32_t>("a dimension count");
  if (n_dims < 1 || n_dims > 4) {
    refuse("{}: tensor {}: expected 1 to 4 dimensions, found {}", in.name(), printable(name), n_dims);
  }
  info.shape.resize(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    const auto size = in.number<uint64_t>("a dimension");
    if (size == 0 || size > INT64_MAX) {
      refuse("{}: tensor {}: expected dimensions from 1 to 2^63 - 1, found {}", in.name(), printable(name), size);
    }
    info.shape[n_dims - 1 - i] = static_cast<int64_t>(size);  // the file lists the contiguous dimension first
  }
  const auto type = in.number<uint32_t>("a tensor type");
  if (!known_type(type)) {
    refuse("{}: tensor {}: type {} is unknown (retired, or another program's own format)", in.name(), printable(name),
           type);
  }
  info.type = static_cast<BlockType>(type);
  record.offset = in.number<uint64_t>("a tensor offset");
  record.size = data_bytes(info, in.name());
  return record;
}

/// Gives the tensors of a part their data. They must be aligned, in order, apart from each other and inside the file.
void place_tensors(std::vector<Record>& records, std::span<const uint8_t> section, uint64_t alignment,
                   const std::string& name) {
  uint64_t end = 0;
  for (Record& record : records) {
    const std::string tensor = printable(record.info.name);
    if (record.offset % alignment != 0) {
      refuse("{}: tensor {}: offset {} is no multiple of the alignment {}", name, tensor, record.offset, alignment);
    }
    if (record.offset < end) {
      refuse("{}: tensor {}: offset {} lies before the end of the tensor in front of it, {}", name, tensor,
             record.offset, end);
    }
    if (record.offset > section.size() || record.size > section.size() - record.offset) {
      refuse(
          "{}: tensor {}: {} bytes at offset {} end behind the data section of {} bytes: the file is cut short or "
          "damaged",
          name, tensor, record.size, record.offset, section.size());
    }
    record.info.data = section.subspan(record.offset, record.size);
    end = record.offset + record.size;
  }
}

/// Reads one part completely; the file's index is built later.
void read_part(std::span<const uint8_t> bytes, const std::string& name, uint32_t& version,
               std::vector<MetaEntry>& entries, std::vector<TensorInfo>& tensors) {
  Reader in(bytes, name);
  const Header header = read_header(in);
  version = header.version;
  for (uint64_t i = 0; i < header.n_entries; ++i) entries.push_back(read_entry(in));
  std::vector<Record> records;
  for (uint64_t i = 0; i < header.n_tensors; ++i) records.push_back(read_record(in));
  const uint64_t alignment = read_alignment(entries, name);
  // A file without tensors may end right after its metadata.
  const uint64_t padding = (alignment - in.position() % alignment) % alignment;
  if (!records.empty()) in.take(padding, "the padding before the data section");
  place_tensors(records, bytes.subspan(in.position()), alignment, name);
  for (Record& record : records) tensors.push_back(std::move(record.info));
}

/// Path of part `no` (from 0) of a split file, given the path of its first part.
std::string part_path(const std::string& first, uint32_t no, uint32_t count) {
  const std::string suffix = fmt::format("-00001-of-{:05}.gguf", count);
  if (!first.ends_with(suffix)) {
    refuse("{}: the file is part 1 of {} but its name doesn't end in {}: restore its name beside the other parts",
           first, count, suffix);
  }
  return fmt::format("{}-{:05}-of-{:05}.gguf", first.substr(0, first.size() - suffix.size()), no + 1, count);
}

}  // namespace

int64_t TensorInfo::n_elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 100)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > 100) out += "...";
  return out;
}

GgufFile GgufFile::open(const std::string& path) { return from_mapping(MappedFile(path)); }

GgufFile GgufFile::from_mapping(MappedFile mapping) {
  GgufFile file;
  file.path_ = mapping.path();
  const MappedFile& first = file.parts_.emplace_back(std::move(mapping));
  file.file_bytes_ = first.bytes().size();
  read_part(first.bytes(), file.path_, file.version_, file.metadata_, file.tensors_);
  file.index_metadata();
  file.open_other_parts();
  file.index_tensors();
  return file;
}

GgufFile GgufFile::from_memory(std::span<const uint8_t> bytes, std::string name) {
  GgufFile file;
  file.path_ = std::move(name);
  file.file_bytes_ = bytes.size();
  read_part(bytes, file.path_, file.version_, file.metadata_, file.tensors_);
  file.index_metadata();
  if (file.get_or<uint32_t>(keys::kSplitCount, 1) > 1) refuse("{}: a split file can't be read from memory", file.path_);
  file.index_tensors();
  return file;
}

void GgufFile::open_other_parts() {
  const auto count = get_or<uint32_t>(keys::kSplitCount, 1);
  if (count <= 1) return;
  if (count > kMaxParts)
    refuse("{}: key {}: expected at most {}, found {}", path_, keys::kSplitCount, kMaxParts, count);
  const auto no = get_or<uint32_t>(keys::kSplitNo, 0);
  if (no != 0)
    refuse("{}: this is part {} of {}: give the first part, the others are found beside it", path_, no + 1, count);
  for (uint32_t i = 1; i < count; ++i) {
    const std::string part = part_path(path_, i, count);
    GgufFile other;
    other.path_ = part;
    const MappedFile& mapped = parts_.emplace_back(part);
    file_bytes_ += mapped.bytes().size();
    read_part(mapped.bytes(), part, other.version_, other.metadata_, tensors_);
    other.index_metadata();
    const auto part_no = other.require<uint32_t>(keys::kSplitNo);
    const auto part_count = other.require<uint32_t>(keys::kSplitCount);
    if (part_no != i || part_count != count) {
      refuse("{}: expected part {} of {}, found part {} of {}", part, i + 1, count, part_no + 1, part_count);
    }
  }
  const auto total = get_or<uint64_t>(keys::kSplitTensorsCount, tensors_.size());
  if (total != tensors_.size()) {
    refuse("{}: key {} promises {} tensors, the {} parts hold {}", path_, keys::kSplitTensorsCount, total, count,
           tensors_.size());
  }
}

void GgufFile::index_metadata() {
  for (size_t i = 0; i < metadata_.size(); ++i) {
    if (!key_index_.emplace(metadata_[i].key, i).second) {
      refuse("{}: metadata key {} occurs twice", path_, printable(metadata_[i].key));
    }
  }
}

void GgufFile::index_tensors() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      refuse("{}: tensor {} occurs twice", path_, printable(tensors_[i].name));
    }
  }
}

const MetaValue* GgufFile::find_value(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &metadata_[found->second].value;
}

const TensorInfo* GgufFile::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& GgufFile::tensor(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (!info) refuse("{}: tensor {} is missing", path_, name);
  return *info;
}

const MappedFile* GgufFile::part_with(std::span<const uint8_t> data) const {
  for (const MappedFile& part : parts_) {
    const auto bytes = part.bytes();
    if (data.data() >= bytes.data() && data.data() < bytes.data() + bytes.size()) return &part;
  }
  return nullptr;
}

void GgufFile::fetch(std::span<const uint8_t> data) const {
  if (const MappedFile* part = part_with(data)) part->fetch(data);
}

void GgufFile::release(const TensorInfo& tensor) const {
  if (const MappedFile* part = part_with(tensor.data)) part->release(tensor.data);
}

std::string GgufFile::architecture() const { return require<std::string>(keys::kArchitecture); }

}  // namespace onebit
