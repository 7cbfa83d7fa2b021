// The alphabet of byte-level BPE: every byte written as one printable character, so that a vocabulary is a list of
// texts.
#pragma once

#include <string>
#include <string_view>

namespace onebit {

/// Appends to `bytes` what a token's text stands for. False (and nothing appended) when a character is not of the
/// alphabet.
bool append_alphabet_bytes(std::string& bytes, std::string_view token);

/// A token's text for these bytes.
std::string to_alphabet(std::string_view bytes);

}  // namespace onebit
