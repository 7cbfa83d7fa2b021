#include "backend/gpu/weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace onebit::gpu {
namespace {

/// Two pinned buffers and two device buffers in turn: while one is being copied, the next is being filled.
class PinnedUploader : public Uploader {
 public:
  explicit PinnedUploader(gpuStream_t stream) : stream_(stream) {
    for (Turn& turn : turns_) {
      turn.host = PinnedMemory(kChunk, "loading weights");
      turn.device = DeviceMemory(kChunk, "loading weights");
    }
  }

  gpuStream_t stream() const override { return stream_; }
  int64_t chunk_bytes() const override { return kChunk; }

  const uint8_t* bring(const uint8_t* from, int64_t bytes) override {
    Turn& turn = next(from, bytes);
    copy_chunk(turn, turn.device.data(), bytes);
    return turn.device.data();
  }

  void copy(uint8_t* to, const uint8_t* from, int64_t bytes) override {
    for (int64_t at = 0; at < bytes; at += kChunk) {
      const int64_t n = std::min(kChunk, bytes - at);
      copy_chunk(next(from + at, n), to + at, n);
    }
  }

 private:
  static constexpr int64_t kChunk = int64_t{8} << 20;
  struct Turn {
    PinnedMemory host;
    DeviceMemory device;
    Event free;  // the buffer's last copy is done
  };

  Turn& next(const uint8_t* from, int64_t bytes) {
    CHECK(bytes <= kChunk);
    Turn& turn = turns_[at_++ % 2];
    turn.free.wait("loading weights");
    std::memcpy(turn.host.data(), from, static_cast<size_t>(bytes));
    return turn;
  }
  void copy_chunk(Turn& turn, uint8_t* to, int64_t bytes) {
    check(gpuMemcpyAsync(to, turn.host.data(), static_cast<size_t>(bytes), gpuMemcpyHostToDevice, stream_),
          "loading weights");
    turn.free.record(stream_);
  }

  gpuStream_t stream_;
  Turn turns_[2];
  unsigned at_ = 0;
};

}  // namespace

WeightStore::WeightStore(gpuStream_t stream) : stream_(stream) {}
WeightStore::~WeightStore() = default;

void WeightStore::load(const Weight& weight) {
  CHECK(!weight.shape.empty());
  if (!type_info(weight.type).decodable) {
    refuse("{}: type {} can't be computed with; quantise the model to another type", weight.name,
           type_name(weight.type));
  }
  CHECK(static_cast<int64_t>(weight.data.size()) ==
        weight.n_expert() * weight.n_out() * row_bytes(weight.type, weight.n_in()));
  if (!uploader_) uploader_ = std::make_unique<PinnedUploader>(stream_);
  Loaded loaded;
  loaded.memory = DeviceMemory(device_weight_bytes(weight), "weights");
  loaded.weight = upload_weight(weight, loaded.memory.data(), *uploader_);
  loaded_.insert_or_assign(&weight, std::move(loaded));
}

const DeviceWeight& WeightStore::get(const Weight& weight) const {
  const auto found = loaded_.find(&weight);
  CHECK(found != loaded_.end());
  return found->second.weight;
}

const float* WeightStore::plain(const Weight& weight) {
  const auto found = loaded_.find(&weight);
  CHECK(found != loaded_.end());
  Loaded& loaded = found->second;
  if (loaded.weight.type == BlockType::f32 && loaded.weight.form == WeightForm::plain) {
    return reinterpret_cast<const float*>(loaded.weight.data);
  }
  if (!loaded.plain.data()) {
    const auto n_row = static_cast<size_t>(loaded.weight.n_expert * loaded.weight.n_out);
    std::vector<int32_t> ids(n_row);
    for (size_t i = 0; i < n_row; ++i) ids[i] = static_cast<int32_t>(i);
    const DeviceMemory rows(static_cast<int64_t>(n_row) * 4, "weights");
    uploader_->copy(rows.data(), reinterpret_cast<const uint8_t*>(ids.data()), rows.bytes());
    loaded.plain = DeviceMemory(static_cast<int64_t>(n_row) * loaded.weight.n_in * 4, "weights");
    gather(loaded.weight, rows.as<int32_t>(), static_cast<int64_t>(n_row), loaded.plain.as<float>(), stream_);
    check(gpuStreamSynchronize(stream_), "decoding weights");  // `rows` goes
  }
  return loaded.plain.as<float>();
}

}  // namespace onebit::gpu
