#include "backend/cpu/dispatch.h"

#include <array>

#include "base/error.h"

namespace onebit::cpu {
namespace {

#ifdef ONEBIT_NATIVE_ISA
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

struct Choice {
  const char* isa;
  bool usable;
  const Kernels* (*table)();
};

/// Best first.
std::array<Choice, 3> choices() {
#ifdef ONEBIT_NATIVE_ISA
  return {{{"avx512", has_avx512(), avx512_kernels},
           {"avx2", has_avx2(), avx2_kernels},
           {"portable", true, portable_kernels}}};
#else
  return {{{"avx512", false, nullptr}, {"avx2", false, nullptr}, {"portable", true, portable_kernels}}};
#endif
}

}  // namespace

const Kernels& choose_kernels(const std::string& isa) {
  for (const Choice& choice : choices()) {
    if (!isa.empty() && isa != choice.isa) continue;
    if (choice.usable) return *choice.table();
    if (isa.empty()) continue;
#ifdef ONEBIT_NATIVE_ISA
    fail(ErrorKind::refused, "instruction set {}: this machine lacks it; use avx2 or portable", isa);
#else
    fail(ErrorKind::refused, "instruction set {}: this build has only portable", isa);
#endif
  }
  fail(ErrorKind::usage, "unknown instruction set \"{}\"; known: avx512, avx2, portable", isa);
}

}  // namespace onebit::cpu
