// A bounds-checked cursor over the bytes of a file. Every length from the file is compared with what is left before
// use.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace onebit {

class Reader {
 public:
  /// `name` stands for the file in messages.
  Reader(std::span<const uint8_t> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  const std::string& name() const { return name_; }

  /// The next `count` bytes; refused when fewer are left. `what` names them in the message.
  std::span<const uint8_t> take(uint64_t count, const char* what) {
    if (count > left()) {
      refuse("{}: {} at byte {} needs {} bytes, the file has {} left: it is cut short or damaged", name_, what,
             position_, count, left());
    }
    const auto part = bytes_.subspan(position_, count);
    position_ += count;
    return part;
  }

  /// The next little-endian number.
  template <typename T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  /// The next string: u64 length, then the bytes. A view into the file.
  std::string_view string(const char* what) {
    const auto part = take(number<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t position_ = 0;
  std::string name_;
};

}  // namespace onebit
