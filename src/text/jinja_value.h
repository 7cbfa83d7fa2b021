// The values of the template language, Python's rules for them, and the Runtime that owns every value of one rendering.
// Nothing is freed before the rendering ends, so plain pointers tie values together, cycles and all; what bounds the
// memory, the time and the stack are the Limits that the Runtime counts against.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "text/jinja_text.h"

namespace onebit::jinja {

class Runtime;
struct List;
struct Dict;
struct Scope;
struct Macro;
struct Loop;
struct Function;
struct Statement;
struct BuiltinRow;

/// A name or key that has no value; `name` says which, for messages.
struct Undefined {
  std::string_view name;
};
struct None {};

/// A Python value. A Scope is a namespace().
using Value = std::variant<Undefined, None, bool, int64_t, double, const Text*, List*, Dict*, Scope*, const Macro*,
                           const Loop*, const Function*>;

/// A list or a tuple.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};

/// A dict, in insertion order.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
};

/// Names with values: the variables of a block (lookups go on in `parent`), or a namespace().
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
  bool is_captured = false;  ///< a macro written inside may still look here after the block ends

  /// The variable of this name here or in an enclosing block, or null.
  const Value* find(Runtime& rt, std::string_view name) const;
  void set(Runtime& rt, std::string_view name, Value value);
};

/// A macro, or the body of a call block: parameters and body, and the block they were written in.
struct Macro {
  const Statement* definition;
  Scope* closure;
};

/// The variable `loop`.
struct Loop {
  const Statement* statement;
  Scope* closure;
  const List* items;
  int64_t index0 = 0;
  int64_t depth0 = 0;
};

/// A built-in function, or a method together with the value it belongs to.
struct Function {
  const BuiltinRow* builtin;
  Value self;
};

/// What one rendering may use.
struct Limits {
  uint64_t steps = 20'000'000;    ///< nodes evaluated, elements visited; a few seconds at most
  uint64_t bytes = 256ull << 20;  ///< memory of all values made
  uint64_t output = 64ull << 20;  ///< bytes of the prompt
  int depth = 500;                ///< nesting of evaluation and of values
};

class Runtime {
 public:
  explicit Runtime(const Limits& allowed) : limits(allowed) {}

  /// Moves a Text, List, Dict, Scope, Macro, Loop or Function into the Runtime and counts its memory.
  template <typename T>
  T* keep(T object) {
    take(sizeof(T) + heap_bytes(object));
    return &std::get<std::deque<T>>(kept_).emplace_back(std::move(object));
  }
  Value text(std::string_view s, bool from_input = false) { return keep(Text(s, from_input)); }
  Value slice(const Text& s, Span part) { return keep(s.slice(part.begin, part.end)); }

  void step(uint64_t n = 1);
  /// Counts the steps of a look at so many bytes of text, or elements.
  void scan_text(uint64_t bytes) { step(bytes / 64); }
  void scan_items(uint64_t n) { step(n / 8); }
  /// Counts memory before it is made.
  void take(uint64_t bytes);

  /// Throws Error(usage) with the line being rendered.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_with(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void fail_with(const std::string& message) const;

  const Limits limits;
  std::function<std::tm()> now;  ///< the clock of strftime_now
  int line = 0;                  ///< of the template, where the rendering is
  int depth = 0;                 ///< of nested evaluation, see Deeper

 private:
  static size_t heap_bytes(const Text& text) { return text.size() + text.input_spans().size() * sizeof(Span); }
  static size_t heap_bytes(const List& list) { return list.items.size() * sizeof(Value); }
  static size_t heap_bytes(const Dict& dict) { return dict.entries.size() * 2 * sizeof(Value); }
  template <typename T>
  static size_t heap_bytes(const T&) {
    return 0;
  }

  std::tuple<std::deque<Text>, std::deque<List>, std::deque<Dict>, std::deque<Scope>, std::deque<Macro>,
             std::deque<Loop>, std::deque<Function>>
      kept_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
};

/// One level of nesting for as long as it lives.
class Deeper {
 public:
  explicit Deeper(Runtime& rt) : rt_(rt) {
    if (++rt.depth > rt.limits.depth) too_deep();
    rt.step();
  }
  ~Deeper() { --rt_.depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  [[noreturn]] void too_deep();
  Runtime& rt_;
};

// Kinds. as<T> is the T inside, or null (for T = const Text*, List* ...: a null pointer).
inline const Text* as_text(const Value& v) {
  const auto* text = std::get_if<const Text*>(&v);
  return text ? *text : nullptr;
}
template <typename T>
T* as(const Value& v) {
  T* const* object = std::get_if<T*>(&v);
  return object ? *object : nullptr;
}
inline bool is_undefined(const Value& v) { return std::holds_alternative<Undefined>(v); }
inline bool is_none(const Value& v) { return std::holds_alternative<None>(v); }
/// True for bool, int and float.
bool is_number(const Value& v);
/// The value of a bool or int, or null.
const int64_t* as_integer(const Value& v, int64_t& storage);
/// The value of a number as float.
double as_float(const Value& v);
/// Python's name of the type, for messages.
std::string_view type_name(const Value& v);

// Python's rules.
bool is_true(const Value& v);
bool equal(Runtime& rt, const Value& a, const Value& b);
/// a < b; fails for values without an order.
bool less(Runtime& rt, const Value& a, const Value& b);
/// `item in container`.
bool contains(Runtime& rt, const Value& container, const Value& item);
/// str(v): what `{{ v }}` prints.
const Text* to_text(Runtime& rt, const Value& v);
/// repr of a float: the shortest digits that read back, always with a point or an exponent.
std::string float_text(double value);
/// The elements a `for` visits: items of a list, keys of a dict, characters of a string; fails for others.
std::vector<Value> elements(Runtime& rt, const Value& v);
/// len(v).
int64_t length(Runtime& rt, const Value& v);
/// The value under `key`, or null.
Value* lookup(Runtime& rt, Dict& dict, const Value& key);
/// dict[key] = value.
void store(Runtime& rt, Dict& dict, const Value& key, const Value& value);
/// v[key]: an item, else Undefined.
Value item(Runtime& rt, const Value& v, const Value& key);
/// v[start:stop:step]; undefined bounds are open.
Value slice(Runtime& rt, const Value& v, const Value& start, const Value& stop, const Value& step);

}  // namespace onebit::jinja
