// Builds the head of a file in memory, streams the data behind it, and gives the file its name only when it is whole.
#include "gguf/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

constexpr uint64_t kAlignment = 32;  // the format's default, so the key need not be written
constexpr uint32_t kVersion = 3;

uint64_t padding_after(uint64_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

template <class T>
void put(std::vector<uint8_t>& out, T value) {
  const size_t end = out.size();
  out.resize(end + sizeof value);
  std::memcpy(out.data() + end, &value, sizeof value);
}

void put_string(std::vector<uint8_t>& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

[[noreturn]] void write_failed(const std::string& path, int error, uint64_t needed) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    fail(ErrorKind::runtime, "{}: the disk is full or the file too large ({} bytes are needed): {}", path, needed,
         std::strerror(error));
  }
  fail(ErrorKind::runtime, "{}: can't be written: {}", path, std::strerror(error));
}

int open_unnamed(const std::string& folder) {
#ifdef O_TMPFILE
  return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
#else
  static_cast<void>(folder);
  errno = EOPNOTSUPP;
  return -1;
#endif
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path, Temporary temporary) : path_(path) {
  const std::filesystem::path target(path);
  folder_ = target.has_parent_path() ? target.parent_path().string() : ".";
  temporary_path_ = folder_ + "/." + target.filename().string() + "." + std::to_string(::getpid()) + ".part";
  if (std::filesystem::is_directory(target))
    fail(ErrorKind::usage, "{}: expected a file to write, found a folder", path);
  if (temporary == Temporary::unnamed) fd_ = open_unnamed(folder_);
  if (fd_ < 0) {
    fd_ = ::open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    named_ = fd_ >= 0;
  }
  if (fd_ < 0) fail(ErrorKind::runtime, "{}: can't be created: {}", path, std::strerror(errno));
}

GgufWriter::~GgufWriter() { abandon(); }

void GgufWriter::abandon() noexcept {
  if (named_) ::unlink(temporary_path_.c_str());
  if (fd_ >= 0) ::close(fd_);
  named_ = false;
  fd_ = -1;
}

// --- metadata -------------------------------------------------------------------------------------------------------

void GgufWriter::set(std::string_view key, ValueType type, ValueType element, uint64_t count,
                     std::vector<uint8_t> bytes) {
  CHECK(!head_written_ && !key.empty());
  if (key == keys::kAlignment) return;
  Entry entry{std::string(key), type, element, count, std::move(bytes)};
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (same == entries_.end()) {
    entries_.push_back(std::move(entry));
  } else {
    *same = std::move(entry);
  }
}

void GgufWriter::remove(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

template <class T>
void GgufWriter::set_number(std::string_view key, ValueType type, T value) {
  std::vector<uint8_t> bytes;
  put(bytes, value);
  set(key, type, type, 1, std::move(bytes));
}

template <class T>
void GgufWriter::set_numbers(std::string_view key, ValueType element, const std::vector<T>& values) {
  std::vector<uint8_t> bytes;
  for (const T value : values) put(bytes, value);
  set(key, ValueType::array, element, values.size(), std::move(bytes));
}

void GgufWriter::add(std::string_view key, bool value) { set_number<uint8_t>(key, ValueType::boolean, value); }
void GgufWriter::add(std::string_view key, uint16_t value) { set_number(key, ValueType::u16, value); }
void GgufWriter::add(std::string_view key, uint32_t value) { set_number(key, ValueType::u32, value); }
void GgufWriter::add(std::string_view key, int32_t value) { set_number(key, ValueType::i32, value); }
void GgufWriter::add(std::string_view key, uint64_t value) { set_number(key, ValueType::u64, value); }
void GgufWriter::add(std::string_view key, int64_t value) { set_number(key, ValueType::i64, value); }
void GgufWriter::add(std::string_view key, float value) { set_number(key, ValueType::f32, value); }

void GgufWriter::add(std::string_view key, std::string_view value) {
  std::vector<uint8_t> bytes;
  put_string(bytes, value);
  set(key, ValueType::string, ValueType::string, 1, std::move(bytes));
}

void GgufWriter::add(std::string_view key, const std::vector<bool>& values) {
  set_numbers(key, ValueType::boolean, std::vector<uint8_t>(values.begin(), values.end()));
}
void GgufWriter::add(std::string_view key, const std::vector<int32_t>& values) {
  set_numbers(key, ValueType::i32, values);
}
void GgufWriter::add(std::string_view key, const std::vector<uint32_t>& values) {
  set_numbers(key, ValueType::u32, values);
}
void GgufWriter::add(std::string_view key, const std::vector<float>& values) {
  set_numbers(key, ValueType::f32, values);
}

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
  std::vector<uint8_t> bytes;
  for (const std::string& value : values) put_string(bytes, value);
  set(key, ValueType::array, ValueType::string, values.size(), std::move(bytes));
}

void GgufWriter::add(std::string_view key, const MetaValue& value) {
  set(key, value.type, value.element, value.count, {value.bytes.begin(), value.bytes.end()});
}

// --- tensors --------------------------------------------------------------------------------------------------------

void GgufWriter::declare(std::string_view name, BlockType type, std::span<const int64_t> shape) {
  CHECK(!head_written_);
  const TypeInfo& info = type_info(type);
  const bool sizes_fit = std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size > 0; });
  if (name.empty() || name.size() > 63 || shape.empty() || shape.size() > 4 || !sizes_fit ||
      shape.back() % info.block_elems != 0) {
    fail(ErrorKind::usage,
         "{}: tensor {} {} of {} can't be stored: expected a name of 1 to 63 bytes and 1 to 4 sizes, the last a "
         "multiple of {}",
         path_, printable(name), info.name, shape_text(shape), info.block_elems);
  }
  const bool twice = std::any_of(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  if (twice) fail(ErrorKind::usage, "{}: tensor {} is declared twice", path_, printable(name));
  int64_t size = row_bytes(type, shape.back());
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    if (__builtin_mul_overflow(size, shape[i], &size)) {
      fail(ErrorKind::usage, "{}: tensor {}: the shape {} overflows", path_, printable(name), shape_text(shape));
    }
  }
  const auto bytes = static_cast<uint64_t>(size);
  tensors_.push_back({std::string(name), type, {shape.begin(), shape.end()}, data_bytes_, bytes});
  data_bytes_ += bytes + padding_after(bytes);
}

std::vector<uint8_t> GgufWriter::head() const {
  std::vector<uint8_t> out = {'G', 'G', 'U', 'F'};
  put<uint32_t>(out, kVersion);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, entries_.size());
  for (const Entry& entry : entries_) {
    put_string(out, entry.key);
    put(out, entry.type);
    if (entry.type == ValueType::array) {
      put(out, entry.element);
      put<uint64_t>(out, entry.count);
    }
    out.insert(out.end(), entry.bytes.begin(), entry.bytes.end());
  }
  for (const Tensor& tensor : tensors_) {
    put_string(out, tensor.name);
    put<uint32_t>(out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) put<uint64_t>(out, static_cast<uint64_t>(tensor.shape[i]));
    put(out, tensor.type);
    put<uint64_t>(out, tensor.offset);
  }
  out.resize(out.size() + padding_after(out.size()));
  return out;
}

void GgufWriter::write_head() {
  const std::vector<uint8_t> bytes = head();
  head_written_ = true;
#ifdef __linux__
  // Reserves the whole size, so that a full disk is found now and not after the work. Not every file system can do it.
  const uint64_t total = bytes.size() + data_bytes_;
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(total)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    write_failed(path_, errno, total);
  }
#endif
  append(bytes);
}

void GgufWriter::append(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) write_failed(path_, errno, data_bytes_);
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += static_cast<uint64_t>(n);
  }
}

void GgufWriter::pad() {
  constexpr uint8_t kZeros[kAlignment] = {};
  append({kZeros, padding_after(written_)});
}

void GgufWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  CHECK(fd_ >= 0);
  if (!head_written_) write_head();
  CHECK(current_ < tensors_.size() && tensors_[current_].name == name);
  CHECK(bytes.size() <= tensors_[current_].size - current_written_);
  append(bytes);
  current_written_ += bytes.size();
  if (current_written_ < tensors_[current_].size) return;
  pad();
  ++current_;
  current_written_ = 0;
}

// --- completion -----------------------------------------------------------------------------------------------------

void GgufWriter::verify(const std::function<void(const GgufFile&)>& check) const {
  const GgufFile file = GgufFile::open("/proc/self/fd/" + std::to_string(fd_));
  bool same = file.metadata().size() == entries_.size() && file.tensors().size() == tensors_.size();
  for (size_t i = 0; same && i < tensors_.size(); ++i) {
    const TensorInfo& read = file.tensors()[i];
    const Tensor& meant = tensors_[i];
    same = read.name == meant.name && read.type == meant.type && read.shape == meant.shape &&
           read.data.size() == meant.size;
  }
  if (!same) fail(ErrorKind::runtime, "{}: the written file doesn't read back as it was meant", path_);
  if (check) check(file);
}

void GgufWriter::give_name() {
  if (!named_) {
    const std::string source = "/proc/self/fd/" + std::to_string(fd_);
    if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, temporary_path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      write_failed(path_, errno, written_);
    }
    named_ = true;
  }
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) write_failed(path_, errno, written_);
  named_ = false;
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

void GgufWriter::finish(const std::function<void(const GgufFile&)>& check) {
  CHECK(fd_ >= 0);
  if (!head_written_) write_head();
  CHECK(current_ == tensors_.size());
  verify(check);
  if (::fsync(fd_) != 0) write_failed(path_, errno, written_);
  give_name();
  abandon();
}

}  // namespace onebit
