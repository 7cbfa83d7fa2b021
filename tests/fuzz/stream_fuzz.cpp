// Any bytes, cut anywhere, through the UTF-8 stream, the stop strings and the think splitter: the same as uncut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/stream_decoder.h"
#include "text/think_splitter.h"
#include "text/unicode.h"

namespace {

using namespace onebit;

struct Result {
  std::string text, stopped, reasoning, content;
  bool operator==(const Result&) const = default;
};

Result run(std::string_view bytes, const std::vector<std::string>& stops, size_t step) {
  Result result;
  Utf8Stream utf8;
  StopStrings matcher(stops);
  ThinkSplitter splitter(stops.size() % 2 == 0 ? ThinkSplitter::Start::inside : ThinkSplitter::Start::outside);
  ThinkDelta delta;
  for (size_t pos = 0; pos < bytes.size(); pos += step) {
    const std::string_view part = bytes.substr(pos, step);
    utf8.push(part, result.text);
    matcher.push(part, result.stopped);
    splitter.push(part, delta);
  }
  utf8.finish(result.text);
  matcher.finish(result.stopped);
  splitter.finish(delta);
  result.reasoning = delta.reasoning;
  result.content = delta.content;
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 4, size - 4);
  std::vector<std::string> stops;
  size_t pos = 0;
  for (int i = 1; i < 4; ++i) {
    const size_t length = std::min<size_t>(data[i] % 8, bytes.size() - pos);
    if (length > 0) stops.emplace_back(bytes.substr(pos, length));
    pos += length;
  }
  const std::string_view text = bytes.substr(pos);
  const Result whole = run(text, stops, text.size() + 1);
  CHECK(run(text, stops, 1) == whole);
  CHECK(run(text, stops, 1 + data[0] % 16) == whole);
  std::string repaired;
  append_valid_utf8(repaired, text);
  CHECK(whole.text == repaired);
  return 0;
}
