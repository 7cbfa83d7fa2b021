// Python's arithmetic on template values. Integers have 64 bits; a result that needs more is an error.
#pragma once

#include "text/jinja_value.h"

namespace onebit::jinja {

/// a + b: numbers, strings (text marked `safe` escapes the other side), lists.
Value add(Runtime& rt, const Value& a, const Value& b);
Value subtract(Runtime& rt, const Value& a, const Value& b);
/// a * b: numbers, or a string or list repeated.
Value multiply(Runtime& rt, const Value& a, const Value& b);
/// a / b, always a float.
Value divide(Runtime& rt, const Value& a, const Value& b);
/// a // b and a % b, rounded towards minus infinity.
Value floor_divide(Runtime& rt, const Value& a, const Value& b);
Value modulo(Runtime& rt, const Value& a, const Value& b);
/// a ** b.
Value power(Runtime& rt, const Value& a, const Value& b);
/// -a.
Value negate(Runtime& rt, const Value& a);

}  // namespace onebit::jinja
