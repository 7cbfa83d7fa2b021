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

namespace onebit {
namespace {

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

GgufWriter::GgufWriter(const std::string& path, Temporary temporary) : GgufHead(path), path_(path) {
  const std::filesystem::path target(path);
  folder_ = target.has_parent_path() ? target.parent_path().string() : ".";
  temporary_path_ = folder_ + "/." + target.filename().string() + "." + std::to_string(::getpid()) + ".part";
  if (std::filesystem::is_directory(target))
    fail(ErrorKind::usage, "{}: expected a file to write, found a folder", path);
  if (temporary == Temporary::unnamed) fd_ = open_unnamed(folder_);
  for (int i = 0; fd_ < 0 && i < 16; ++i) {  // two files of one name may be under way
    if (i > 0) temporary_path_ += "~";
    fd_ = ::open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    named_ = fd_ >= 0;
    if (fd_ < 0 && errno != EEXIST) break;
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

// --- data -----------------------------------------------------------------------------------------------------------

void GgufWriter::write_head() {
  const std::vector<uint8_t> bytes = head_bytes();
  fixed_ = true;
#ifdef __linux__
  // Reserves the whole size, so that a full disk is found now and not after the work. Not every file system can do it.
  const uint64_t total = bytes.size() + data_bytes();
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
    if (n < 0) write_failed(path_, errno, data_bytes());
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += static_cast<uint64_t>(n);
  }
}

void GgufWriter::pad() {
  constexpr uint8_t kZeros[kAlignment] = {};
  append({kZeros, (kAlignment - written_ % kAlignment) % kAlignment});
}

void GgufWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  CHECK(fd_ >= 0);
  if (!fixed_) write_head();
  CHECK(current_ < tensors().size() && tensors()[current_].name == name);
  CHECK(bytes.size() <= tensors()[current_].size - current_written_);
  append(bytes);
  current_written_ += bytes.size();
  if (current_written_ < tensors()[current_].size) return;
  pad();
  ++current_;
  current_written_ = 0;
}

// --- completion -----------------------------------------------------------------------------------------------------

void GgufWriter::verify(const std::function<void(const GgufFile&)>& check) const {
  const GgufFile file = GgufFile::open("/proc/self/fd/" + std::to_string(fd_));
  bool same = file.metadata().size() == n_entries() && file.tensors().size() == tensors().size();
  for (size_t i = 0; same && i < tensors().size(); ++i) {
    const TensorInfo& read = file.tensors()[i];
    const Tensor& meant = tensors()[i];
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

void GgufWriter::review(const std::function<void(const GgufFile&)>& check) {
  CHECK(fd_ >= 0);
  if (!fixed_) write_head();
  CHECK(current_ == tensors().size());
  verify(check);
}

void GgufWriter::finish(const std::function<void(const GgufFile&)>& check) {
  review(check);
  if (::fsync(fd_) != 0) write_failed(path_, errno, written_);
  give_name();
  abandon();
}

}  // namespace onebit
