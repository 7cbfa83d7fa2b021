// A counter-based random source: the n-th number of a seed is a pure function of (seed, n), so streams can be replayed.
#pragma once

#include <cstdint>

namespace onebit {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t counter = 0) : seed_(seed), counter_(counter) {}

  /// The next 64 uniformly distributed bits (splitmix64 finaliser over seed and counter).
  uint64_t next() {
    uint64_t z = seed_ * 0xd1342543de82ef95ull + ++counter_ * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  uint64_t counter() const { return counter_; }

 private:
  uint64_t seed_;
  uint64_t counter_;
};

}  // namespace onebit
