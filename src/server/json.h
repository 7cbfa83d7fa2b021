// JSON of requests: parsed within limits, and read field by field with errors that name the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace onebit {

using Json = nlohmann::ordered_json;

/// Parses a request body, which must be one object. Throws ApiError(400) with the position of the error, and when it is
/// nested too deeply or has too many values for what a request can mean.
Json parse_body(std::string_view body);

/// Compact text; whatever isn't UTF-8 becomes U+FFFD.
std::string to_text(const Json& json);

/// "a string", "null", ...
const char* kind_of(const Json& value);

/// Reads the fields of an object. null counts as absent. All throw ApiError(400) naming the field, what it must be and
/// what was found.
class Fields {
 public:
  /// `prefix` stands before the names in messages, e.g. "stream_options.".
  explicit Fields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  /// The value, or nullptr when absent or null.
  const Json* find(const char* name) const;
  std::optional<bool> boolean(const char* name) const;
  /// A finite number within [low, high].
  std::optional<double> number(const char* name, double low, double high) const;
  /// As number, without a fraction.
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const;
  std::optional<std::string> string(const char* name) const;
  /// nullptr when absent.
  const Json* object(const char* name) const;
  const Json* array(const char* name) const;

  [[noreturn]] void refuse(const char* name, const std::string& wanted, const Json& found) const;

 private:
  const Json& object_;
  std::string prefix_;
};

}  // namespace onebit
