// Reads the expressions inside tags, for the parser of statements.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace onebit::jinja {

/// Goes through the tokens of a template.
class TokenReader {
 protected:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

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

  /// One level of nested blocks and expressions for as long as it lives; too many are refused.
  class Nested {
   public:
    explicit Nested(TokenReader& reader) : reader_(reader) {
      if (++reader.depth_ > kMaxDepth) reader.fail_here(fmt::format("nested more than {} levels deep", kMaxDepth));
    }
    ~Nested() { --reader_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenReader& reader_;
  };

  static bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  static constexpr int kMaxDepth = 200;  ///< levels of nested blocks, and of an expression's tree

 private:
  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
};

class ExpressionParser : protected TokenReader {
 protected:
  using TokenReader::TokenReader;

  /// What a for or set assigns to: a name, names with commas between (a tuple), or namespace.attribute.
  ExprPtr parse_target();
  /// One expression, or several with commas between (a tuple); `with_conditional`: each may be `a if b else c`.
  ExprPtr parse_tuple(bool with_conditional);
  ExprPtr parse_expression();
  /// The filters, tests and calls that follow a value.
  ExprPtr parse_filters(ExprPtr value);
  /// One filter; its name is the current token.
  ExprPtr parse_filter(ExprPtr value);
  ExprPtr node(ExprKind kind, int line, std::string name = {});

 private:
  ExprPtr parse_target_name();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary_with_filters();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_items(ExprKind kind, int line, std::string_view end);
  ExprPtr parse_dict(int line);
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_subscript(ExprPtr value, int line);
  void parse_arguments(Expr& call);
  ExprPtr parse_test(ExprPtr value);
  bool starts_argument() const;

  static bool is_constant(std::string_view word);
  ExprPtr constant(const Token& token);
  ExprPtr string_literal(const Token& token);
  ExprPtr integer(const Token& token);
  static double parse_float(const std::string& digits);
  ExprPtr literal(int line, Value value);

  ExprPtr wrap(ExprKind kind, int line, std::string name, ExprPtr operand);
  ExprPtr attribute(int line, const std::string& name, ExprPtr operand);
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr (ExpressionParser::*parse_right)());
  void add_operand(Expr& expr, ExprPtr operand);
};

}  // namespace onebit::jinja
