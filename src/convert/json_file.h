// A JSON file of a checkpoint, and typed access to its fields with errors that name file, field and what was found.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace onebit {

/// Reads a whole text file of at most 64 MiB. Throws Error(refused) when it can't be read.
std::string read_text(const std::string& path);

/// A JSON object. Fields that are null count as absent. All reads throw Error(refused) on a wrong type.
class JsonObject {
 public:
  /// Throws Error(refused) when the text is no JSON object, or nested too deeply.
  static JsonObject parse(std::string_view text, const std::string& where);
  /// Parses the file `path`; refused when it is missing, too.
  static JsonObject read(const std::string& path);
  /// `where` names the object in messages: a path, or a path and a field.
  JsonObject(nlohmann::json value, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json& json() const { return value_; }
  bool has(const std::string& name) const { return find(name) != nullptr; }

  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> number(const std::string& name) const;
  std::optional<bool> flag(const std::string& name) const;
  std::optional<std::string> text(const std::string& name) const;
  std::optional<std::vector<int64_t>> integers(const std::string& name) const;
  std::optional<std::vector<std::string>> texts(const std::string& name) const;
  std::optional<JsonObject> object(const std::string& name) const;

  /// As integer, but from 1 to 2^28 (so that products of two can not overflow), and required.
  int64_t count(const std::string& name) const;
  int64_t count_or(const std::string& name, int64_t fallback) const;

  /// This object with the fields of `over` laid over it.
  JsonObject overlaid(const JsonObject& over) const;

 private:
  const nlohmann::json* find(const std::string& name) const;
  [[noreturn]] void wrong(const std::string& name, const char* wanted) const;

  nlohmann::json value_;
  std::string where_;
};

}  // namespace onebit
