// Argument binding for the built-ins, the tests, and the global functions.
#include "text/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja_arithmetic.h"

namespace onebit::jinja {

// ---- binding ----

const BuiltinRow* find_row(std::span<const BuiltinRow> rows, std::string_view name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const BuiltinRow& r) { return r.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

Value call_builtin(Runtime& rt, const BuiltinRow& row, const Value& self, const CallArguments& args) {
  std::vector<Value> bound;
  std::vector<bool> used(args.named.size());
  size_t next = 0;
  std::string_view rest = row.parameters;
  while (!rest.empty()) {
    const std::string_view parameter = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), parameter.size() + 1));
    if (parameter == "*") {
      bound.insert(bound.end(), args.positional.begin() + static_cast<std::ptrdiff_t>(next), args.positional.end());
      next = args.positional.size();
    } else if (parameter == "**") {
      Dict named;
      for (const auto& [name, value] : args.named) store(rt, named, rt.text(name), value);
      used.assign(used.size(), true);
      bound.push_back(rt.keep(std::move(named)));
    } else {
      Value value = next < args.positional.size() ? args.positional[next++] : Value(Undefined{parameter});
      for (size_t i = 0; i < args.named.size(); ++i) {
        if (args.named[i].first == parameter) value = args.named[i].second, used[i] = true;
      }
      bound.push_back(value);
    }
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    rt.fail("'{}' has no argument '{}'", row.name, args.named[static_cast<size_t>(unused - used.begin())].first);
  }
  if (next < args.positional.size()) rt.fail("'{}' got too many arguments", row.name);
  return row.apply(rt, self, bound);
}

int64_t integer_or(Runtime& rt, const Value& v, int64_t fallback) {
  if (is_undefined(v) || is_none(v)) return fallback;
  int64_t storage = 0;
  const int64_t* i = as_integer(v, storage);
  if (!i) rt.fail("expected an integer, got a value of type {}", type_name(v));
  return *i;
}

const Text& expect_text(Runtime& rt, const Value& v) {
  const Text* text = as_text(v);
  if (!text) rt.fail("expected a string, got a value of type {}", type_name(v));
  return *text;
}

Value join(Runtime& rt, const Value& items, const Text& separator) {
  Text out;
  bool first = true;
  for (const Value& v : elements(rt, items)) {
    const Text& part = *to_text(rt, v);
    rt.take(separator.size() + part.size());
    if (!first) out.append(separator);
    out.append(part);
    first = false;
  }
  return rt.keep(std::move(out));
}

Value replace_all(Runtime& rt, const Text& s, const Text& from, const Text& to, int64_t max) {
  rt.step((s.size() / 64 + 1) * (from.size() / 64 + 1));
  uint64_t matches = from.empty() ? s.size() + 1 : 0;
  for (size_t pos = s.str().find(from.str()); !from.empty() && pos != std::string::npos;) {
    ++matches;
    pos = s.str().find(from.str(), pos + from.size());
  }
  if (max >= 0) matches = std::min(matches, static_cast<uint64_t>(max));
  if (!to.empty() && matches > rt.limits.bytes / to.size()) rt.take(rt.limits.bytes + 1);
  rt.take(matches * to.size());
  rt.step(matches);
  return rt.keep(replace(s, from.str(), to, max));
}

namespace {

// ---- tests: self and arguments -> bool ----

template <typename T>
Value holds(Runtime&, const Value& self, Arguments) {
  return std::holds_alternative<T>(self);
}

Value is_equal(Runtime& rt, const Value& self, Arguments a) { return equal(rt, self, a[0]); }
Value is_unequal(Runtime& rt, const Value& self, Arguments a) { return !equal(rt, self, a[0]); }
Value is_less(Runtime& rt, const Value& self, Arguments a) { return less(rt, self, a[0]); }
Value is_greater(Runtime& rt, const Value& self, Arguments a) { return less(rt, a[0], self); }
Value is_at_most(Runtime& rt, const Value& self, Arguments a) { return less(rt, self, a[0]) || equal(rt, self, a[0]); }
Value is_at_least(Runtime& rt, const Value& self, Arguments a) { return less(rt, a[0], self) || equal(rt, self, a[0]); }
Value is_in(Runtime& rt, const Value& self, Arguments a) { return contains(rt, a[0], self); }
Value is_defined(Runtime&, const Value& self, Arguments) { return !is_undefined(self); }
Value is_number_test(Runtime&, const Value& self, Arguments) { return is_number(self); }
Value is_exactly_true(Runtime&, const Value& self, Arguments) {
  return self.index() == Value(true).index() && is_true(self);
}
Value is_exactly_false(Runtime&, const Value& self, Arguments) {
  return self.index() == Value(false).index() && !is_true(self);
}
Value is_callable(Runtime&, const Value& self, Arguments) {
  return as<const Macro>(self) || as<const Function>(self) || as<const Loop>(self);
}
/// Strings, lists, tuples, dicts, and undefined values, which count as empty.
Value is_iterable(Runtime&, const Value& self, Arguments) {
  return is_undefined(self) || as_text(self) || as<List>(self) || as<Dict>(self);
}
Value is_same(Runtime& rt, const Value& self, Arguments a) {
  if (as<List>(self) || as<Dict>(self)) return as<List>(self) == as<List>(a[0]) && as<Dict>(self) == as<Dict>(a[0]);
  return self.index() == a[0].index() && equal(rt, self, a[0]);
}
Value is_divisible(Runtime& rt, const Value& self, Arguments a) { return !is_true(modulo(rt, self, a[0])); }
Value is_odd(Runtime& rt, const Value& self, Arguments) { return equal(rt, modulo(rt, self, int64_t{2}), int64_t{1}); }
Value is_even(Runtime& rt, const Value& self, Arguments) { return equal(rt, modulo(rt, self, int64_t{2}), int64_t{0}); }

/// True when the text has letters and all of them have this case.
Value has_case(Runtime& rt, const Value& self, Case wanted) {
  const Text& s = *to_text(rt, self);
  rt.scan_text(3 * s.size());
  const bool has_letters = change_case(s, Case::upper).str() != change_case(s, Case::lower).str();
  return has_letters && change_case(s, wanted).str() == s.str();
}
Value is_lower(Runtime& rt, const Value& self, Arguments) { return has_case(rt, self, Case::lower); }
Value is_upper(Runtime& rt, const Value& self, Arguments) { return has_case(rt, self, Case::upper); }

constexpr BuiltinRow kTests[] = {
    {"!=", "other", is_unequal},
    {"<", "other", is_less},
    {"<=", "other", is_at_most},
    {"==", "other", is_equal},
    {">", "other", is_greater},
    {">=", "other", is_at_least},
    {"boolean", "", holds<bool>},
    {"callable", "", is_callable},
    {"defined", "", is_defined},
    {"divisibleby", "num", is_divisible},
    {"eq", "other", is_equal},
    {"equalto", "other", is_equal},
    {"even", "", is_even},
    {"false", "", is_exactly_false},
    {"float", "", holds<double>},
    {"ge", "other", is_at_least},
    {"greaterthan", "other", is_greater},
    {"gt", "other", is_greater},
    {"in", "seq", is_in},
    {"integer", "", holds<int64_t>},
    {"iterable", "", is_iterable},
    {"le", "other", is_at_most},
    {"lessthan", "other", is_less},
    {"lower", "", is_lower},
    {"lt", "other", is_less},
    {"mapping", "", holds<Dict*>},
    {"ne", "other", is_unequal},
    {"none", "", holds<None>},
    {"number", "", is_number_test},
    {"odd", "", is_odd},
    {"sameas", "other", is_same},
    {"sequence", "", is_iterable},
    {"string", "", holds<const Text*>},
    {"true", "", is_exactly_true},
    {"undefined", "", holds<Undefined>},
    {"upper", "", is_upper},
};

// ---- global functions ----

Value raise_exception(Runtime& rt, const Value&, Arguments a) { rt.fail_with(to_text(rt, a[0])->str()); }

Value make_namespace(Runtime& rt, const Value&, Arguments a) {
  Scope scope;
  for (const Value& source : a) {
    const Dict* dict = as<Dict>(source);
    if (!dict) rt.fail("namespace() wants names or a dict, got a value of type {}", type_name(source));
    for (const auto& [name, value] : dict->entries) scope.set(rt, expect_text(rt, name).str(), value);
  }
  return rt.keep(std::move(scope));
}

Value make_dict(Runtime& rt, const Value&, Arguments a) {
  Dict dict;
  for (const Value& source : a) {
    const Dict* other = as<Dict>(source);
    if (!other) rt.fail("dict() wants names or a dict, got a value of type {}", type_name(source));
    for (const auto& [key, value] : other->entries) store(rt, dict, key, value);
  }
  return rt.keep(std::move(dict));
}

Value make_range(Runtime& rt, const Value&, Arguments a) {
  constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox
  const bool one = is_undefined(a[1]);
  const int64_t start = one ? 0 : integer_or(rt, a[0], 0), stop = integer_or(rt, one ? a[0] : a[1], 0);
  const int64_t stride = integer_or(rt, a[2], 1);
  if (stride == 0) rt.fail("range() needs a step that is not zero");
  List numbers;
  for (int64_t i = start; stride > 0 ? i < stop : i > stop;) {
    if (numbers.items.size() == kMaxRange) rt.fail("range() has more than {} numbers", kMaxRange);
    numbers.items.emplace_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  rt.step(numbers.items.size());
  return rt.keep(std::move(numbers));
}

Value strftime_now(Runtime& rt, const Value&, Arguments a) {
  const std::string& format = expect_text(rt, a[0]).str();
  constexpr std::string_view kKnown = "aAbBdeHIjmMpSuUwWyY%";
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    i += 1 + (i + 1 < format.size() && format[i + 1] == '-');
    if (i >= format.size() || kKnown.find(format[i]) == kKnown.npos) {
      rt.fail("strftime_now: the format '{}' is not supported", format);
    }
  }
  if (format.size() > 200) rt.fail("strftime_now: the format is longer than 200 characters");
  std::array<char, 4096> buffer{};
  const std::tm time = rt.now();
  return rt.text({buffer.data(), std::strftime(buffer.data(), buffer.size(), format.c_str(), &time)});
}

constexpr BuiltinRow kGlobals[] = {
    {"dict", "* **", make_dict},
    {"namespace", "* **", make_namespace},
    {"raise_exception", "message", raise_exception},
    {"range", "start stop step", make_range},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

const BuiltinRow* find_test(std::string_view name) { return find_row(kTests, name); }
const BuiltinRow* find_global(std::string_view name) { return find_row(kGlobals, name); }

}  // namespace onebit::jinja
