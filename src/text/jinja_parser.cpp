// Tokens -> syntax tree, by recursive descent. Each function reads one rule of Jinja's grammar; binary operators bind,
// from loose to tight: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary, then postfix, filters and
// tests.
#include "text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include "text/jinja_lexer.h"

namespace onebit::jinja {

namespace {

constexpr int kMaxDepth = 200;  // levels of nested blocks and of an expression's tree

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Template run() {
    Block body = parse_block({});
    if (peek().kind != TokenKind::end) fail_here(fmt::format("unexpected '{}'", peek(1).text));
    return {std::move(body)};
  }

 private:
  // ---- statements ----

  /// Statements up to a tag that begins with one of `ends`; that tag's `{%` is the current token then.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Block block;
    while (peek().kind != TokenKind::end) {
      if (peek().kind == TokenKind::text) {
        Statement text{StatementKind::text, peek().line};
        text.text = Text(take().text);
        block.push_back(std::move(text));
      } else if (peek().kind == TokenKind::variable_begin) {
        Statement print{StatementKind::print, take().line};
        print.value = parse_tuple(true);
        expect(TokenKind::variable_end, "}}");
        block.push_back(std::move(print));
      } else if (is_one_of(peek(1).text, ends) || peek(1).text.starts_with("end") || is_else(peek(1).text)) {
        break;
      } else {
        block.push_back(parse_statement());
      }
    }
    return block;
  }

  static bool is_else(std::string_view word) { return word == "else" || word == "elif"; }

  Statement parse_statement() {
    take();  // {%
    const Token tag = take_name("a statement");
    const std::string_view word = tag.text;
    if (word == "if") return parse_if(tag.line);
    if (word == "for") return parse_for(tag.line);
    if (word == "set") return parse_set(tag.line);
    if (word == "macro") return parse_macro(tag.line);
    if (word == "call") return parse_call_block(tag.line);
    if (word == "filter") return parse_filter_block(tag.line);
    if (word == "with") return parse_with(tag.line);
    if (word == "generation") {  // marks what a model wrote, for training; it only makes a scope
      Statement scope{StatementKind::with, tag.line};
      scope.body = parse_body("endgeneration");
      return scope;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) syntax_error(tag.line, tag.column, fmt::format("'{}' outside of a loop", word));
      end_tag();
      return {word == "break" ? StatementKind::break_ : StatementKind::continue_, tag.line};
    }
    syntax_error(tag.line, tag.column, fmt::format("unknown tag '{}'", word));
  }

  /// The rest of the opening tag's end, the body, and the closing tag.
  Block parse_body(std::string_view end) {
    end_tag();
    Block body = parse_block({end});
    close(end);
    return body;
  }

  /// The tag `{% end %}`.
  void close(std::string_view end) {
    if (peek().kind != TokenKind::block_begin || peek(1).text != end) {
      fail_here(fmt::format("'{{% {} %}}' is missing", end));
    }
    take(), take();
    end_tag();
  }

  Statement parse_if(int line) {
    Statement statement{StatementKind::if_, line};
    for (bool open = true; open;) {
      ExprPtr test = parse_tuple(false);
      end_tag();
      statement.branches.push_back({std::move(test), parse_block({"elif", "else", "endif"})});
      open = at_tag("elif");
      if (open) take(), take();
    }
    if (at_tag("else")) {
      take(), take();
      end_tag();
      statement.branches.push_back({nullptr, parse_block({"endif"})});
    }
    close("endif");
    return statement;
  }

  Statement parse_for(int line) {
    Statement statement{StatementKind::for_, line};
    statement.target = parse_target();
    expect_word("in");
    statement.value = parse_tuple(false);
    if (skip_word("if")) statement.condition = parse_expression();
    statement.is_recursive = skip_word("recursive");
    end_tag();
    ++loops_;
    statement.body = parse_block({"else", "endfor"});
    --loops_;
    if (at_tag("else")) {
      take(), take();
      end_tag();
      statement.otherwise = parse_block({"endfor"});
    }
    close("endfor");
    return statement;
  }

  Statement parse_set(int line) {
    Statement statement{StatementKind::set, line};
    statement.target = parse_target();
    if (skip_op("=")) {
      statement.value = parse_tuple(true);
      end_tag();
      return statement;
    }
    statement.kind = StatementKind::set_block;
    statement.value = parse_filters(node(ExprKind::name, line, kBlockText));
    statement.body = parse_body("endset");
    return statement;
  }

  Statement parse_macro(int line) {
    Statement statement{StatementKind::macro, line};
    statement.name = take_name("the macro's name").text;
    parse_parameters(statement);
    const int loops = std::exchange(loops_, 0);
    statement.body = parse_body("endmacro");
    loops_ = loops;
    return statement;
  }

  Statement parse_call_block(int line) {
    Statement statement{StatementKind::call_block, line};
    if (at_op("(")) parse_parameters(statement);
    const Token start = peek();
    statement.value = parse_expression();
    if (statement.value->kind != ExprKind::call) syntax_error(start.line, start.column, "'call' wants a call");
    const int loops = std::exchange(loops_, 0);
    statement.body = parse_body("endcall");
    loops_ = loops;
    return statement;
  }

  Statement parse_filter_block(int line) {
    Statement statement{StatementKind::filter_block, line};
    ExprPtr text = node(ExprKind::name, line, kBlockText);
    statement.value = parse_filters(parse_filter(std::move(text)));
    statement.body = parse_body("endfilter");
    return statement;
  }

  Statement parse_with(int line) {
    Statement statement{StatementKind::with, line};
    while (peek().kind == TokenKind::name) {
      Parameter parameter{take().text, nullptr};
      expect_op("=");
      parameter.default_value = parse_expression();
      statement.parameters.push_back(std::move(parameter));
      if (!skip_op(",")) break;
    }
    statement.body = parse_body("endwith");
    return statement;
  }

  void parse_parameters(Statement& statement) {
    expect_op("(");
    while (!skip_op(")")) {
      if (!statement.parameters.empty()) expect_op(",");
      Parameter parameter{take_name("a parameter").text, nullptr};
      if (skip_op("=")) parameter.default_value = parse_expression();
      statement.parameters.push_back(std::move(parameter));
    }
  }

  /// What a for or set assigns to: a name, names with commas between, or namespace.attribute.
  ExprPtr parse_target() {
    const int line = peek().line;
    ExprPtr first = parse_target_name();
    if (skip_op(".")) return attribute(line, take_name("an attribute").text, std::move(first));
    if (!at_op(",")) return first;
    ExprPtr tuple = node(ExprKind::tuple, line);
    add_operand(*tuple, std::move(first));
    while (skip_op(",")) add_operand(*tuple, parse_target_name());
    return tuple;
  }

  ExprPtr parse_target_name() {
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

  // ---- expressions ----

  /// One expression, or several with commas between, which make a tuple.
  ExprPtr parse_tuple(bool with_conditional) {
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

  ExprPtr parse_expression() {
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

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (at_word("or")) left = binary(ExprKind::or_, std::move(left), &Parser::parse_and);
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (at_word("and")) left = binary(ExprKind::and_, std::move(left), &Parser::parse_not);
    return left;
  }

  ExprPtr parse_not() {
    const int line = peek().line;
    if (!skip_word("not")) return parse_compare();
    const Nested nested(*this);
    return wrap(ExprKind::not_, line, "", parse_not());
  }

  ExprPtr parse_compare() {
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

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (at_op("+") || at_op("-")) {
      left = binary(at_op("+") ? ExprKind::add : ExprKind::subtract, std::move(left), &Parser::parse_concat);
    }
    return left;
  }

  ExprPtr parse_concat() {
    ExprPtr left = parse_product();
    if (!at_op("~")) return left;
    ExprPtr concat = wrap(ExprKind::concat, peek().line, "", std::move(left));
    while (skip_op("~")) add_operand(*concat, parse_product());
    return concat;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_power();
    while (true) {
      if (at_op("*")) {
        left = binary(ExprKind::multiply, std::move(left), &Parser::parse_power);
      } else if (at_op("/")) {
        left = binary(ExprKind::divide, std::move(left), &Parser::parse_power);
      } else if (at_op("//")) {
        left = binary(ExprKind::floor_divide, std::move(left), &Parser::parse_power);
      } else if (at_op("%")) {
        left = binary(ExprKind::modulo, std::move(left), &Parser::parse_power);
      } else {
        return left;
      }
    }
  }

  ExprPtr parse_power() {
    ExprPtr left = parse_signed();
    while (at_op("**")) left = binary(ExprKind::power, std::move(left), &Parser::parse_signed);
    return left;
  }

  ExprPtr parse_signed() { return parse_unary(true); }

  ExprPtr parse_unary(bool with_filters) {
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

  ExprPtr parse_primary() {
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

  ExprPtr parse_items(ExprKind kind, int line, std::string_view end) {
    ExprPtr items = node(kind, line);
    while (!skip_op(end)) {
      if (!items->operands.empty()) expect_op(",");
      if (skip_op(end)) break;
      add_operand(*items, parse_expression());
    }
    return items;
  }

  ExprPtr parse_dict(int line) {
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

  ExprPtr parse_postfix(ExprPtr value) {
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
  ExprPtr parse_subscript(ExprPtr value, int line) {
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
  void parse_arguments(Expr& call) {
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

  /// The filters, tests and calls that follow a value.
  ExprPtr parse_filters(ExprPtr value) {
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

  /// One filter; its name is the current token.
  ExprPtr parse_filter(ExprPtr value) {
    const Token name = take_name("a filter");
    ExprPtr filter = wrap(ExprKind::filter, name.line, name.text, std::move(value));
    if (at_op("(")) parse_arguments(*filter);
    return filter;
  }

  /// `is [not] name`, with arguments in parentheses or one argument without.
  ExprPtr parse_test(ExprPtr value) {
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
  bool starts_argument() const {
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

  static bool is_constant(std::string_view word) {
    return is_one_of(word, {"true", "True", "false", "False", "none", "None"});
  }

  ExprPtr constant(const Token& token) {
    const char first = static_cast<char>(token.text[0] | 0x20);
    return literal(token.line, first == 'n' ? Value(None{}) : Value(first == 't'));
  }

  ExprPtr string_literal(const Token& token) {
    ExprPtr expr = node(ExprKind::literal, token.line);
    std::string text = token.text;
    while (peek().kind == TokenKind::string) text += take().text;
    expr->text = Text(text);
    expr->value = &std::as_const(expr->text);
    return expr;
  }

  ExprPtr integer(const Token& token) {
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

  static double parse_float(const std::string& digits) {
    double value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }

  ExprPtr literal(int line, Value value) {
    ExprPtr expr = node(ExprKind::literal, line);
    expr->value = value;
    return expr;
  }

  // ---- nodes; none lies deeper than kMaxDepth, so walking and freeing the tree takes bounded stack ----

  ExprPtr node(ExprKind kind, int line, std::string name = {}) {
    return std::make_unique<Expr>(Expr{kind, line, std::move(name)});
  }

  ExprPtr wrap(ExprKind kind, int line, std::string name, ExprPtr operand) {
    ExprPtr expr = node(kind, line, std::move(name));
    add_operand(*expr, std::move(operand));
    return expr;
  }

  ExprPtr attribute(int line, const std::string& name, ExprPtr operand) {
    ExprPtr expr = wrap(ExprKind::attribute, line, name, std::move(operand));
    expr->text = Text(name);
    return expr;
  }

  /// `left OP right` at the operator.
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr (Parser::*parse_right)()) {
    ExprPtr expr = wrap(kind, take().line, "", std::move(left));
    add_operand(*expr, (this->*parse_right)());
    return expr;
  }

  void add_operand(Expr& expr, ExprPtr operand) {
    if (operand) expr.depth = std::max(expr.depth, operand->depth + 1);
    if (expr.depth > kMaxDepth) fail_here(fmt::format("the expression has more than {} levels", kMaxDepth));
    expr.operands.push_back(std::move(operand));
  }

  /// One level of nesting for as long as it lives.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser.depth_ > kMaxDepth) parser.fail_here(fmt::format("nested more than {} levels deep", kMaxDepth));
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  // ---- tokens ----

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(next_ + ahead, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = peek();
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }

  bool at_op(std::string_view op) const { return peek().kind == TokenKind::op && peek().text == op; }
  bool at_word(std::string_view word) const { return peek().kind == TokenKind::name && peek().text == word; }
  bool at_tag(std::string_view word) const { return peek().kind == TokenKind::block_begin && peek(1).text == word; }
  bool skip_op(std::string_view op) { return at_op(op) && (take(), true); }
  bool skip_word(std::string_view word) { return at_word(word) && (take(), true); }

  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_here(fmt::format("expected '{}', found '{}'", op, peek().text));
  }
  void expect_word(std::string_view word) {
    if (!skip_word(word)) fail_here(fmt::format("expected '{}', found '{}'", word, peek().text));
  }
  void expect(TokenKind kind, std::string_view what) {
    if (peek().kind != kind) fail_here(fmt::format("expected '{}', found '{}'", what, peek().text));
    take();
  }
  void end_tag() { expect(TokenKind::block_end, "%}"); }
  Token take_name(std::string_view what) {
    if (peek().kind != TokenKind::name) fail_here(fmt::format("expected {}, found '{}'", what, peek().text));
    return take();
  }

  [[noreturn]] void fail_here(const std::string& message) const { syntax_error(peek().line, peek().column, message); }

  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  int loops_ = 0;  ///< for loops around the current statement
};

}  // namespace

Template parse(std::string_view source) { return Parser(source).run(); }

}  // namespace onebit::jinja
