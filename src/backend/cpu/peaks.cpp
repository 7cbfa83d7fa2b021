#include "backend/cpu/peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onebit::cpu {
namespace {

constexpr size_t kBufferBytes = size_t{512} << 20;  // far beyond any cache
constexpr int kPasses = 5;                          // the median counts: what the machine gives now
constexpr int64_t kDotRounds = 1'000'000;

/// Seconds until all threads have run work(thread).
double timed(int n_threads, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < n_threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_of_passes(int n_threads, const std::function<void(int)>& work) {
  std::array<double, kPasses> seconds;
  for (double& pass : seconds) pass = timed(n_threads, work);
  std::sort(seconds.begin(), seconds.end());
  return seconds[kPasses / 2];
}

#if defined(__x86_64__)
#define ONEBIT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ONEBIT_CLONES
#endif

ONEBIT_CLONES uint64_t read_words(const uint64_t* words, size_t n) {
  uint64_t sum[64] = {};
  for (size_t i = 0; i + 64 <= n; i += 64) {
    for (size_t j = 0; j < 64; ++j) sum[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t part : sum) total += part;
  return total;
}

struct Unmap {
  void operator()(uint64_t* words) const { ::munmap(words, kBufferBytes); }
};

double measure_memory(int n_threads) {
  void* memory = ::mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(ErrorKind::out_of_memory, "no {} bytes to measure the memory with", kBufferBytes);
  ::madvise(memory, kBufferBytes, MADV_HUGEPAGE);
  const std::unique_ptr<uint64_t, Unmap> words(static_cast<uint64_t*>(memory));
  const size_t n_each = kBufferBytes / sizeof(uint64_t) / static_cast<size_t>(n_threads);
  std::vector<uint64_t> sums(static_cast<size_t>(n_threads));
  const auto fill = [&](int i) { std::fill_n(words.get() + static_cast<size_t>(i) * n_each, n_each, i + 1); };
  const auto read = [&](int i) { sums[static_cast<size_t>(i)] = read_words(words.get() + i * n_each, n_each); };
  timed(n_threads, fill);
  const double seconds = median_of_passes(n_threads, read);
  for (int i = 0; i < n_threads; ++i) CHECK(sums[static_cast<size_t>(i)] != 0);  // the reads are needed
  return static_cast<double>(n_each * sizeof(uint64_t)) * n_threads / seconds / 1e9;
}

#if defined(__x86_64__)

// Each loop keeps 16 independent sums in registers and returns the operations (multiplies and adds) of all rounds.

__attribute__((target("avx512f,avx512bw,avx512vnni"))) int64_t dot_avx512_vnni(int64_t rounds) {
  __m512i sums[16] = {};
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, a, b);
      __asm__ volatile("" : "+v"(sum));  // each sum is computed by itself
    }
  }
  return rounds * 16 * 128;
}

__attribute__((target("avx2"))) int64_t dot_avx2(int64_t rounds) {
  __m256i sums[8] = {};
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m256i& sum : sums) {
      __asm__ volatile("" : "+x"(a), "+x"(b));  // each product is computed anew
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
      __asm__ volatile("" : "+x"(sum));
    }
  }
  return rounds * 8 * 64;
}

/// Tiles of the largest shape: 16 rows and columns, 64 codes deep.
__attribute__((target("amx-tile,amx-int8"))) int64_t dot_amx(int64_t rounds) {
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Shapes kShapes;
  _tile_loadconfig(&kShapes);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 64 * 2;
}

int64_t dot(int64_t rounds, std::string_view isa) {
  if (isa == "amx") return dot_amx(rounds / 8);
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) return dot_avx512_vnni(rounds);
  return __builtin_cpu_supports("avx2") ? dot_avx2(rounds) : 0;
}

#else

int64_t dot(int64_t, std::string_view) { return 0; }

#endif

double measure_int8(int n_threads, std::string_view isa) {
  std::vector<int64_t> operations(static_cast<size_t>(n_threads));
  const double seconds =
      median_of_passes(n_threads, [&](int i) { operations[static_cast<size_t>(i)] = dot(kDotRounds, isa); });
  return static_cast<double>(operations[0]) * n_threads / seconds / 1e12;
}

}  // namespace

Peaks measure_peaks(int n_threads, std::string_view isa) {
  return {measure_memory(n_threads), measure_int8(n_threads, isa)};
}

}  // namespace onebit::cpu
