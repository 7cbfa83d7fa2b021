// Arithmetic on template values, as Python does it.
#include "text/jinja_arithmetic.h"

#include <cmath>

namespace onebit::jinja {

namespace {

[[noreturn]] void no_operation(Runtime& rt, std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (const Undefined* u = std::get_if<Undefined>(v)) rt.fail("'{}' is undefined", u->name);
  }
  rt.fail("'{}' does not work on values of types {} and {}", op, type_name(a), type_name(b));
}

/// Two operands as integers; false when one is a float. Fails unless both are numbers.
bool integers(Runtime& rt, std::string_view op, const Value& a, const Value& b, int64_t& x, int64_t& y) {
  if (!is_number(a) || !is_number(b)) no_operation(rt, op, a, b);
  int64_t storage = 0;
  const int64_t* i = as_integer(a, storage);
  if (i) x = *i;
  const int64_t* j = as_integer(b, storage);
  if (j) y = *j;
  return i && j;
}

[[noreturn]] void overflow(Runtime& rt) { rt.fail("an integer needs more than 64 bits"); }

Value add_texts(Runtime& rt, const Text& a, const Text& b) {
  const bool is_markup = a.is_markup || b.is_markup;
  Text out = is_markup && !a.is_markup ? escape_html(a) : a;
  out.append(is_markup && !b.is_markup ? escape_html(b) : b);
  out.is_markup = is_markup;
  return rt.keep(std::move(out));
}

Value repeat(Runtime& rt, const Value& v, int64_t times) {
  const uint64_t n = times < 0 ? 0 : static_cast<uint64_t>(times);
  const Text* text = as_text(v);
  const uint64_t size = text ? text->size() : as<List>(v)->items.size() * sizeof(Value);
  if (size > 0 && n > rt.limits.bytes / size) rt.take(rt.limits.bytes + 1);
  rt.take(n * size);
  rt.step(size > 0 ? n : 0);
  if (text) {
    Text out;
    for (uint64_t i = 0; size > 0 && i < n; ++i) out.append(*text);
    return rt.keep(std::move(out));
  }
  List out{{}, as<List>(v)->is_tuple};
  for (uint64_t i = 0; size > 0 && i < n; ++i) {
    out.items.insert(out.items.end(), as<List>(v)->items.begin(), as<List>(v)->items.end());
  }
  return rt.keep(std::move(out));
}

int64_t integer_power(Runtime& rt, int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow(rt);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow(rt);
  }
  return result;
}

}  // namespace

Value add(Runtime& rt, const Value& a, const Value& b) {
  if (const Text* s = as_text(a), *t = as_text(b); s && t) return add_texts(rt, *s, *t);
  if (const List* s = as<List>(a), *t = as<List>(b); s && t && s->is_tuple == t->is_tuple) {
    List out = *s;
    out.items.insert(out.items.end(), t->items.begin(), t->items.end());
    return rt.keep(std::move(out));
  }
  int64_t x = 0, y = 0;
  if (!integers(rt, "+", a, b, x, y)) return as_float(a) + as_float(b);
  if (__builtin_add_overflow(x, y, &x)) overflow(rt);
  return x;
}

Value subtract(Runtime& rt, const Value& a, const Value& b) {
  int64_t x = 0, y = 0;
  if (!integers(rt, "-", a, b, x, y)) return as_float(a) - as_float(b);
  if (__builtin_sub_overflow(x, y, &x)) overflow(rt);
  return x;
}

Value multiply(Runtime& rt, const Value& a, const Value& b) {
  int64_t storage = 0;
  const bool a_repeats = as_text(a) || as<List>(a), b_repeats = as_text(b) || as<List>(b);
  if (const int64_t* n = as_integer(b, storage); n && a_repeats) return repeat(rt, a, *n);
  if (const int64_t* n = as_integer(a, storage); n && b_repeats) return repeat(rt, b, *n);
  int64_t x = 0, y = 0;
  if (!integers(rt, "*", a, b, x, y)) return as_float(a) * as_float(b);
  if (__builtin_mul_overflow(x, y, &x)) overflow(rt);
  return x;
}

Value divide(Runtime& rt, const Value& a, const Value& b) {
  int64_t x = 0, y = 0;
  integers(rt, "/", a, b, x, y);
  if (as_float(b) == 0) rt.fail("division by zero");
  return as_float(a) / as_float(b);
}

Value floor_divide(Runtime& rt, const Value& a, const Value& b) {
  int64_t x = 0, y = 0;
  const bool whole = integers(rt, "//", a, b, x, y);
  if (as_float(b) == 0) rt.fail("division by zero");
  if (!whole) return std::floor(as_float(a) / as_float(b));
  if (y == -1) return negate(rt, x);  // the one quotient that can overflow
  return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

Value modulo(Runtime& rt, const Value& a, const Value& b) {
  int64_t x = 0, y = 0;
  const bool whole = integers(rt, "%", a, b, x, y);
  if (as_float(b) == 0) rt.fail("division by zero");
  if (!whole) {
    const double rest = std::fmod(as_float(a), as_float(b));
    return rest != 0 && (rest < 0) != (as_float(b) < 0) ? rest + as_float(b) : rest;
  }
  if (y == -1) return int64_t{0};
  const int64_t rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

Value power(Runtime& rt, const Value& a, const Value& b) {
  int64_t x = 0, y = 0;
  if (integers(rt, "**", a, b, x, y) && y >= 0) return integer_power(rt, x, y);
  return std::pow(as_float(a), as_float(b));
}

Value negate(Runtime& rt, const Value& a) {
  if (!is_number(a)) no_operation(rt, "-", int64_t{0}, a);
  if (const double* d = std::get_if<double>(&a)) return -*d;
  return subtract(rt, int64_t{0}, a);
}

}  // namespace onebit::jinja
