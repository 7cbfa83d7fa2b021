// A thread of its own waits for the disk, some hundreds of megabytes ahead of the weight that is being repacked or
// copied; what is in the page cache already it only maps, in large pieces.
#include "engine/load_weights.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace onebit {
namespace {

constexpr size_t kPiece = size_t{8} << 20;          // asked for at once
constexpr uint64_t kMostAhead = uint64_t{1} << 28;  // bytes that are read and not yet loaded

class ReadAhead {
 public:
  explicit ReadAhead(std::span<const StoredWeight> weights) : weights_(weights), thread_([this] { read(); }) {}
  ~ReadAhead() {
    stopping_ = true;
    add_loaded(2 * kMostAhead);  // lets the thread go on, to its end
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;

  void add_loaded(uint64_t bytes) {
    loaded_ += bytes;
    loaded_.notify_one();
  }

 private:
  void read() {
    uint64_t fetched = 0;
    for (const StoredWeight& stored : weights_) {
      const std::span<const uint8_t> data = stored.weight->data;
      for (size_t at = 0; at < data.size(); at += kPiece) {
        for (uint64_t seen = loaded_; fetched > seen + kMostAhead; seen = loaded_) loaded_.wait(seen);
        if (stopping_) return;
        const auto piece = data.subspan(at, std::min(kPiece, data.size() - at));
        if (fetched + piece.size() > loaded_) stored.file->fetch(piece);  // else it is late
        fetched += piece.size();
      }
    }
  }

  std::span<const StoredWeight> weights_;
  std::atomic<uint64_t> loaded_ = 0;  // bytes
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

void load_weights(Backend& backend, std::span<const StoredWeight> weights,
                  const std::function<void(double)>& on_progress) {
  std::vector<StoredWeight> copied;  // the others stay in the file, to be read when a row of them is
  double total = 0, done = 0;
  for (const StoredWeight& stored : weights) {
    total += static_cast<double>(stored.weight->data.size());
    if (!backend.keeps_file_bytes(*stored.weight)) copied.push_back(stored);
  }
  ReadAhead ahead(copied);
  for (const auto& [weight, file] : weights) {
    backend.load(*weight);
    if (!backend.keeps_file_bytes(*weight)) {
      if (const TensorInfo* tensor = file->find(weight->name)) file->release(*tensor);
      ahead.add_loaded(weight->data.size());
    }
    done += static_cast<double>(weight->data.size());
    if (on_progress) on_progress(total > 0 ? done / total : 1);
  }
}

}  // namespace onebit
