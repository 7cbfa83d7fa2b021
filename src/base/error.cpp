#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace onebit {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "1bit: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace onebit
