// Typed access to metadata values: number conversions with range checks, strings, arrays.
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "gguf/file.h"
#include "gguf/reader.h"

namespace onebit {
namespace {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
constexpr const char* wanted_name() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, int32_t>) return "i32";
  if constexpr (std::is_same_v<T, uint32_t>) return "u32";
  if constexpr (std::is_same_v<T, int64_t>) return "i64";
  if constexpr (std::is_same_v<T, uint64_t>) return "u64";
  if constexpr (std::is_same_v<T, float>) return "f32";
  if constexpr (std::is_same_v<T, double>) return "f64";
  if constexpr (std::is_same_v<T, std::string>) return "string";
  if constexpr (IsVector<T>::value) return "array";
}

/// Where a value stands, for messages.
struct Place {
  const std::string& file;
  std::string_view key;
};

template <class T>
[[noreturn]] void wrong_type(const Place& place, ValueType found) {
  refuse("{}: key {}: expected {}, found {}", place.file, printable(place.key), wanted_name<T>(),
         value_type_name(found));
}

/// A stored number, widened: every integer type fits one of the first two, without loss.
struct Number {
  enum { kSigned, kUnsigned, kFloat } kind;
  int64_t i = 0;
  uint64_t u = 0;
  double f = 0;
};

template <typename Stored>
Stored load(const uint8_t* bytes) {
  Stored value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

Number load_number(ValueType type, const uint8_t* bytes) {
  switch (type) {
    case ValueType::i8:
      return {Number::kSigned, load<int8_t>(bytes)};
    case ValueType::i16:
      return {Number::kSigned, load<int16_t>(bytes)};
    case ValueType::i32:
      return {Number::kSigned, load<int32_t>(bytes)};
    case ValueType::i64:
      return {Number::kSigned, load<int64_t>(bytes)};
    case ValueType::u8:
      return {Number::kUnsigned, 0, load<uint8_t>(bytes)};
    case ValueType::u16:
      return {Number::kUnsigned, 0, load<uint16_t>(bytes)};
    case ValueType::u32:
      return {Number::kUnsigned, 0, load<uint32_t>(bytes)};
    case ValueType::u64:
      return {Number::kUnsigned, 0, load<uint64_t>(bytes)};
    case ValueType::boolean:
      return {Number::kUnsigned, 0, load<uint8_t>(bytes) != 0};
    case ValueType::f32:
      return {Number::kFloat, 0, 0, load<float>(bytes)};
    case ValueType::f64:
      return {Number::kFloat, 0, 0, load<double>(bytes)};
    case ValueType::string:
    case ValueType::array:
      break;
  }
  CHECK(false);
}

template <class T>
T convert_number(const Place& place, ValueType type, const uint8_t* bytes) {
  const Number number = load_number(type, bytes);
  if constexpr (std::is_floating_point_v<T>) {
    if (number.kind == Number::kFloat) return static_cast<T>(number.f);
    return number.kind == Number::kSigned ? static_cast<T>(number.i) : static_cast<T>(number.u);
  } else {
    if (number.kind == Number::kFloat) wrong_type<T>(place, type);
    const bool fits = number.kind == Number::kSigned ? std::in_range<T>(number.i) : std::in_range<T>(number.u);
    if (!fits) {
      const std::string value = number.kind == Number::kSigned ? std::to_string(number.i) : std::to_string(number.u);
      refuse("{}: key {}: expected {}, found {}, which is out of its range", place.file, printable(place.key),
             wanted_name<T>(), value);
    }
    return number.kind == Number::kSigned ? static_cast<T>(number.i) : static_cast<T>(number.u);
  }
}

template <>
bool convert_number<bool>(const Place& place, ValueType type, const uint8_t* bytes) {
  return convert_number<int64_t>(place, type, bytes) != 0;
}

bool is_number(ValueType type) { return type != ValueType::string && type != ValueType::array; }

/// Calls `visit` with each string of a value; the bounds were checked when the file was read.
template <class Visit>
void for_each_string(const MetaValue& value, Visit visit) {
  Reader in(value.bytes, "metadata");
  for (uint64_t i = 0; i < value.count; ++i) visit(in.string("a string"));
}

template <class T>
struct Decode {
  static T one(const Place& place, const MetaValue& value) {
    if (!is_number(value.type)) wrong_type<T>(place, value.type);
    return convert_number<T>(place, value.type, value.bytes.data());
  }
};

template <>
struct Decode<std::string> {
  static std::string one(const Place& place, const MetaValue& value) {
    if (value.type != ValueType::string) wrong_type<std::string>(place, value.type);
    std::string out;
    for_each_string(value, [&](std::string_view text) { out = text; });
    return out;
  }
};

template <class T>
struct Decode<std::vector<T>> {
  static std::vector<T> one(const Place& place, const MetaValue& value) {
    if (value.type != ValueType::array) wrong_type<std::vector<T>>(place, value.type);
    std::vector<T> out;
    if constexpr (std::is_same_v<T, std::string>) {
      if (value.element != ValueType::string) wrong_type<T>(place, value.element);
      for_each_string(value, [&](std::string_view text) { out.emplace_back(text); });
    } else {
      if (!is_number(value.element)) wrong_type<T>(place, value.element);
      const uint64_t step = value_bytes(value.element);
      out.reserve(value.count);
      for (uint64_t i = 0; i < value.count; ++i) {
        out.push_back(convert_number<T>(place, value.element, value.bytes.data() + i * step));
      }
    }
    return out;
  }
};

}  // namespace

uint64_t value_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    default:
      return 8;
  }
}

const char* value_type_name(ValueType type) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

template <class T>
std::optional<T> GgufFile::get(std::string_view key) const {
  const MetaValue* value = find_value(key);
  if (!value) return std::nullopt;
  return Decode<T>::one({path_, key}, *value);
}

template <class T>
T GgufFile::require(std::string_view key) const {
  std::optional<T> value = get<T>(key);
  if (!value) refuse("{}: key {} ({}) is missing", path_, key, wanted_name<T>());
  return std::move(*value);
}

template <class T>
std::vector<T> GgufFile::get_per_layer(std::string_view key, int64_t n) const {
  const MetaValue* value = find_value(key);
  if (!value) return {};
  const auto count = static_cast<size_t>(n);
  if (value->type != ValueType::array) return std::vector<T>(count, *get<T>(key));
  std::vector<T> values = *get<std::vector<T>>(key);
  if (values.size() < count) refuse("{}: key {}: expected {} values, found {}", path_, key, n, values.size());
  values.resize(count);
  return values;
}

std::optional<std::vector<std::string_view>> GgufFile::get_string_views(std::string_view key) const {
  const MetaValue* value = find_value(key);
  if (!value) return std::nullopt;
  const Place place{path_, key};
  if (value->type != ValueType::array) wrong_type<std::vector<std::string>>(place, value->type);
  if (value->element != ValueType::string) wrong_type<std::string>(place, value->element);
  std::vector<std::string_view> out;
  for_each_string(*value, [&](std::string_view text) { out.push_back(text); });
  return out;
}

#define ONEBIT_INSTANTIATE(T)                                                                   \
  template std::optional<T> GgufFile::get<T>(std::string_view) const;                           \
  template T GgufFile::require<T>(std::string_view) const;                                      \
  template std::optional<std::vector<T>> GgufFile::get<std::vector<T>>(std::string_view) const; \
  template std::vector<T> GgufFile::require<std::vector<T>>(std::string_view) const;
#define ONEBIT_INSTANTIATE_NUMBER(T) \
  ONEBIT_INSTANTIATE(T)              \
  template std::vector<T> GgufFile::get_per_layer<T>(std::string_view, int64_t) const;
ONEBIT_INSTANTIATE_NUMBER(bool)
ONEBIT_INSTANTIATE_NUMBER(int32_t)
ONEBIT_INSTANTIATE_NUMBER(uint32_t)
ONEBIT_INSTANTIATE_NUMBER(int64_t)
ONEBIT_INSTANTIATE_NUMBER(uint64_t)
ONEBIT_INSTANTIATE_NUMBER(float)
ONEBIT_INSTANTIATE_NUMBER(double)
ONEBIT_INSTANTIATE(std::string)

}  // namespace onebit
