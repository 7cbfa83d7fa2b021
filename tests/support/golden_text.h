// Compressed test data: reads .xz files of tests/golden as text, lines and JSON.
#pragma once

#include <lzma.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace onebit::test {

/// The content of an .xz file.
inline std::string read_xz(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("can't read " + path);
  const std::string packed{std::istreambuf_iterator<char>(in), {}};
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, UINT64_MAX, 0) != LZMA_OK) throw std::runtime_error("no xz decoder");
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string text;
  std::vector<char> chunk(1 << 20);
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    stream.next_out = reinterpret_cast<uint8_t*>(chunk.data());
    stream.avail_out = chunk.size();
    status = lzma_code(&stream, LZMA_FINISH);
    text.append(chunk.data(), chunk.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (status != LZMA_STREAM_END) throw std::runtime_error("broken xz file " + path);
  return text;
}

/// One JSON value a line.
inline std::vector<nlohmann::json> parse_json_lines(const std::string& text) {
  std::vector<nlohmann::json> values;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = text.find('\n', pos);
    values.push_back(nlohmann::json::parse(text.begin() + pos, text.begin() + std::min(end, text.size())));
    pos = end == std::string::npos ? text.size() : end + 1;
  }
  return values;
}

}  // namespace onebit::test
