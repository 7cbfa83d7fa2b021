// Packed strips -> wide blocks (layout.h), one function per block type. Byte-parallel, no shuffles between rows: the
// strips were interleaved for this at load. Written over Vec and Bytes; included by kernels_*.cpp after its vec_*.h.
#pragma once

namespace onebit::cpu {
namespace {

// Values of the types whose nibbles index a table, plus 128. MXFP4's are doubled (its scale is halved).
constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kMxfp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

/// The codes of one block: vector j holds columns 4j..4j+3 of every row.
struct Codes {
  Bytes v[8];
};

ONEBIT_INLINE Codes nibbles(const uint8_t* plane) {
  Codes c;
  for (int p = 0; p < 4; ++p) {
    const Bytes x = load_bytes(plane + 64 * p);
    c.v[p] = bits<0>(x, 15);
    c.v[p + 4] = bits<4>(x, 15);
  }
  return c;
}

/// The 2-bit plane, its values moved up by Up bits.
template <int Up>
ONEBIT_INLINE Codes bit_pairs(const uint8_t* plane) {
  Codes c;
  for (int p = 0; p < 2; ++p) {
    const Bytes x = load_bytes(plane + 64 * p);
    c.v[4 * p] = bits<0 - Up>(x, 3 << Up);
    c.v[4 * p + 1] = bits<2 - Up>(x, 3 << Up);
    c.v[4 * p + 2] = bits<4 - Up>(x, 3 << Up);
    c.v[4 * p + 3] = bits<6 - Up>(x, 3 << Up);
  }
  return c;
}

/// The 1-bit plane, its values moved up by Up bits.
template <int Up>
ONEBIT_INLINE Codes single_bits(const uint8_t* plane) {
  const Bytes x = load_bytes(plane);
  constexpr uint8_t kMask = 1 << Up;
  return {{bits<0 - Up>(x, kMask), bits<1 - Up>(x, kMask), bits<2 - Up>(x, kMask), bits<3 - Up>(x, kMask),
           bits<4 - Up>(x, kMask), bits<5 - Up>(x, kMask), bits<6 - Up>(x, kMask), bits<7 - Up>(x, kMask)}};
}

ONEBIT_INLINE Codes operator|(const Codes& a, const Codes& b) {
  Codes c;
  for (int j = 0; j < 8; ++j) c.v[j] = a.v[j] | b.v[j];
  return c;
}

ONEBIT_INLINE Codes biased(const Codes& a, uint8_t n) {
  Codes c;
  for (int j = 0; j < 8; ++j) c.v[j] = plus(a.v[j], n);
  return c;
}

ONEBIT_INLINE Codes looked_up(const uint8_t* table, const Codes& a) {
  Codes c;
  for (int j = 0; j < 8; ++j) c.v[j] = lookup(table, a.v[j]);
  return c;
}

/// Where an unpacked block goes: a wide block in memory, or registers. kZero: what a code of 0 is stored as.
template <uint8_t Zero>
struct ToMemory {
  static constexpr uint8_t kZero = Zero;
  uint8_t* wide;

  __attribute__((always_inline)) void codes(const Codes& c) const {
    for (int j = 0; j < 8; ++j) store_bytes(c.v[j], wide + 64 * j);
  }
  /// The i-th vector of 16 floats behind the codes.
  __attribute__((always_inline)) void factor(Vec x, int i) const {
    store(x, reinterpret_cast<float*>(wide + kCodeBytes + 64 * i));
  }
};
struct ToRegisters {
  static constexpr uint8_t kZero = kQ8Bias;
  Codes c;
  Vec factors[4];

  __attribute__((always_inline)) void codes(const Codes& from) { c = from; }
  __attribute__((always_inline)) void factor(Vec x, int i) { factors[i] = x; }
};

/// Codes plus 128 -> as `To` stores them.
template <class To>
ONEBIT_INLINE Codes rebiased(const Codes& c) {
  if constexpr (To::kZero == kQ8Bias) return c;
  return biased(c, To::kZero - kQ8Bias);
}

ONEBIT_INLINE Vec half_vec(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
/// Minimums are added by q4_1 and q5_1, subtracted from wide codes; an eighth makes up for `start` being -8 * sum.
ONEBIT_INLINE Vec negative_eighth(Vec x) { return x * set(-0.125f); }

/// 2^(e - 128): the scale of MXFP4 for doubled values. As two factors, because e < 2 gives subnormal results.
ONEBIT_INLINE Vec exponent_scale(const uint8_t* p) {
  const Vec half = truncate(load_u8(p) * set(0.5f));
  return power_of_two(half - set(64)) * power_of_two(load_u8(p) - half - set(64));
}

/// Fetches what will be unpacked about 4 KB from now.
ONEBIT_INLINE void prefetch_ahead(const uint8_t* p, int n_byte) {
  for (int i = 0; i < n_byte; i += 64) prefetch(p + 4096 + i);
}

// The functions below unpack one block; `head` is the group's head (layout.h), p the block.
template <class To>
ONEBIT_INLINE void unpack_q4_0(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(biased(nibbles(p + 32), To::kZero - 8));
  to.factor(half_vec(p), 0);
}
template <class To>
ONEBIT_INLINE void unpack_q4_1(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(nibbles(p + 64));
  to.factor(half_vec(p), 0);
  to.factor(negative_eighth(half_vec(p + 32)), 1);
}
template <class To>
ONEBIT_INLINE void unpack_q5_0(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(biased(nibbles(p + 96) | single_bits<4>(p + 32), To::kZero - 16));
  to.factor(half_vec(p), 0);
}
template <class To>
ONEBIT_INLINE void unpack_q5_1(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(nibbles(p + 128) | single_bits<4>(p + 64));
  to.factor(half_vec(p), 0);
  to.factor(negative_eighth(half_vec(p + 32)), 1);
}
template <class To>
ONEBIT_INLINE void unpack_q8_0(const uint8_t*, const uint8_t* p, To& to) {
  Codes c;
  for (int j = 0; j < 8; ++j) c.v[j] = load_bytes(p + 32 + 64 * j);
  to.codes(rebiased<To>(c));
  to.factor(half_vec(p), 0);
}
template <class To>
ONEBIT_INLINE void unpack_q2_k(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(bit_pairs<0>(p + 32));
  const Vec d = half_vec(head), dmin = half_vec(head + 32) * set(0.125f);
  for (int half = 0; half < 2; ++half) {
    uint8_t scales[16], mins[16];
    for (int r = 0; r < 16; ++r) {
      scales[r] = p[16 * half + r] & 15;
      mins[r] = p[16 * half + r] >> 4;
    }
    to.factor(d * load_u8(scales), half);
    to.factor(dmin * load_u8(mins), 2 + half);
  }
}
template <class To>
ONEBIT_INLINE void unpack_q3_k(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(biased(bit_pairs<0>(p + 96) | single_bits<2>(p + 32), To::kZero - 4));
  const Vec d = half_vec(head);
  to.factor(d * load_s8(p), 0);
  to.factor(d * load_s8(p + 16), 1);
}
template <class To>
ONEBIT_INLINE void unpack_q4_k(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(nibbles(p + 32));
  to.factor(half_vec(head) * load_u8(p), 0);
  to.factor(half_vec(head + 32) * set(0.125f) * load_u8(p + 16), 1);
}
template <class To>
ONEBIT_INLINE void unpack_q5_k(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(nibbles(p + 96) | single_bits<4>(p + 32));
  to.factor(half_vec(head) * load_u8(p), 0);
  to.factor(half_vec(head + 32) * set(0.125f) * load_u8(p + 16), 1);
}
template <class To>
ONEBIT_INLINE void unpack_q6_k(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(biased(nibbles(p + 160) | bit_pairs<4>(p + 32), To::kZero - 32));
  const Vec d = half_vec(head);
  to.factor(d * load_s8(p), 0);
  to.factor(d * load_s8(p + 16), 1);
}
template <class To>
ONEBIT_INLINE void unpack_iq4_nl(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(rebiased<To>(looked_up(kIq4Table, nibbles(p + 32))));
  to.factor(half_vec(p), 0);
}
template <class To>
ONEBIT_INLINE void unpack_iq4_xs(const uint8_t* head, const uint8_t* p, To& to) {
  to.codes(rebiased<To>(looked_up(kIq4Table, nibbles(p + 16))));
  to.factor(half_vec(head) * load_s8(p), 0);
}
template <class To>
ONEBIT_INLINE void unpack_mxfp4(const uint8_t*, const uint8_t* p, To& to) {
  to.codes(rebiased<To>(looked_up(kMxfp4Table, nibbles(p + 16))));
  to.factor(exponent_scale(p), 0);
}

/// Unpacks one block of form F; `head` is unused where a group is one block.
template <Strip F, class To>
ONEBIT_INLINE void unpack(const uint8_t* head, const uint8_t* p, To& to) {
  if constexpr (F == Strip::q4_0) unpack_q4_0(head, p, to);
  if constexpr (F == Strip::q4_1) unpack_q4_1(head, p, to);
  if constexpr (F == Strip::q5_0) unpack_q5_0(head, p, to);
  if constexpr (F == Strip::q5_1) unpack_q5_1(head, p, to);
  if constexpr (F == Strip::q8_0) unpack_q8_0(head, p, to);
  if constexpr (F == Strip::q2_k) unpack_q2_k(head, p, to);
  if constexpr (F == Strip::q3_k) unpack_q3_k(head, p, to);
  if constexpr (F == Strip::q4_k) unpack_q4_k(head, p, to);
  if constexpr (F == Strip::q5_k) unpack_q5_k(head, p, to);
  if constexpr (F == Strip::q6_k) unpack_q6_k(head, p, to);
  if constexpr (F == Strip::iq4_nl) unpack_iq4_nl(head, p, to);
  if constexpr (F == Strip::iq4_xs) unpack_iq4_xs(head, p, to);
  if constexpr (F == Strip::mxfp4) unpack_mxfp4(head, p, to);
}

/// n_block blocks of form F, a multiple of its group.
template <Strip F, uint8_t Zero>
void unpack_strip(const uint8_t* strip, int64_t n_block, uint8_t* wide) {
  constexpr StripShape kShape = kStripShapes[static_cast<int>(F)];
  constexpr int kStep = kWideBytes[static_cast<int>(kShape.wide)];
  for (int64_t block = 0; block < n_block; block += kShape.group_blocks) {
    const uint8_t* head = strip;
    strip += kShape.head_bytes;
    for (int i = 0; i < kShape.group_blocks; ++i, strip += kShape.block_bytes, wide += kStep) {
      prefetch_ahead(strip, kShape.block_bytes);
      const ToMemory<Zero> to{wide};
      unpack<F>(head, strip, to);
    }
  }
}

/// The functions that unpack to codes whose zero is `Zero`.
template <uint8_t Zero>
void fill_unpack(Kernels& table) {
  table.wide_zero = Zero;
#define ONEBIT_UNPACK(form) table.unpack[static_cast<int>(Strip::form)] = unpack_strip<Strip::form, Zero>
  ONEBIT_UNPACK(q4_0);
  ONEBIT_UNPACK(q4_1);
  ONEBIT_UNPACK(q5_0);
  ONEBIT_UNPACK(q5_1);
  ONEBIT_UNPACK(q8_0);
  ONEBIT_UNPACK(q2_k);
  ONEBIT_UNPACK(q3_k);
  ONEBIT_UNPACK(q4_k);
  ONEBIT_UNPACK(q5_k);
  ONEBIT_UNPACK(q6_k);
  ONEBIT_UNPACK(iq4_nl);
  ONEBIT_UNPACK(iq4_xs);
  ONEBIT_UNPACK(mxfp4);
#undef ONEBIT_UNPACK
}

}  // namespace
}  // namespace onebit::cpu
