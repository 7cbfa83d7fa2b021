// Python's rules for the values of the template language: truth, equality, order, text, items.
#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/unicode.h"

namespace onebit::jinja {

const Value* Scope::find(Runtime& rt, std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent) {
    rt.scan_items(scope->variables.size());
    for (const auto& [variable, value] : scope->variables) {
      if (variable == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(Runtime& rt, std::string_view name, Value value) {
  rt.scan_items(variables.size());
  for (auto& variable : variables) {
    if (variable.first == name) {
      variable.second = value;
      return;
    }
  }
  if (variables.size() == variables.capacity()) rt.take((variables.size() + 1) * sizeof(variables[0]));
  variables.emplace_back(name, value);
}

void Runtime::step(uint64_t n) {
  steps_ += n;
  if (steps_ > limits.steps) fail("the template needs more than {} steps; is a loop too long?", limits.steps);
}

void Runtime::take(uint64_t bytes) {
  if (bytes > limits.bytes - bytes_) fail("the template needs more than {} bytes of memory", limits.bytes);
  bytes_ += bytes;
}

void Runtime::fail_with(const std::string& message) const {
  constexpr int64_t kMaxMessage = 1000;  // characters; a template may say anything
  const std::string_view shown = std::string_view(message).substr(0, char_position(message, kMaxMessage));
  throw Error(ErrorKind::usage, fmt::format("chat template, line {}: {}", line, shown));
}

void Deeper::too_deep() {
  --rt_.depth;
  rt_.fail("nested more than {} levels deep", rt_.limits.depth);
}

// ---- kinds ----

bool is_number(const Value& v) {
  return std::holds_alternative<bool>(v) || std::holds_alternative<int64_t>(v) || std::holds_alternative<double>(v);
}

const int64_t* as_integer(const Value& v, int64_t& storage) {
  if (const bool* b = std::get_if<bool>(&v)) return storage = *b, &storage;
  return std::get_if<int64_t>(&v);
}

double as_float(const Value& v) {
  if (const double* d = std::get_if<double>(&v)) return *d;
  int64_t storage = 0;
  const int64_t* i = as_integer(v, storage);
  return i ? static_cast<double>(*i) : 0.0;
}

std::string_view type_name(const Value& v) {
  static constexpr std::string_view kNames[] = {"undefined", "None", "bool",      "int",   "float", "str",
                                                "list",      "dict", "namespace", "macro", "loop",  "function"};
  if (const List* list = as<List>(v); list && list->is_tuple) return "tuple";
  return kNames[v.index()];
}

// ---- truth, equality, order ----

bool is_true(const Value& v) {
  if (is_undefined(v) || is_none(v)) return false;
  if (is_number(v)) return as_float(v) != 0;
  if (const Text* text = as_text(v)) return !text->empty();
  if (const List* list = as<List>(v)) return !list->items.empty();
  if (const Dict* dict = as<Dict>(v)) return !dict->entries.empty();
  return true;
}

namespace {

bool equal_lists(Runtime& rt, const List& a, const List& b) {
  return a.is_tuple == b.is_tuple && std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                                                [&](const Value& x, const Value& y) { return equal(rt, x, y); });
}

bool equal_dicts(Runtime& rt, Dict& a, Dict& b) {
  return a.entries.size() == b.entries.size() &&
         std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
           Value* other = lookup(rt, b, entry.first);
           return other && equal(rt, entry.second, *other);
         });
}

/// <, 0, > as a is below, equal to, above b.
int order_numbers(const Value& a, const Value& b) {
  int64_t sa = 0, sb = 0;
  const int64_t *ia = as_integer(a, sa), *ib = as_integer(b, sb);
  if (ia && ib) return *ia < *ib ? -1 : *ia > *ib;
  const double da = as_float(a), db = as_float(b);
  return da < db ? -1 : da > db;
}

}  // namespace

bool equal(Runtime& rt, const Value& a, const Value& b) {
  if (const Text* x = as_text(a), *y = as_text(b); x && y) {
    rt.scan_text(std::min(x->size(), y->size()));
    return x->str() == y->str();
  }
  if (is_number(a) && is_number(b))
    return order_numbers(a, b) == 0 && !std::isnan(as_float(a)) && !std::isnan(as_float(b));
  if (a.index() != b.index()) return false;
  if (is_undefined(a) || is_none(a)) return true;
  const Deeper deeper(rt);
  if (const List* list = as<List>(a)) return equal_lists(rt, *list, *as<List>(b));
  if (Dict* dict = as<Dict>(a)) return equal_dicts(rt, *dict, *as<Dict>(b));
  if (const Scope* scope = as<Scope>(a)) return scope == as<Scope>(b);
  if (const Macro* macro = as<const Macro>(a)) return macro == as<const Macro>(b);
  return false;
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return order_numbers(a, b) < 0;
  if (const Text* x = as_text(a), *y = as_text(b); x && y) {
    rt.scan_text(std::min(x->size(), y->size()));
    return x->str() < y->str();  // UTF-8 sorts as its code points do
  }
  const List *x = as<List>(a), *y = as<List>(b);
  if (!x || !y || x->is_tuple != y->is_tuple) {
    rt.fail("values of types {} and {} have no order", type_name(a), type_name(b));
  }
  const Deeper deeper(rt);
  for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
    if (!equal(rt, x->items[i], y->items[i])) return less(rt, x->items[i], y->items[i]);
  }
  return x->items.size() < y->items.size();
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  if (const Text* text = as_text(container)) {
    const Text* part = as_text(item);
    if (!part) rt.fail("'in <string>' wants a string on the left, not {}", type_name(item));
    rt.step((text->size() / 64 + 1) * (part->size() / 64 + 1));
    return text->str().find(part->str()) != std::string::npos;
  }
  if (Dict* dict = as<Dict>(container)) return lookup(rt, *dict, item) != nullptr;
  const std::vector<Value> items = elements(rt, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(rt, v, item); });
}

// ---- text ----

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto write = [&](std::chars_format format) {
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr);
  };
  const std::string scientific = write(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = write(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

namespace {

/// True when repr() shows the character itself.
bool is_printable(char32_t c) {
  constexpr uint8_t kFirstSpace = 23;  // separators and control characters come after all others
  if (c < 0x7f) return c >= ' ';
  const uint8_t category = general_category(c);
  return category > 0 && category < kFirstSpace;
}

/// The escape by which repr() shows a character.
std::string repr_escape(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const uint32_t code = c;
  if (code < 0x80 && is_printable(c)) return {'\\', static_cast<char>(c)};
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

void append_text_repr(Text& out, const Text& s) {
  const std::string& bytes = s.str();
  const bool single = bytes.find('\'') == std::string::npos || bytes.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  out.append(std::string_view(&quote, 1));
  size_t done = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t begin = pos;
    const char32_t c = next_char(bytes, pos);
    if (c != static_cast<char32_t>(quote) && c != '\\' && is_printable(c)) continue;
    out.append(s, done, begin);
    out.append(repr_escape(c));
    done = pos;
  }
  out.append(s, done, s.size());
  out.append(std::string_view(&quote, 1));
}

void append_repr(Runtime& rt, Text& out, const Value& v);

/// str(v) for all but strings: numbers and names as in Python, containers with the repr of their elements.
void append_plain(Runtime& rt, Text& out, const Value& v) {
  const Deeper deeper(rt);
  if (is_undefined(v)) return;
  if (is_none(v)) return out.append("None");
  if (const bool* b = std::get_if<bool>(&v)) return out.append(*b ? "True" : "False");
  if (const int64_t* i = std::get_if<int64_t>(&v)) return out.append(std::to_string(*i));
  if (const double* d = std::get_if<double>(&v)) return out.append(float_text(*d));
  if (const List* list = as<List>(v)) {
    out.append(list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(rt, out, list->items[i]);
    }
    if (list->is_tuple && list->items.size() == 1) out.append(",");
    return out.append(list->is_tuple ? ")" : "]");
  }
  if (const Dict* dict = as<Dict>(v)) {
    out.append("{");
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(rt, out, dict->entries[i].first);
      out.append(": ");
      append_repr(rt, out, dict->entries[i].second);
    }
    return out.append("}");
  }
  out.append(fmt::format("<{}>", type_name(v)));
}

void append_repr(Runtime& rt, Text& out, const Value& v) {
  const Text* text = as_text(v);
  if (is_undefined(v)) return out.append("Undefined");
  if (!text) return append_plain(rt, out, v);
  rt.take(text->size());
  if (text->is_markup) out.append("Markup(");
  append_text_repr(out, *text);
  if (text->is_markup) out.append(")");
}

}  // namespace

const Text* to_text(Runtime& rt, const Value& v) {
  if (const Text* text = as_text(v)) return text;
  Text out;
  append_plain(rt, out, v);
  return rt.keep(std::move(out));
}

// ---- elements and items ----

std::vector<Value> elements(Runtime& rt, const Value& v) {
  std::vector<Value> out;
  if (const Text* text = as_text(v)) {
    for (size_t pos = 0; pos < text->size();) {
      const size_t begin = pos;
      next_char(text->str(), pos);
      Text character;
      character.append(*text, begin, pos);
      out.push_back(rt.keep(std::move(character)));
    }
  } else if (const List* list = as<List>(v)) {
    out = list->items;
  } else if (const Dict* dict = as<Dict>(v)) {
    for (const auto& entry : dict->entries) out.push_back(entry.first);
  } else if (!is_undefined(v)) {
    rt.fail("a value of type {} can't be iterated over", type_name(v));
  }
  rt.scan_items(out.size());
  return out;
}

int64_t length(Runtime& rt, const Value& v) {
  if (const Text* text = as_text(v)) {
    rt.scan_text(text->size());
    return count_chars(text->str());
  }
  if (const List* list = as<List>(v)) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = as<Dict>(v)) return static_cast<int64_t>(dict->entries.size());
  if (!is_undefined(v)) rt.fail("a value of type {} has no length", type_name(v));
  return 0;
}

Value* lookup(Runtime& rt, Dict& dict, const Value& key) {
  rt.scan_items(dict.entries.size());
  for (auto& entry : dict.entries) {
    if (equal(rt, entry.first, key)) return &entry.second;
  }
  return nullptr;
}

void store(Runtime& rt, Dict& dict, const Value& key, const Value& value) {
  if (as<List>(key) || as<Dict>(key)) rt.fail("a {} can't be the key of a dict", type_name(key));
  if (Value* old = lookup(rt, dict, key)) {
    *old = value;
    return;
  }
  rt.take(2 * sizeof(Value));
  dict.entries.emplace_back(key, value);
}

Value item(Runtime& rt, const Value& v, const Value& key) {
  const Text* name = as_text(key);
  const Value missing = Undefined{name ? std::string_view(name->str()) : "an element"};
  if (const Undefined* u = std::get_if<Undefined>(&v)) rt.fail("'{}' is undefined", u->name);
  if (Dict* dict = as<Dict>(v)) {
    const Value* found = lookup(rt, *dict, key);
    return found ? *found : missing;
  }
  if (const Scope* scope = as<Scope>(v)) {
    const Value* found = name ? scope->find(rt, name->str()) : nullptr;
    return found ? *found : missing;
  }
  int64_t storage = 0;
  const int64_t* index = as_integer(key, storage);
  if (!index || !(as_text(v) || as<List>(v))) return missing;
  const int64_t n = length(rt, v);
  const int64_t i = *index < 0 ? *index + n : *index;
  if (i < 0 || i >= n) return Undefined{as_text(rt.text(fmt::format("element {}", *index)))->str()};
  if (const List* list = as<List>(v)) return list->items[static_cast<size_t>(i)];
  const Text& text = *as_text(v);
  const size_t begin = char_position(text.str(), i);
  size_t end = begin;
  next_char(text.str(), end);
  return rt.slice(text, {begin, end});
}

namespace {

/// The bound of a slice over `n` elements, clamped to [low, high]; `open` when it is not given.
int64_t slice_bound(Runtime& rt, const Value& bound, int64_t n, int64_t low, int64_t high, int64_t open) {
  if (is_undefined(bound) || is_none(bound)) return open;
  int64_t storage = 0;
  const int64_t* i = as_integer(bound, storage);
  if (!i) rt.fail("a slice wants integers, not {}", type_name(bound));
  return std::clamp(*i < 0 ? *i + n : *i, low, high);
}

}  // namespace

Value slice(Runtime& rt, const Value& v, const Value& start, const Value& stop, const Value& step) {
  if (const Undefined* u = std::get_if<Undefined>(&v)) rt.fail("'{}' is undefined", u->name);
  const Text* text = as_text(v);
  const List* list = as<List>(v);
  if (!text && !list) rt.fail("a value of type {} can't be sliced", type_name(v));
  const int64_t n = length(rt, v);
  const int64_t stride = slice_bound(rt, step, 0, -n - 1, n + 1, 1);
  if (stride == 0 && n > 0) rt.fail("the step of a slice can't be zero");
  const bool forward = stride >= 0;
  const int64_t low = forward ? 0 : -1, high = forward ? n : n - 1;
  const int64_t first = slice_bound(rt, start, n, low, high, forward ? low : high);
  const int64_t last = slice_bound(rt, stop, n, low, high, forward ? high : low);
  if (text && stride == 1) {
    const size_t begin = char_position(text->str(), first);
    const size_t end = begin + char_position(std::string_view(text->str()).substr(begin), last - first);
    return rt.slice(*text, {begin, std::max(begin, end)});
  }
  const std::vector<Value> all = elements(rt, v);
  std::vector<Value> picked;
  for (int64_t i = first; forward ? i < last : i > last; i += stride) picked.push_back(all[static_cast<size_t>(i)]);
  if (list) return rt.keep(List{std::move(picked), list->is_tuple});
  Text out;
  for (const Value& character : picked) out.append(*as_text(character));
  return rt.keep(std::move(out));
}

}  // namespace onebit::jinja
