// A scan for size before the parser runs, then typed access.
#include "server/json.h"

#include <fmt/core.h>

#include <cmath>
#include <vector>

#include "server/api_error.h"

namespace onebit {

namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = 2'000'000;
/// Objects keep their keys in order and are searched from the front, so n keys cost n^2 / 2 comparisons.
constexpr uint64_t kMaxKeyCost = 200'000'000;

/// Nesting, values and keys, counted without building anything. Says nothing about validity.
void check_size(std::string_view text) {
  std::vector<uint64_t> keys;  // of every open bracket
  uint64_t n_values = 0, key_cost = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ',') ++n_values;
    if (c == '[' || c == '{') {
      ++n_values;
      keys.push_back(0);
    }
    if (c == ':' && !keys.empty()) key_cost += ++keys.back();
    if ((c == ']' || c == '}') && !keys.empty()) keys.pop_back();
    if (keys.size() > kMaxDepth) throw invalid_request(fmt::format("request body: nested deeper than {}", kMaxDepth));
    if (n_values > kMaxValues || key_cost > kMaxKeyCost) throw invalid_request("request body: too many values");
  }
}

}  // namespace

Json parse_body(std::string_view body) {
  check_size(body);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::parse_error& error) {
    throw invalid_request(fmt::format("request body: not valid JSON (at byte {})", error.byte));
  } catch (const Json::exception&) {
    throw invalid_request("request body: not valid JSON (a number is out of range)");
  }
  if (!json.is_object())
    throw invalid_request(fmt::format("request body: expected an object, found {}", kind_of(json)));
  return json;
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "a number";
    default:
      return "something else";
  }
}

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::refuse(const char* name, const std::string& wanted, const Json& found) const {
  const std::string shown = found.is_number() ? to_text(found) : kind_of(found);
  throw invalid_request(fmt::format("{}{}: expected {}, found {}", prefix_, name, wanted, shown));
}

std::optional<bool> Fields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true or false", *value);
  return value->get<bool>();
}

std::optional<double> Fields::number(const char* name, double low, double high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double x = value->is_number() ? value->get<double>() : NAN;
  if (!(x >= low && x <= high)) refuse(name, fmt::format("a number from {} to {}", low, high), *value);
  return x;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t low, int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto wanted = [&] { return fmt::format("a whole number from {} to {}", low, high); };
  if (!value->is_number()) refuse(name, wanted(), *value);
  int64_t n = 0;
  if (value->is_number_float()) {
    const double x = value->get<double>();
    if (!(std::fabs(x) < 9e15) || x != std::floor(x)) refuse(name, wanted(), *value);
    n = static_cast<int64_t>(x);
  } else if (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) {
    refuse(name, wanted(), *value);
  } else {
    n = value->get<int64_t>();
  }
  if (n < low || n > high) refuse(name, wanted(), *value);
  return n;
}

std::optional<std::string> Fields::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "a string", *value);
  return value->get<std::string>();
}

const Json* Fields::object(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) refuse(name, "an object", *value);
  return value;
}

const Json* Fields::array(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) refuse(name, "an array", *value);
  return value;
}

}  // namespace onebit
