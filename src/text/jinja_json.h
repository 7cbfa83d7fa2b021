// JSON for templates: request data as values, and the filters `tojson` and `from_json`. Numbers, spacing and escapes
// are those of Python's json.dumps.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja_value.h"

namespace onebit::jinja {

/// The value of a JSON document; every string in it is marked with `from_input`.
Value from_json(Runtime& rt, const nlohmann::ordered_json& json, bool from_input);

/// The keyword arguments of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  ///< blanks for each level, each element on its own line; -1: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// json.dumps(v); fails for values that JSON does not have. Characters from the request stay marked.
const Text* to_json(Runtime& rt, const Value& v, const JsonStyle& style);

}  // namespace onebit::jinja
