#include "backend/cpu/dispatch.h"

#include <array>

#ifdef ONEBIT_NATIVE_ISA
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/error.h"

namespace onebit::cpu {
namespace {

#ifdef ONEBIT_NATIVE_ISA
bool has_avx2() {
  constexpr unsigned kF16c = 1u << 29;  // leaf 1, ecx; Clang 14 doesn't know it by name
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
         (c & kF16c);
}
bool has_avxvnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

/// The processor's tiles for int8 and bf16, and the system's leave for this process to use them.
bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
         (d & kAll) == kAll && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool always() { return true; }
[[maybe_unused]] bool never() { return false; }

struct Choice {
  const char* isa;
  bool (*usable)();
  const Kernels* (*table)();
};

/// Best first.
std::array<Choice, 5> choices() {
#ifdef ONEBIT_NATIVE_ISA
  return {{{"amx", has_amx, amx_kernels},
           {"avx512", has_avx512, avx512_kernels},
           {"avxvnni", has_avxvnni, avxvnni_kernels},
           {"avx2", has_avx2, avx2_kernels},
           {"portable", always, portable_kernels}}};
#else
  return {{{"amx", never, nullptr},
           {"avx512", never, nullptr},
           {"avxvnni", never, nullptr},
           {"avx2", never, nullptr},
           {"portable", always, portable_kernels}}};
#endif
}

}  // namespace

const Kernels& choose_kernels(const std::string& isa) {
  for (const Choice& choice : choices()) {
    if (!isa.empty() && isa != choice.isa) continue;
    if (choice.usable()) return *choice.table();
    if (isa.empty()) continue;
#ifdef ONEBIT_NATIVE_ISA
    fail(ErrorKind::refused, "instruction set {}: this machine lacks it; use another, such as avx2 or portable", isa);
#else
    fail(ErrorKind::refused, "instruction set {}: this build has only portable", isa);
#endif
  }
  fail(ErrorKind::usage, "unknown instruction set \"{}\"; known: amx, avx512, avxvnni, avx2, portable", isa);
}

}  // namespace onebit::cpu
