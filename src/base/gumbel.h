// Gumbel noise as a pure function of (seed, draw, id). The id with the largest logit / T + noise is a draw from
// softmax(logits / T); whoever draws with the same noise from a similar distribution mostly gets the same id. That is
// how a drafter guesses what a sampler will draw.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace onebit {

/// 64 uniformly distributed bits for token `id` of draw number `draw`.
constexpr uint64_t noise_bits(uint64_t seed, int64_t draw, int32_t id) {
  uint64_t z = seed * 0xd1342543de82ef95ull + static_cast<uint64_t>(draw) * 0x9e3779b97f4a7c15ull +
               static_cast<uint64_t>(id) * 0xc2b2ae3d27d4eb4full;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  z = (z ^ (z >> 33)) * 0xff51afd7ed558ccdull;
  return z ^ (z >> 33);
}

/// -log(-log u) for u of 53 bits, never 0 or 1.
inline double gumbel_of(uint64_t bits) {
  return -std::log(-std::log((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53));
}
inline double gumbel(uint64_t seed, int64_t draw, int32_t id) { return gumbel_of(noise_bits(seed, draw, id)); }

/// Not less than gumbel_of(bits), and cheap: -log u >= 1 - u, and 1 - u > 2^-(leading ones of u + 1).
inline double gumbel_bound(uint64_t bits) { return 0.6931471805599454 * (std::countl_one(bits) + 1); }

}  // namespace onebit
