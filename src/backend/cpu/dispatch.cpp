#include "backend/cpu/dispatch.h"

#if defined(ONEBIT_X86_ISA)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(ONEBIT_ARM_ISA)
#include <sys/auxv.h>
#endif

#include "base/error.h"

namespace onebit::cpu {
namespace {

#if defined(ONEBIT_X86_ISA)
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
#elif defined(ONEBIT_ARM_ISA)
bool has_dotprod() {
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProducts;
}
#endif

bool always() { return true; }
[[maybe_unused]] bool never() { return false; }

struct Choice {
  const char* isa;
  bool (*usable)();
  const Kernels* (*table)();
};

/// Best first; those of another processor family, or that the build leaves out, have no table.
constexpr Choice kChoices[] = {
#if defined(ONEBIT_X86_ISA)
    {"amx", has_amx, amx_kernels},
    {"avx512", has_avx512, avx512_kernels},
    {"avxvnni", has_avxvnni, avxvnni_kernels},
    {"avx2", has_avx2, avx2_kernels},
#else
    {"amx", never, nullptr},
    {"avx512", never, nullptr},
    {"avxvnni", never, nullptr},
    {"avx2", never, nullptr},
#endif
#if defined(ONEBIT_ARM_ISA)
    {"dotprod", has_dotprod, dotprod_kernels},
#else
    {"dotprod", never, nullptr},
#endif
    {"portable", always, portable_kernels},
};

}  // namespace

const Kernels& choose_kernels(const std::string& isa) {
  for (const Choice& choice : kChoices) {
    if (!isa.empty() && isa != choice.isa) continue;
    if (choice.usable()) return *choice.table();
    if (isa.empty()) continue;
    fail(ErrorKind::refused, "instruction set {}: this {} lacks it; use another, such as portable", isa,
         choice.table ? "machine" : "build");
  }
  fail(ErrorKind::usage, "unknown instruction set \"{}\"; known: amx, avx512, avxvnni, avx2, dotprod, portable", isa);
}

}  // namespace onebit::cpu
