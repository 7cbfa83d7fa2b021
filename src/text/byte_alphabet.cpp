// Bytes 21-7E, A1-AC and AE-FF are written as the code points of the same number; the other 68, in ascending order, as
// U+0100 and up (a space is U+0120).
#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace onebit {

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr size_t kAlphabetEnd = 0x100 + 68;

struct Alphabet {
  std::array<uint16_t, 256> code_points{};
  std::array<int16_t, kAlphabetEnd> bytes{};  // -1: not of the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.bytes) byte = -1;
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint16_t code_point = stands_for_itself(byte) ? static_cast<uint16_t>(byte) : next++;
    alphabet.code_points[byte] = code_point;
    alphabet.bytes[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

bool append_alphabet_bytes(std::string& bytes, std::string_view token) {
  const size_t before = bytes.size();
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Char c = read_utf8(token, pos);
    const int byte = c.code_point < kAlphabetEnd ? kAlphabet.bytes[c.code_point] : -1;
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(byte);
    pos += c.size;
  }
  return true;
}

std::string to_alphabet(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) append_utf8(token, kAlphabet.code_points[static_cast<uint8_t>(c)]);
  return token;
}

}  // namespace onebit
