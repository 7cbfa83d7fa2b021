// The filters, with Jinja's parameters. Where Jinja returns a generator, these return a list.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_arithmetic.h"
#include "text/jinja_builtins.h"
#include "text/jinja_json.h"

namespace onebit::jinja {

namespace {

Value list_of(Runtime& rt, std::vector<Value> items) { return rt.keep(List{std::move(items)}); }

/// The value at a path such as "function.name" or 0, where each missing step gives `fallback`.
Value at_path(Runtime& rt, Value v, const Value& path, const Value& fallback = Undefined{}) {
  const auto step = [&](const Value& key) {
    const Value found = item(rt, v, key);
    v = is_undefined(found) && !is_undefined(fallback) ? fallback : found;
  };
  const Text* names = as_text(path);
  if (!names) return step(path), v;
  for (const Span& part : split(names->str(), ".", -1, false)) {
    const std::string_view name = std::string_view(names->str()).substr(part.begin, part.end - part.begin);
    int64_t index = 0;
    const bool is_index = !name.empty() && name.find_first_not_of("0123456789") == name.npos &&
                          std::from_chars(name.data(), name.data() + name.size(), index).ec == std::errc();
    step(is_index ? Value(index) : rt.slice(*names, part));
  }
  return v;
}

/// What sorting compares: the value at `attribute` if one is given, in lower case unless case matters.
Value sort_key(Runtime& rt, Value v, const Value& attribute, bool case_sensitive) {
  if (!is_undefined(attribute) && !is_none(attribute)) v = at_path(rt, v, attribute);
  const Text* text = as_text(v);
  return text && !case_sensitive ? Value(rt.keep(change_case(*text, Case::lower))) : v;
}

std::vector<Value> sorted(Runtime& rt, const std::vector<Value>& items, const Value& attribute, bool case_sensitive,
                          bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& v : items) keyed.emplace_back(sort_key(rt, v, attribute, case_sensitive), v);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    rt.step();
    return reverse ? less(rt, b.first, a.first) : less(rt, a.first, b.first);
  });
  std::vector<Value> out;
  for (const auto& entry : keyed) out.push_back(entry.second);
  return out;
}

// ---- values ----

Value default_filter(Runtime& rt, const Value& self, Arguments a) {
  const bool replaced = is_undefined(self) || (is_true(a[1]) && !is_true(self));
  if (!replaced) return self;
  return is_undefined(a[0]) ? rt.text("") : a[0];
}

Value length_filter(Runtime& rt, const Value& self, Arguments) { return length(rt, self); }
Value list_filter(Runtime& rt, const Value& self, Arguments) { return list_of(rt, elements(rt, self)); }

Value items_filter(Runtime& rt, const Value& self, Arguments) {
  if (is_undefined(self)) return list_of(rt, {});
  const Dict* dict = as<Dict>(self);
  if (!dict) rt.fail("'items' wants a dict, got a value of type {}", type_name(self));
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict->entries) pairs.push_back(rt.keep(List{{key, value}, true}));
  rt.step(pairs.size());
  return list_of(rt, std::move(pairs));
}

Value dictsort_filter(Runtime& rt, const Value& self, Arguments a) {
  const int64_t part = as_text(a[1]) && as_text(a[1])->str() == "value";
  const Value pairs = items_filter(rt, self, {});
  return list_of(rt, sorted(rt, as<List>(pairs)->items, part, is_true(a[0]), is_true(a[2])));
}

Value sort_filter(Runtime& rt, const Value& self, Arguments a) {
  return list_of(rt, sorted(rt, elements(rt, self), a[2], is_true(a[1]), is_true(a[0])));
}

/// The first item in sorting order; with kReverse the first in the reverse order.
template <bool kReverse>
Value extreme_filter(Runtime& rt, const Value& self, Arguments a) {
  const std::vector<Value> items = sorted(rt, elements(rt, self), a[1], is_true(a[0]), kReverse);
  return items.empty() ? Value(Undefined{"an item of an empty list"}) : items.front();
}

Value unique_filter(Runtime& rt, const Value& self, Arguments a) {
  std::vector<Value> keys, items;
  for (const Value& v : elements(rt, self)) {
    const Value key = sort_key(rt, v, a[1], is_true(a[0]));
    const bool seen = std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(rt, k, key); });
    rt.scan_items(keys.size());
    if (seen) continue;
    keys.push_back(key);
    items.push_back(v);
  }
  return list_of(rt, std::move(items));
}

Value end_item(Runtime& rt, const Value& self, int64_t index) {
  const Value found =
      length(rt, self) == 0 ? Value(Undefined{}) : item(rt, as<Dict>(self) ? list_filter(rt, self, {}) : self, index);
  return is_undefined(found) ? Value(Undefined{"an item of an empty list"}) : found;
}
Value first_filter(Runtime& rt, const Value& self, Arguments) { return end_item(rt, self, 0); }

Value last_filter(Runtime& rt, const Value& self, Arguments) { return end_item(rt, self, -1); }

Value reverse_filter(Runtime& rt, const Value& self, Arguments) {
  if (as_text(self)) return slice(rt, self, Undefined{}, Undefined{}, int64_t{-1});
  std::vector<Value> items = elements(rt, self);
  std::reverse(items.begin(), items.end());
  return list_of(rt, std::move(items));
}

Value sum_filter(Runtime& rt, const Value& self, Arguments a) {
  Value total = is_undefined(a[1]) ? Value(int64_t{0}) : a[1];
  for (const Value& v : elements(rt, self)) total = add(rt, total, is_undefined(a[0]) ? v : at_path(rt, v, a[0]));
  return total;
}

// ---- filters that apply filters and tests ----

CallArguments arguments_from(Arguments a, size_t first) {
  return {{a.begin() + static_cast<std::ptrdiff_t>(std::min(first, a.size())), a.end()}, {}};
}

Value map_filter(Runtime& rt, const Value& self, Arguments a) {
  Dict& named = *as<Dict>(a.back());
  const Arguments positional = a.first(a.size() - 1);
  const Value attribute = item(rt, &named, rt.text("attribute")), fallback = item(rt, &named, rt.text("default"));
  const BuiltinRow* filter = nullptr;
  if (is_undefined(attribute)) {
    if (positional.empty()) rt.fail("'map' wants a filter or an attribute");
    filter = find_filter(expect_text(rt, positional[0]).str());
    if (!filter) rt.fail("there is no filter '{}'", as_text(positional[0])->str());
  }
  std::vector<Value> out;
  for (const Value& v : elements(rt, self)) {
    const Deeper deeper(rt);
    out.push_back(filter ? call_builtin(rt, *filter, v, arguments_from(positional, 1))
                         : at_path(rt, v, attribute, fallback));
  }
  return list_of(rt, std::move(out));
}

/// select, reject, selectattr, rejectattr: the items for which a test (default: is true) gives kWanted.
template <bool kWanted, bool kAttribute>
Value select_filter(Runtime& rt, const Value& self, Arguments a) {
  constexpr size_t kTest = kAttribute ? 1 : 0;
  if (kAttribute && a.empty()) rt.fail("'selectattr' and 'rejectattr' want an attribute");
  const BuiltinRow* test = nullptr;
  if (a.size() > kTest) {
    test = find_test(expect_text(rt, a[kTest]).str());
    if (!test) rt.fail("there is no test '{}'", as_text(a[kTest])->str());
  }
  std::vector<Value> out;
  for (const Value& v : elements(rt, self)) {
    rt.step();
    const Value tested = kAttribute ? at_path(rt, v, a[0]) : v;
    const Value result = test ? call_builtin(rt, *test, tested, arguments_from(a, kTest + 1)) : tested;
    if (is_true(result) == kWanted) out.push_back(v);
  }
  return list_of(rt, std::move(out));
}

// ---- text ----

Value string_filter(Runtime& rt, const Value& self, Arguments) { return to_text(rt, self); }

template <Case kCase>
Value case_filter(Runtime& rt, const Value& self, Arguments) {
  return rt.keep(change_case(*to_text(rt, self), kCase));
}

Value trim_filter(Runtime& rt, const Value& self, Arguments a) {
  const Value text = to_text(rt, self);
  return call_builtin(rt, *find_method(text, "strip"), text, arguments_from(a, 0));
}

Value replace_filter(Runtime& rt, const Value& self, Arguments a) {
  return replace_all(rt, *to_text(rt, self), *to_text(rt, a[0]), *to_text(rt, a[1]), integer_or(rt, a[2], -1));
}

Value join_filter(Runtime& rt, const Value& self, Arguments a) {
  std::vector<Value> items = elements(rt, self);
  if (!is_undefined(a[1]) && !is_none(a[1])) {
    for (Value& v : items) v = at_path(rt, v, a[1]);
  }
  return join(rt, list_of(rt, std::move(items)), *to_text(rt, a[0]));
}

/// Every line but the first (and empty ones, unless `blank`) moved in by `width` blanks or by that string.
Value indent_filter(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = *to_text(rt, self);
  const Text* given = as_text(a[0]);
  const int64_t width = given ? 0 : std::max<int64_t>(0, integer_or(rt, a[0], 4));
  rt.take(static_cast<uint64_t>(width));
  const Text margin = given ? *given : Text(std::string(static_cast<size_t>(width), ' '));
  Text out;
  size_t begin = 0;
  for (bool first = true; begin <= s.size(); first = false) {
    const size_t end = std::min(s.str().find('\n', begin), s.size());
    const bool moves = first ? is_true(a[1]) : end > begin || is_true(a[2]);
    rt.take(margin.size() + end - begin + 1);
    if (!first) out.append("\n");
    if (moves) out.append(margin);
    out.append(s, begin, end);
    begin = end + 1;
  }
  return rt.keep(std::move(out));
}

Value safe_filter(Runtime& rt, const Value& self, Arguments) {
  Text text = *to_text(rt, self);
  text.is_markup = true;
  return rt.keep(std::move(text));
}

Value escape_filter(Runtime& rt, const Value& self, Arguments) {
  const Text& text = *to_text(rt, self);
  if (text.is_markup) return &text;
  Text escaped = escape_html(text);
  escaped.is_markup = true;
  return rt.keep(std::move(escaped));
}

Value tojson_filter(Runtime& rt, const Value& self, Arguments a) {
  constexpr int64_t kMaxIndent = 64;
  JsonStyle style;
  style.ensure_ascii = is_true(a[0]);
  const int64_t indent = integer_or(rt, a[1], -1);
  if (indent > kMaxIndent) rt.fail("tojson: an indent of {} is more than {}", indent, kMaxIndent);
  if (!is_undefined(a[1]) && !is_none(a[1])) {
    style.indent = static_cast<int>(std::max<int64_t>(indent, 0));
    style.item_separator = ",";
  }
  if (const List* separators = as<List>(a[2]); separators && separators->items.size() == 2) {
    style.item_separator = expect_text(rt, separators->items[0]).str();
    style.key_separator = expect_text(rt, separators->items[1]).str();
  }
  style.sort_keys = is_true(a[3]);
  return to_json(rt, self, style);
}

Value from_json_filter(Runtime& rt, const Value& self, Arguments) {
  const Text& text = expect_text(rt, self);
  rt.step(text.size());
  rt.take(text.size() * 64);  // the parser's tree at its worst
  const auto json = nlohmann::ordered_json::parse(text.str(), nullptr, false);
  if (json.is_discarded()) rt.fail("from_json: the text is not JSON");
  return from_json(rt, json, !text.input_spans().empty());
}

// ---- numbers ----

Value abs_filter(Runtime& rt, const Value& self, Arguments) {
  if (const double* d = std::get_if<double>(&self)) return std::fabs(*d);
  return less(rt, self, int64_t{0}) ? negate(rt, self) : add(rt, self, int64_t{0});
}

/// The number in a string, or Undefined: an integer in `base`, or a float when `base` is 0.
Value parse_number(Runtime& rt, const std::string& s, int base) {
  rt.scan_text(2 * s.size());
  const Span inner = strip(s, Side::both);
  std::string digits = s.substr(inner.begin, inner.end - inner.begin);
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  const char *begin = digits.data(), *end = begin + digits.size();
  int64_t integer = 0;
  double floating = 0;
  const auto result = base ? std::from_chars(begin, end, integer, base) : std::from_chars(begin, end, floating);
  if (result.ec != std::errc() || result.ptr != end) return Undefined{"number"};
  return base ? Value(integer) : Value(floating);
}

Value float_filter(Runtime& rt, const Value& self, Arguments a) {
  const Text* text = as_text(self);
  const Value number = text              ? parse_number(rt, text->str(), 0)
                       : is_number(self) ? Value(as_float(self))
                                         : Value(Undefined{});
  if (!is_undefined(number)) return number;
  return is_undefined(a[0]) ? Value(0.0) : a[0];
}

Value int_filter(Runtime& rt, const Value& self, Arguments a) {
  int64_t storage = 0;
  if (const int64_t* i = as_integer(self, storage)) return *i;
  const int64_t base = std::clamp<int64_t>(integer_or(rt, a[1], 10), 2, 36);
  const Text* text = as_text(self);
  Value number = text ? parse_number(rt, text->str(), static_cast<int>(base)) : self;
  if (text && is_undefined(number)) number = parse_number(rt, text->str(), 0);
  if (std::holds_alternative<int64_t>(number)) return number;
  constexpr double kLimit = 0x1p63;
  const double* d = std::get_if<double>(&number);
  if (d && *d > -kLimit && *d < kLimit) return static_cast<int64_t>(*d);
  return is_undefined(a[0]) ? Value(int64_t{0}) : a[0];
}

/// Rounds the decimal digits of the exact value, ties to even, as Python does; or up or down by `method`.
Value round_filter(Runtime& rt, const Value& self, Arguments a) {
  const int64_t precision = std::clamp<int64_t>(integer_or(rt, a[0], 0), -300, 300);
  const std::string method = is_undefined(a[1]) ? "common" : expect_text(rt, a[1]).str();
  if (!is_number(self)) rt.fail("'round' wants a number, got a value of type {}", type_name(self));
  const double value = as_float(self), scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(value * scale) / scale;
  if (method == "floor") return std::floor(value * scale) / scale;
  if (method != "common") rt.fail("'round' knows the methods common, ceil and floor, not '{}'", method);
  int64_t storage = 0;
  if (const int64_t* i = as_integer(self, storage); i && precision >= 0) return *i;
  if (!std::isfinite(value)) return value;
  if (precision < 0) return std::nearbyint(value * scale) / scale;
  const std::string digits = fmt::format("{:.{}f}", value, static_cast<int>(precision));
  return std::get<double>(parse_number(rt, digits, 0));
}

constexpr BuiltinRow kFilters[] = {
    {"abs", "", abs_filter},
    {"capitalize", "", case_filter<Case::capitalize>},
    {"count", "", length_filter},
    {"d", "default_value boolean", default_filter},
    {"default", "default_value boolean", default_filter},
    {"dictsort", "case_sensitive by reverse", dictsort_filter},
    {"e", "", escape_filter},
    {"escape", "", escape_filter},
    {"first", "", first_filter},
    {"float", "default", float_filter},
    {"from_json", "", from_json_filter},
    {"indent", "width first blank", indent_filter},
    {"int", "default base", int_filter},
    {"items", "", items_filter},
    {"join", "d attribute", join_filter},
    {"last", "", last_filter},
    {"length", "", length_filter},
    {"list", "", list_filter},
    {"lower", "", case_filter<Case::lower>},
    {"map", "* **", map_filter},
    {"max", "case_sensitive attribute", extreme_filter<true>},
    {"min", "case_sensitive attribute", extreme_filter<false>},
    {"reject", "*", select_filter<false, false>},
    {"rejectattr", "*", select_filter<false, true>},
    {"replace", "old new count", replace_filter},
    {"reverse", "", reverse_filter},
    {"round", "precision method", round_filter},
    {"safe", "", safe_filter},
    {"select", "*", select_filter<true, false>},
    {"selectattr", "*", select_filter<true, true>},
    {"sort", "reverse case_sensitive attribute", sort_filter},
    {"string", "", string_filter},
    {"sum", "attribute start", sum_filter},
    {"title", "", case_filter<Case::words>},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson_filter},
    {"trim", "chars", trim_filter},
    {"unique", "case_sensitive attribute", unique_filter},
    {"upper", "", case_filter<Case::upper>},
};

}  // namespace

const BuiltinRow* find_filter(std::string_view name) { return find_row(kFilters, name); }

}  // namespace onebit::jinja
