#include "backend/gpu/memory.h"

namespace onebit::gpu {

DeviceMemory::DeviceMemory(int64_t bytes, const char* what) : bytes_(bytes) {
  if (bytes > 0) check(gpuMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes)), what);
}
DeviceMemory::~DeviceMemory() {
  if (data_) (void)gpuFree(data_);
}

PinnedMemory::PinnedMemory(int64_t bytes, const char* what) : bytes_(bytes) {
  if (bytes > 0) check(gpuHostMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes)), what);
}
PinnedMemory::~PinnedMemory() {
  if (data_) (void)gpuHostFree(data_);
}

Stream::Stream(int ordinal) : ordinal_(ordinal) {
  use_device();
  check(gpuStreamCreateWithFlags(&stream_, gpuStreamNonBlocking), "a stream");
}
void Stream::use_device() const { check(gpuSetDevice(ordinal_), "choosing the device"); }
Stream::~Stream() { (void)gpuStreamDestroy(stream_); }
void Stream::wait(const char* what) const { check(gpuStreamSynchronize(stream_), what); }

Event::Event(bool timed) {
  check(gpuEventCreateWithFlags(&event_, timed ? gpuEventDefault : gpuEventDisableTiming), "an event");
}
Event::~Event() { (void)gpuEventDestroy(event_); }
void Event::record(gpuStream_t stream) { check(gpuEventRecord(event_, stream), "recording an event"); }
void Event::hold(gpuStream_t stream) const { check(gpuStreamWaitEvent(stream, event_, 0), "waiting for an event"); }
double Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check(gpuEventElapsedTime(&milliseconds, start.event_, event_), "timing");
  return milliseconds;
}
void Event::wait(const char* what) const { check(gpuEventSynchronize(event_), what); }

}  // namespace onebit::gpu
