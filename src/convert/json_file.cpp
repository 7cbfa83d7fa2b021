// Reading and checking of JSON fields.
#include "convert/json_file.h"

#include <fstream>

#include "base/error.h"
#include "gguf/file.h"

namespace onebit {
namespace {

constexpr std::streamsize kMaxTextBytes = std::streamsize{64} << 20;
constexpr int kMaxDepth = 64;  // values are copied and destroyed by recursion
constexpr int64_t kMaxCount = int64_t{1} << 28;

}  // namespace

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) refuse("{}: can't be read", path);
  const std::streamsize size = in.tellg();
  if (size < 0 || size > kMaxTextBytes) refuse("{}: expected a file of at most {} bytes", path, kMaxTextBytes);
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) refuse("{}: can't be read", path);
  return text;
}

JsonObject JsonObject::parse(std::string_view text, const std::string& where) {
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth) refuse("{}: expected JSON of at most {} levels, found more", where, kMaxDepth);
    return true;
  };
  nlohmann::json value = nlohmann::json::parse(text, limit_depth, false);
  if (value.is_discarded()) refuse("{}: expected JSON, the text is damaged", where);
  return JsonObject(std::move(value), where);
}

JsonObject JsonObject::read(const std::string& path) { return parse(read_text(path), path); }

JsonObject::JsonObject(nlohmann::json value, std::string where) : value_(std::move(value)), where_(std::move(where)) {
  if (!value_.is_object()) refuse("{}: expected a JSON object, found {}", where_, value_.type_name());
}

const nlohmann::json* JsonObject::find(const std::string& name) const {
  const auto found = value_.find(name);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

void JsonObject::wrong(const std::string& name, const char* wanted) const {
  const std::string found = value_.at(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  refuse("{}: field {}: expected {}, found {}", where_, name, wanted, printable(found));
}

std::optional<int64_t> JsonObject::integer(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (!value->is_number_integer() || too_large) wrong(name, "an integer");
  return value->get<int64_t>();
}

std::optional<double> JsonObject::number(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong(name, "a number");
  return value->get<double>();
}

std::optional<bool> JsonObject::flag(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::text(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong(name, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<int64_t>> JsonObject::integers(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong(name, "an array of integers");
  std::vector<int64_t> out;
  for (const nlohmann::json& item : *value) {
    if (!item.is_number_integer()) wrong(name, "an array of integers");
    out.push_back(item.get<int64_t>());
  }
  return out;
}

std::optional<std::vector<std::string>> JsonObject::texts(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong(name, "an array of strings");
  std::vector<std::string> out;
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) wrong(name, "an array of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::optional<JsonObject> JsonObject::object(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  return JsonObject(*value, where_ + ": field " + name);
}

int64_t JsonObject::count(const std::string& name) const {
  const std::optional<int64_t> value = integer(name);
  if (!value) refuse("{}: field {} is missing", where_, name);
  if (*value < 1 || *value > kMaxCount) wrong(name, "an integer from 1 to 268435456");
  return *value;
}

int64_t JsonObject::count_or(const std::string& name, int64_t fallback) const {
  return has(name) ? count(name) : fallback;
}

JsonObject JsonObject::overlaid(const JsonObject& over) const {
  nlohmann::json merged = value_;
  merged.update(over.value_);
  return JsonObject(std::move(merged), where_);
}

}  // namespace onebit
