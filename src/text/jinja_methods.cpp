// The methods of strings, lists, dicts and loops.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/unicode.h"

namespace onebit::jinja {

namespace {

const Text& text_of(const Value& self) { return *as_text(self); }

/// Where `part` is in `s` from byte `from` on (or from the end), its cost counted.
size_t find_part(Runtime& rt, const Text& s, const Text& part, bool from_right) {
  rt.step((s.size() / 64 + 1) * (part.size() / 64 + 1));
  return from_right ? s.str().rfind(part.str()) : s.str().find(part.str());
}

Value list_of_slices(Runtime& rt, const Text& s, const std::vector<Span>& parts) {
  rt.step(parts.size());
  List list;
  for (const Span& part : parts) list.items.push_back(rt.slice(s, part));
  return rt.keep(std::move(list));
}

// ---- str ----

template <Case kCase>
Value cased(Runtime& rt, const Value& self, Arguments) {
  return rt.keep(change_case(text_of(self), kCase));
}

template <Side kSide>
Value stripped(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = text_of(self);
  const Text* chars = is_undefined(a[0]) || is_none(a[0]) ? nullptr : &expect_text(rt, a[0]);
  rt.step((s.size() / 64 + 1) * ((chars ? chars->size() : 0) / 8 + 1));
  return rt.slice(s, strip(s.str(), kSide, chars ? &chars->str() : nullptr));
}

template <bool kFromRight>
Value split_parts(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = text_of(self);
  const int64_t max = integer_or(rt, a[1], -1);
  rt.scan_text(s.size());
  if (is_undefined(a[0]) || is_none(a[0])) return list_of_slices(rt, s, split_space(s.str(), max, kFromRight));
  const Text& separator = expect_text(rt, a[0]);
  if (separator.empty()) rt.fail("split: the separator is empty");
  rt.step((s.size() / 64 + 1) * (separator.size() / 64 + 1));
  return list_of_slices(rt, s, split(s.str(), separator.str(), max, kFromRight));
}

Value splitlines(Runtime& rt, const Value& self, Arguments a) {
  rt.scan_text(text_of(self).size());
  return list_of_slices(rt, text_of(self), split_lines(text_of(self).str(), is_true(a[0])));
}

/// True when `s` starts (or ends) with a string, or with one of a list of strings.
template <bool kAtStart>
Value has_affix(Runtime& rt, const Value& self, Arguments a) {
  const std::string& s = text_of(self).str();
  const List* several = as<List>(a[0]);
  for (const Value& v : several ? several->items : std::vector<Value>{a[0]}) {
    const std::string& affix = expect_text(rt, v).str();
    rt.step();
    rt.scan_text(affix.size());
    if (kAtStart ? s.starts_with(affix) : s.ends_with(affix)) return true;
  }
  return false;
}

Value removeprefix(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = text_of(self);
  const std::string& prefix = expect_text(rt, a[0]).str();
  return rt.slice(s, {s.str().starts_with(prefix) ? prefix.size() : 0, s.size()});
}
Value removesuffix(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = text_of(self);
  const std::string& suffix = expect_text(rt, a[0]).str();
  return rt.slice(s, {0, s.str().ends_with(suffix) ? s.size() - suffix.size() : s.size()});
}

template <bool kFromRight>
Value find_index(Runtime& rt, const Value& self, Arguments a) {
  const Text& s = text_of(self);
  const size_t found = find_part(rt, s, expect_text(rt, a[0]), kFromRight);
  return found == std::string::npos ? int64_t{-1} : count_chars(std::string_view(s.str()).substr(0, found));
}

Value count_parts(Runtime& rt, const Value& self, Arguments a) {
  const Text &s = text_of(self), &part = expect_text(rt, a[0]);
  if (part.empty()) return count_chars(s.str()) + 1;
  find_part(rt, s, part, false);
  return static_cast<int64_t>(split(s.str(), part.str(), -1, false).size()) - 1;
}

Value replace_parts(Runtime& rt, const Value& self, Arguments a) {
  return replace_all(rt, text_of(self), expect_text(rt, a[0]), expect_text(rt, a[1]), integer_or(rt, a[2], -1));
}

Value join_items(Runtime& rt, const Value& self, Arguments a) {
  for (const Value& v : elements(rt, a[0])) expect_text(rt, v);
  return join(rt, a[0], text_of(self));
}

/// True when the text is not empty and all its characters are in one of the categories.
template <uint8_t kFirst, uint8_t kLast>
Value all_in(Runtime& rt, const Value& self, Arguments) {
  const std::string& s = text_of(self).str();
  rt.scan_text(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const uint8_t category = general_category(next_char(s, pos));
    if (category < kFirst || category > kLast) return false;
  }
  return !s.empty();
}
Value isspace(Runtime& rt, const Value& self, Arguments) {
  const std::string& s = text_of(self).str();
  rt.scan_text(s.size());
  return !s.empty() && strip(s, Side::left).begin == s.size();
}
Value islower(Runtime& rt, const Value& self, Arguments) { return call_builtin(rt, *find_test("lower"), self, {}); }
Value isupper(Runtime& rt, const Value& self, Arguments) { return call_builtin(rt, *find_test("upper"), self, {}); }

constexpr uint8_t kLu = 1, kLo = 5, kNd = 9;  // general_category's indices

constexpr BuiltinRow kTextMethods[] = {
    {"capitalize", "", cased<Case::capitalize>},
    {"count", "sub", count_parts},
    {"endswith", "suffix", has_affix<false>},
    {"find", "sub", find_index<false>},
    {"isalpha", "", all_in<kLu, kLo>},
    {"isdigit", "", all_in<kNd, kNd>},
    {"islower", "", islower},
    {"isspace", "", isspace},
    {"isupper", "", isupper},
    {"join", "iterable", join_items},
    {"lower", "", cased<Case::lower>},
    {"lstrip", "chars", stripped<Side::left>},
    {"removeprefix", "prefix", removeprefix},
    {"removesuffix", "suffix", removesuffix},
    {"replace", "old new count", replace_parts},
    {"rfind", "sub", find_index<true>},
    {"rsplit", "sep maxsplit", split_parts<true>},
    {"rstrip", "chars", stripped<Side::right>},
    {"split", "sep maxsplit", split_parts<false>},
    {"splitlines", "keepends", splitlines},
    {"startswith", "prefix", has_affix<true>},
    {"strip", "chars", stripped<Side::both>},
    {"title", "", cased<Case::title>},
    {"upper", "", cased<Case::upper>},
};

// ---- list, dict, loop ----

Value list_append(Runtime& rt, const Value& self, Arguments a) {
  if (as<List>(self)->is_tuple) rt.fail("a tuple can't be changed");
  rt.take(sizeof(Value));
  as<List>(self)->items.push_back(a[0]);
  return None{};
}

Value list_pop(Runtime& rt, const Value& self, Arguments a) {
  std::vector<Value>& items = as<List>(self)->items;
  const int64_t n = static_cast<int64_t>(items.size());
  const int64_t given = integer_or(rt, a[0], -1), index = given < 0 ? given + n : given;
  if (as<List>(self)->is_tuple) rt.fail("a tuple can't be changed");
  if (index < 0 || index >= n) rt.fail("pop: the list has {} items, index {} is outside", n, given);
  rt.scan_items(items.size());
  const Value taken = items[static_cast<size_t>(index)];
  items.erase(items.begin() + index);
  return taken;
}

int64_t count_equal(Runtime& rt, const List& list, const Value& wanted) {
  return std::count_if(list.items.begin(), list.items.end(), [&](const Value& v) {
    rt.step();
    return equal(rt, v, wanted);
  });
}
Value list_count(Runtime& rt, const Value& self, Arguments a) { return count_equal(rt, *as<List>(self), a[0]); }

Value list_index(Runtime& rt, const Value& self, Arguments a) {
  const std::vector<Value>& items = as<List>(self)->items;
  for (size_t i = 0; i < items.size(); ++i) {
    rt.step();
    if (equal(rt, items[i], a[0])) return static_cast<int64_t>(i);
  }
  rt.fail("index: the value is not in the list");
}

constexpr BuiltinRow kListMethods[] = {
    {"append", "object", list_append},
    {"count", "value", list_count},
    {"index", "value", list_index},
    {"pop", "index", list_pop},
};

Value dict_get(Runtime& rt, const Value& self, Arguments a) {
  const Value* found = lookup(rt, *as<Dict>(self), a[0]);
  return found ? *found : is_undefined(a[1]) ? Value(None{}) : a[1];
}

Value dict_items(Runtime& rt, const Value& self, Arguments) {
  return call_builtin(rt, *find_filter("items"), self, {});
}
Value dict_keys(Runtime& rt, const Value& self, Arguments) { return rt.keep(List{elements(rt, self)}); }

Value dict_values(Runtime& rt, const Value& self, Arguments) {
  List values;
  for (const auto& entry : as<Dict>(self)->entries) values.items.push_back(entry.second);
  rt.scan_items(values.items.size());
  return rt.keep(std::move(values));
}

Value dict_copy(Runtime& rt, const Value& self, Arguments) { return rt.keep(Dict(*as<Dict>(self))); }

constexpr BuiltinRow kDictMethods[] = {
    {"copy", "", dict_copy}, {"get", "key default", dict_get}, {"items", "", dict_items},
    {"keys", "", dict_keys}, {"values", "", dict_values},
};

Value loop_cycle(Runtime& rt, const Value& self, Arguments a) {
  if (a.empty()) rt.fail("loop.cycle() wants at least one value");
  return a[static_cast<size_t>(as<const Loop>(self)->index0) % a.size()];
}

constexpr BuiltinRow kLoopMethods[] = {{"cycle", "*", loop_cycle}};

}  // namespace

const BuiltinRow* find_method(const Value& self, std::string_view name) {
  std::span<const BuiltinRow> rows;
  if (as_text(self)) rows = kTextMethods;
  if (as<List>(self)) rows = kListMethods;
  if (as<Dict>(self)) rows = kDictMethods;
  if (as<const Loop>(self)) rows = kLoopMethods;
  return find_row(rows, name);
}

}  // namespace onebit::jinja
