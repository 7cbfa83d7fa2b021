// Tokens -> statements; each function reads one tag and what belongs to it.
#include "text/jinja_parser.h"

#include "text/jinja_expression.h"

namespace onebit::jinja {

namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(tokenize(source)) {}

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
      if (statement.parameters.size() == kMaxParameters)
        fail_here(fmt::format("more than {} parameters", kMaxParameters));
      if (!statement.parameters.empty()) expect_op(",");
      Parameter parameter{take_name("a parameter").text, nullptr};
      if (skip_op("=")) parameter.default_value = parse_expression();
      statement.parameters.push_back(std::move(parameter));
    }
  }

  static constexpr size_t kMaxParameters = 255;
  int loops_ = 0;  ///< for loops around the current statement
};

}  // namespace

Template parse(std::string_view source) { return Parser(source).run(); }

}  // namespace onebit::jinja
