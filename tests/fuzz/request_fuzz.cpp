// Any bytes as the head or the body of a request: refused or understood, never a crash; what is understood is within
// its limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "server/api_error.h"
#include "server/generation_request.h"
#include "server/http_head.h"
#include "support/byte_model.h"

namespace {

using namespace onebit;

const TextModel& model() {
  static const TextModel m = test::byte_model();
  return m;
}

void read(Api api, const std::string& bytes) {
  RequestDefaults defaults;
  defaults.model = &model();
  defaults.n_ctx = 256;
  defaults.max_messages = 16;
  try {
    const GenerationRequest request = read_generation_request(api, parse_body(bytes), defaults);
    if (request.request.prompt.empty() || request.request.prompt.size() >= 256) __builtin_trap();
    if (!(request.request.sampling.temperature >= 0)) __builtin_trap();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      std::string head = bytes + "\r\n\r\n";
      head.resize(head_size(head));
      clean_head(head);
      break;
    }
    case 1:
      read(Api::chat, bytes);
      break;
    case 2:
      read(Api::completion, bytes);
      break;
    default:
      read(Api::native, bytes);
  }
  return 0;
}
