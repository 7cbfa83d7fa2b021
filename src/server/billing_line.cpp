#include "server/billing_line.h"

#include <string_view>

#include "server/http.h"

namespace onebit {

void drop_billing_lines(std::string& system) {
  constexpr std::string_view kName = "x-anthropic-billing-header:";
  while (system.size() >= kName.size() &&
         equal_ignoring_case(std::string_view(system).substr(0, kName.size()), kName)) {
    const size_t end = system.find('\n');
    system.erase(0, end == std::string::npos ? end : end + 1);
  }
}

}  // namespace onebit
