#include "engine/lookup.h"

#include <algorithm>

namespace onebit {
namespace {

uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t h = 0;
  for (const int32_t token : tokens) h = (h ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ull + (h >> 29);
  return h;
}

}  // namespace

std::span<const int32_t> Lookup::propose(std::span<const int32_t> history, int64_t n) {
  const auto end = static_cast<int64_t>(history.size());
  const auto gram = [&](int64_t to) {
    return history.subspan(static_cast<size_t>(to - kLeast), static_cast<size_t>(kLeast));
  };
  for (n_indexed_ = std::max(n_indexed_, kLeast); n_indexed_ < end; ++n_indexed_) {
    after_[hash_of(gram(n_indexed_))] = n_indexed_;
  }
  proposal_.clear();
  if (end < kLeast) return proposal_;
  const auto found = after_.find(hash_of(gram(end)));
  if (found == after_.end() || !std::ranges::equal(gram(found->second), gram(end))) return proposal_;
  // A repetition shorter than n goes round and round.
  const int64_t from = found->second, period = end - from;
  for (int64_t i = 0; i < n; ++i) proposal_.push_back(history[static_cast<size_t>(from + i % period)]);
  return proposal_;
}

}  // namespace onebit
