// What templates may call by name: filters (`x | trim`), tests (`x is string`), methods (`x.split()`) and global
// functions. Each is a row of a table: its name, its parameters, and a function of values. None can reach anything but
// its arguments.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace onebit::jinja {

/// The arguments as a template writes them.
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

/// The arguments in the order of a row's parameters; Undefined where none was given.
using Arguments = std::span<const Value>;

struct BuiltinRow {
  std::string_view name;
  /// Names separated by blanks. `*`: any number of further arguments; `**`: named ones, as a dict that comes last.
  std::string_view parameters;
  Value (*apply)(Runtime& rt, const Value& self, Arguments args);
};

// The row of a name, or null.
const BuiltinRow* find_filter(std::string_view name);
const BuiltinRow* find_test(std::string_view name);
const BuiltinRow* find_method(const Value& self, std::string_view name);
const BuiltinRow* find_global(std::string_view name);

/// Binds the arguments to the row's parameters and applies it.
Value call_builtin(Runtime& rt, const BuiltinRow& row, const Value& self, const CallArguments& args);

// Shared by the tables.
/// The row of a name in a table, or null.
const BuiltinRow* find_row(std::span<const BuiltinRow> rows, std::string_view name);
/// The integer in `v`, or `fallback` when it is undefined or None; fails for other types.
int64_t integer_or(Runtime& rt, const Value& v, int64_t fallback);
/// The string in `v`; fails for other types.
const Text& expect_text(Runtime& rt, const Value& v);
/// str.join: `separator` between the texts of the items.
Value join(Runtime& rt, const Value& items, const Text& separator);
/// str.replace with the growth counted before it happens.
Value replace_all(Runtime& rt, const Text& s, const Text& from, const Text& to, int64_t max);

}  // namespace onebit::jinja
