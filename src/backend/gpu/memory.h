// Owners of device things: memory on the device, pinned memory of the host, streams and events. Each is freed with its
// owner; failures throw (runtime.h).
#pragma once

#include <cstdint>
#include <utility>

#include "backend/gpu/runtime.h"

namespace onebit::gpu {

/// Bytes on the device, 256-byte aligned; not zeroed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(int64_t bytes, const char* what);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory();

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(DeviceMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Bytes of the host that the device copies from and to without a detour.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(int64_t bytes, const char* what);
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedMemory();

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(PinnedMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Stream {
 public:
  /// Of device `ordinal`.
  explicit Stream(int ordinal = 0);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();
  gpuStream_t get() const { return stream_; }
  int ordinal() const { return ordinal_; }
  /// Makes its device the one that this thread allocates on and launches kernels on. With several devices everything
  /// that is called from outside begins with it.
  void use_device() const;
  /// Blocks until all work is done; throws when some of it failed.
  void wait(const char* what) const;

 private:
  int ordinal_;
  gpuStream_t stream_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  /// `timed`: milliseconds_since() may be asked.
  explicit Event(bool timed = false);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();
  void record(gpuStream_t stream);
  /// Holds up what is enqueued on a stream, of any device, until the work before the last record() is done.
  void hold(gpuStream_t stream) const;
  /// Blocks until the work before the last record() is done; at once when there was none.
  void wait(const char* what) const;
  /// Time between two recorded events that are done.
  double milliseconds_since(const Event& start) const;

 private:
  gpuEvent_t event_ = nullptr;
};

}  // namespace onebit::gpu
