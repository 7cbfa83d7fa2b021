#include "backend/gpu/states.h"

#include "base/error.h"

namespace onebit::gpu {

States::States(const std::vector<const State*>& states, const StateSizes& sizes, std::shared_ptr<Stream> stream)
    : sizes_(sizes), stream_(std::move(stream)), order_(states) {
  for (const State* state : states) memory_.emplace(state, allocate(*state));
}

States::~States() {
  (void)gpuStreamSynchronize(stream_->get());  // no run may still use the memory
}

uint8_t* States::take(int64_t bytes) {
  owned_.emplace_back(bytes, "the context's state");
  uint8_t* memory = owned_.back().data();
  if (bytes > 0) {
    check(gpuMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_->get()), "clearing the context's state");
  }
  return memory;
}

Memory States::allocate(const State& state) {
  if (const auto* kv = std::get_if<KvState>(&state.kind)) {
    KvMemory memory{sizes_.cache, sizes_.n_pages, kv->n_head_kv, kv->d_head, nullptr, nullptr};
    memory.keys = take(sizes_.n_pages * memory.page_bytes());
    memory.values = take(sizes_.n_pages * memory.page_bytes());
    return memory;
  }
  if (const auto* net = std::get_if<DeltaNetState>(&state.kind)) {
    DeltaMemory memory{*net, sizes_.n_slots, sizes_.n_tape, nullptr};
    memory.data = reinterpret_cast<float*>(take(sizes_.n_slots * memory.slot_floats() * 4));
    return memory;
  }
  RowsMemory memory{sizes_.n_rows, std::get<RowsState>(state.kind).width, nullptr};
  memory.data = reinterpret_cast<float*>(take(memory.n_rows * memory.width * 4));
  return memory;
}

void States::clear_slot(int32_t slot) {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  stream_->use_device();
  for (auto& [state, memory] : memory_) {
    if (const auto* delta = std::get_if<DeltaMemory>(&memory)) {
      const auto bytes = static_cast<size_t>(delta->slot_floats()) * 4;
      check(gpuMemsetAsync(delta->window(slot), 0, bytes, stream_->get()), "clearing a slot");
    }
  }
}

void States::copy_slot(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_slots && to >= 0 && to < sizes_.n_slots);
  if (from == to) return;
  stream_->use_device();
  for (auto& [state, memory] : memory_) {
    if (const auto* delta = std::get_if<DeltaMemory>(&memory)) {
      check(gpuMemcpyAsync(delta->window(to), delta->window(from), static_cast<size_t>(delta->slot_floats()) * 4,
                           gpuMemcpyDeviceToDevice, stream_->get()),
            "copying a slot");
    }
  }
}

void States::copy_page(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_pages && to >= 0 && to < sizes_.n_pages);
  if (from == to) return;
  stream_->use_device();
  for (auto& [state, memory] : memory_) {
    const auto* kv = std::get_if<KvMemory>(&memory);
    if (!kv) continue;
    const int64_t bytes = kv->page_bytes();
    for (uint8_t* pages : {kv->keys, kv->values}) {
      check(gpuMemcpyAsync(pages + to * bytes, pages + from * bytes, static_cast<size_t>(bytes),
                           gpuMemcpyDeviceToDevice, stream_->get()),
            "copying a page");
    }
  }
}

std::vector<States::Piece> States::slot_pieces(int32_t slot) const {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  std::vector<Piece> pieces;
  for (const State* state : order_) {
    const auto* delta = std::get_if<DeltaMemory>(&memory_.at(state));
    if (delta) pieces.push_back({reinterpret_cast<uint8_t*>(delta->window(slot)), delta->used_floats() * 4});
  }
  return pieces;
}

std::vector<States::Piece> States::page_pieces(int32_t page) const {
  CHECK(page >= 0 && page < sizes_.n_pages);
  std::vector<Piece> pieces;
  for (const State* state : order_) {
    const auto* kv = std::get_if<KvMemory>(&memory_.at(state));
    if (!kv) continue;
    for (uint8_t* all : {kv->keys, kv->values}) pieces.push_back({all + page * kv->page_bytes(), kv->page_bytes()});
  }
  return pieces;
}

void States::read(const std::vector<Piece>& pieces, std::span<uint8_t> to) const {
  stream_->use_device();
  size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto bytes = static_cast<size_t>(piece.bytes);
    CHECK(at + bytes <= to.size());
    check(gpuMemcpyAsync(to.data() + at, piece.data, bytes, gpuMemcpyDeviceToHost, stream_->get()), "reading a state");
    at += bytes;
  }
  CHECK(at == to.size());
  stream_->wait("reading a state");
}

void States::write(const std::vector<Piece>& pieces, std::span<const uint8_t> from) {
  stream_->use_device();
  size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto bytes = static_cast<size_t>(piece.bytes);
    CHECK(at + bytes <= from.size());
    check(gpuMemcpyAsync(piece.data, from.data() + at, bytes, gpuMemcpyHostToDevice, stream_->get()),
          "writing a state");
    at += bytes;
  }
  CHECK(at == from.size());
  stream_->wait("writing a state");
}

void States::read_slot(int32_t slot, std::span<uint8_t> to) const { read(slot_pieces(slot), to); }
void States::write_slot(int32_t slot, std::span<const uint8_t> from) { write(slot_pieces(slot), from); }
void States::read_page(int32_t page, std::span<uint8_t> to) const { read(page_pieces(page), to); }
void States::write_page(int32_t page, std::span<const uint8_t> from) { write(page_pieces(page), from); }

const Memory* States::find(const State* state) const {
  const auto found = memory_.find(state);
  return found == memory_.end() ? nullptr : &found->second;
}

}  // namespace onebit::gpu
