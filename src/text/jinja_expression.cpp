// Tokens -> expressions, by recursive descent. Each function reads one rule of Jinja's grammar; operators bind, from
// loose to tight: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary, then postfix, filters and tests.
#include "text/jinja_expression.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace onebit::jinja {

// ---- targets ----

ExprPtr ExpressionParser::parse_target() {
  const int line = peek().line;
  ExprPtr first = parse_target_name();
  if (skip_op(".")) return attribute(line, take_name("an attribute").text, std::move(first));
  if (!at_op(",")) return first;
  ExprPtr tuple = node(ExprKind::tuple, line);
  add_operand(*tuple, std::move(first));
  while (skip_op(",")) add_operand(*tuple, parse_target_name());
  return tuple;
}

ExprPtr ExpressionParser::parse_target_name() {
  if (skip_op("(")) {
    const Nested nested(*this);
    ExprPtr target = parse_target();
    expect_op(")");
    return target;
  }
  const Token name = take_name("a name to assign to");
  if (is_constant(name.text) || is_one_of(name.text, {"not", "and", "or", "in", "is", "if", "else"})) {
    syntax_error(name.line, name.column, fmt::format("can't assign to '{}'", name.text));
  }
  return node(ExprKind::name, name.line, name.text);
}

// ---- operators ----

ExprPtr ExpressionParser::parse_tuple(bool with_conditional) {
  const auto parse_part = [&] { return with_conditional ? parse_expression() : parse_or(); };
  const int line = peek().line;
  ExprPtr first = parse_part();
  if (!at_op(",")) return first;
  ExprPtr tuple = node(ExprKind::tuple, line);
  add_operand(*tuple, std::move(first));
  while (skip_op(",")) {
    const TokenKind kind = peek().kind;
    if (kind == TokenKind::variable_end || kind == TokenKind::block_end || at_op(")")) break;
    add_operand(*tuple, parse_part());
  }
  return tuple;
}

ExprPtr ExpressionParser::parse_expression() {
  const Nested nested(*this);
  ExprPtr value = parse_or();
  while (at_word("if")) {
    const int line = take().line;
    ExprPtr choice = wrap(ExprKind::conditional, line, "", std::move(value));
    add_operand(*choice, parse_or());
    add_operand(*choice, skip_word("else") ? parse_expression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (at_word("or")) left = binary(ExprKind::or_, std::move(left), &ExpressionParser::parse_and);
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (at_word("and")) left = binary(ExprKind::and_, std::move(left), &ExpressionParser::parse_not);
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  const int line = peek().line;
  if (!skip_word("not")) return parse_compare();
  const Nested nested(*this);
  return wrap(ExprKind::not_, line, "", parse_not());
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = peek().line;
  ExprPtr left = parse_sum();
  std::vector<std::string> operators;
  std::vector<ExprPtr> others;
  while (true) {
    if (peek().kind == TokenKind::op && is_one_of(peek().text, {"==", "!=", "<", "<=", ">", ">="})) {
      operators.push_back(take().text);
    } else if (skip_word("in")) {
      operators.push_back("in");
    } else if (at_word("not") && peek(1).kind == TokenKind::name && peek(1).text == "in") {
      take(), take();
      operators.push_back("not in");
    } else {
      break;
    }
    others.push_back(parse_sum());
  }
  if (operators.empty()) return left;
  ExprPtr compare = wrap(ExprKind::compare, line, "", std::move(left));
  compare->words = std::move(operators);
  for (ExprPtr& other : others) add_operand(*compare, std::move(other));
  return compare;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    left = binary(at_op("+") ? ExprKind::add : ExprKind::subtract, std::move(left), &ExpressionParser::parse_concat);
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr left = parse_product();
  if (!at_op("~")) return left;
  ExprPtr concat = wrap(ExprKind::concat, peek().line, "", std::move(left));
  while (skip_op("~")) add_operand(*concat, parse_product());
  return concat;
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (true) {
    if (at_op("*")) {
      left = binary(ExprKind::multiply, std::move(left), &ExpressionParser::parse_power);
    } else if (at_op("/")) {
      left = binary(ExprKind::divide, std::move(left), &ExpressionParser::parse_power);
    } else if (at_op("//")) {
      left = binary(ExprKind::floor_divide, std::move(left), &ExpressionParser::parse_power);
    } else if (at_op("%")) {
      left = binary(ExprKind::modulo, std::move(left), &ExpressionParser::parse_power);
    } else {
      return left;
    }
  }
}

ExprPtr ExpressionParser::parse_unary_with_filters() { return parse_unary(true); }

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary_with_filters();
  while (at_op("**")) left = binary(ExprKind::power, std::move(left), &ExpressionParser::parse_unary_with_filters);
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nested nested(*this);
  const int line = peek().line;
  ExprPtr value;
  if (skip_op("-")) {
    value = wrap(ExprKind::negate, line, "", parse_unary(false));
  } else if (skip_op("+")) {
    value = wrap(ExprKind::plus, line, "", parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

// ---- operands ----

ExprPtr ExpressionParser::parse_primary() {
  const Token token = take();
  switch (token.kind) {
    case TokenKind::name:
      return is_constant(token.text) ? constant(token) : node(ExprKind::name, token.line, token.text);
    case TokenKind::string:
      return string_literal(token);
    case TokenKind::integer:
      return integer(token);
    case TokenKind::floating:
      return literal(token.line, parse_float(token.text));
    case TokenKind::op:
      break;
    default:
      syntax_error(token.line, token.column, fmt::format("expected an expression, found '{}'", token.text));
  }
  if (token.text == "[") return parse_items(ExprKind::list, token.line, "]");
  if (token.text == "{") return parse_dict(token.line);
  if (token.text == "(") {
    if (skip_op(")")) return node(ExprKind::tuple, token.line);
    ExprPtr inner = parse_tuple(true);
    expect_op(")");
    return inner;
  }
  syntax_error(token.line, token.column, fmt::format("expected an expression, found '{}'", token.text));
}

ExprPtr ExpressionParser::parse_items(ExprKind kind, int line, std::string_view end) {
  ExprPtr items = node(kind, line);
  while (!skip_op(end)) {
    if (!items->operands.empty()) expect_op(",");
    if (skip_op(end)) break;
    add_operand(*items, parse_expression());
  }
  return items;
}

ExprPtr ExpressionParser::parse_dict(int line) {
  ExprPtr dict = node(ExprKind::dict, line);
  while (!skip_op("}")) {
    if (!dict->operands.empty()) expect_op(",");
    if (skip_op("}")) break;
    add_operand(*dict, parse_expression());
    expect_op(":");
    add_operand(*dict, parse_expression());
  }
  return dict;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr value) {
  while (true) {
    const int line = peek().line;
    if (skip_op(".")) {
      const Token key = take();
      if (key.kind == TokenKind::integer) {
        value = wrap(ExprKind::item, line, "", std::move(value));
        add_operand(*value, integer(key));
      } else if (key.kind == TokenKind::name) {
        value = attribute(line, key.text, std::move(value));
      } else {
        syntax_error(key.line, key.column, fmt::format("expected a name after '.', found '{}'", key.text));
      }
    } else if (skip_op("[")) {
      value = parse_subscript(std::move(value), line);
    } else if (at_op("(")) {
      value = wrap(ExprKind::call, line, "", std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

/// The rest of `value[...]`.
ExprPtr ExpressionParser::parse_subscript(ExprPtr value, int line) {
  ExprPtr start = at_op(":") ? nullptr : parse_tuple(true);
  if (skip_op("]")) {
    value = wrap(ExprKind::item, line, "", std::move(value));
    add_operand(*value, std::move(start));
    return value;
  }
  value = wrap(ExprKind::slice, line, "", std::move(value));
  add_operand(*value, std::move(start));
  expect_op(":");
  add_operand(*value, at_op(":") || at_op("]") ? nullptr : parse_expression());
  add_operand(*value, skip_op(":") && !at_op("]") ? parse_expression() : nullptr);
  expect_op("]");
  return value;
}

/// `(a, b, name=c)` onto the operands and words of a call, filter or test.
void ExpressionParser::parse_arguments(Expr& call) {
  expect_op("(");
  for (bool first = true; !skip_op(")"); first = false) {
    if (!first) expect_op(",");
    if (skip_op(")")) break;
    if (at_op("*") || at_op("**")) fail_here("unpacking arguments with * is not supported");
    const bool named = peek().kind == TokenKind::name && peek(1).kind == TokenKind::op && peek(1).text == "=";
    if (named) {
      call.words.push_back(take().text);
      take();
    } else if (!call.words.empty()) {
      fail_here("an argument without a name after one with a name");
    }
    add_operand(call, parse_expression());
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr value) {
  while (true) {
    if (skip_op("|")) {
      value = parse_filter(std::move(value));
    } else if (at_word("is")) {
      value = parse_test(std::move(value));
    } else if (at_op("(")) {
      value = wrap(ExprKind::call, peek().line, "", std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_filter(ExprPtr value) {
  const Token name = take_name("a filter");
  ExprPtr filter = wrap(ExprKind::filter, name.line, name.text, std::move(value));
  if (at_op("(")) parse_arguments(*filter);
  return filter;
}

/// `is [not] name`, with arguments in parentheses or one argument without.
ExprPtr ExpressionParser::parse_test(ExprPtr value) {
  const int line = take().line;
  const bool negated = skip_word("not");
  const Token name = take_name("a test");
  ExprPtr test = wrap(ExprKind::test, name.line, name.text, std::move(value));
  if (at_op("(")) {
    parse_arguments(*test);
  } else if (starts_argument()) {
    if (at_word("is")) fail_here("tests can't be chained with 'is'");
    add_operand(*test, parse_postfix(parse_primary()));
  }
  return negated ? wrap(ExprKind::not_, line, "", std::move(test)) : std::move(test);
}

/// True at a token that begins the argument of a test such as `is divisibleby 3`.
bool ExpressionParser::starts_argument() const {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::string:
    case TokenKind::integer:
    case TokenKind::floating:
      return true;
    case TokenKind::name:
      return !is_one_of(token.text, {"else", "or", "and", "if", "in", "not", "recursive"});
    case TokenKind::op:
      return token.text == "[" || token.text == "{";
    default:
      return false;
  }
}

// ---- literals ----

bool ExpressionParser::is_constant(std::string_view word) {
  return is_one_of(word, {"true", "True", "false", "False", "none", "None"});
}

ExprPtr ExpressionParser::constant(const Token& token) {
  const char first = static_cast<char>(token.text[0] | 0x20);
  return literal(token.line, first == 'n' ? Value(None{}) : Value(first == 't'));
}

ExprPtr ExpressionParser::string_literal(const Token& token) {
  ExprPtr expr = node(ExprKind::literal, token.line);
  std::string text = token.text;
  while (peek().kind == TokenKind::string) text += take().text;
  expr->text = Text(text);
  expr->value = &std::as_const(expr->text);
  return expr;
}

ExprPtr ExpressionParser::integer(const Token& token) {
  static constexpr std::string_view kLetters = "xob";
  static constexpr std::array<int, 3> kBases = {16, 8, 2};
  const std::string& digits = token.text;
  const size_t letter = digits.size() > 2 ? kLetters.find(static_cast<char>(digits[1] | 0x20)) : kLetters.npos;
  const bool has_base = letter != kLetters.npos;
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data() + (has_base ? 2 : 0), end, value, has_base ? kBases[letter] : 10);
  if (result.ec != std::errc() || result.ptr != end) {
    syntax_error(token.line, token.column, fmt::format("'{}' is not an integer of 64 bits", digits));
  }
  return literal(token.line, value);
}

double ExpressionParser::parse_float(const std::string& digits) {
  double value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

ExprPtr ExpressionParser::literal(int line, Value value) {
  ExprPtr expr = node(ExprKind::literal, line);
  expr->value = value;
  return expr;
}

// ---- nodes; none lies deeper than kMaxDepth, so walking and freeing the tree takes bounded stack ----

ExprPtr ExpressionParser::node(ExprKind kind, int line, std::string name) {
  return std::make_unique<Expr>(Expr{kind, line, std::move(name)});
}

ExprPtr ExpressionParser::wrap(ExprKind kind, int line, std::string name, ExprPtr operand) {
  ExprPtr expr = node(kind, line, std::move(name));
  add_operand(*expr, std::move(operand));
  return expr;
}

ExprPtr ExpressionParser::attribute(int line, const std::string& name, ExprPtr operand) {
  ExprPtr expr = wrap(ExprKind::attribute, line, name, std::move(operand));
  expr->text = Text(name);
  return expr;
}

/// `left OP right` at the operator.
ExprPtr ExpressionParser::binary(ExprKind kind, ExprPtr left, ExprPtr (ExpressionParser::*parse_right)()) {
  ExprPtr expr = wrap(kind, take().line, "", std::move(left));
  add_operand(*expr, (this->*parse_right)());
  return expr;
}

void ExpressionParser::add_operand(Expr& expr, ExprPtr operand) {
  if (operand) expr.depth = std::max(expr.depth, operand->depth + 1);
  if (expr.depth > kMaxDepth) fail_here(fmt::format("the expression has more than {} levels", kMaxDepth));
  expr.operands.push_back(std::move(operand));
}

}  // namespace onebit::jinja
