#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace onebit {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse("{}: can't be opened: {}", path, std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular || info.st_size == 0) {
    ::close(fd);
    refuse("{}: expected a file with content, found {}", path, regular ? "an empty file" : "something that is no file");
  }
  size_ = static_cast<size_t>(info.st_size);
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (map == MAP_FAILED) fail(ErrorKind::runtime, "{}: can't be mapped: {}", path, std::strerror(error));
  data_ = static_cast<const uint8_t*>(map);
  ::madvise(map, size_, MADV_HUGEPAGE);  // read from the disk in huge pages where the file system has them
}

MappedFile MappedFile::in_memory(std::string name, size_t size) {
  MappedFile file;
  file.path_ = std::move(name);
  void* map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) fail(ErrorKind::out_of_memory, "{}: no {} bytes of memory", file.path_, size);
  file.data_ = static_cast<const uint8_t*>(map);
  file.size_ = size;
  file.writable_ = true;
  return file;
}

std::span<uint8_t> MappedFile::writable_bytes() {
  CHECK(writable_);
  return {const_cast<uint8_t*>(data_), size_};
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      writable_(other.writable_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(writable_, other.writable_);
  return *this;
}

void MappedFile::fetch(std::span<const uint8_t> part) const {
  constexpr int kPopulateRead = 22;  // Linux 5.14; older headers don't have the name
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const size_t size = reinterpret_cast<uintptr_t>(part.data()) + part.size() - begin;
  if (::madvise(reinterpret_cast<void*>(begin), size, kPopulateRead) == 0) return;
  ::madvise(reinterpret_cast<void*>(begin), size, MADV_WILLNEED);  // whoever reads it waits instead
}

void MappedFile::release(std::span<const uint8_t> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace onebit
