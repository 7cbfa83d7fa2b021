// Splits template text into tokens. Comments, raw blocks and white-space control are settled here, as Jinja does with
// trim_blocks and lstrip_blocks: what reaches the parser is literal text and the tokens inside {{ }} and {% %}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace onebit::jinja {

enum class TokenKind {
  text,            ///< literal text of the template
  variable_begin,  ///< {{
  variable_end,    ///< }}
  block_begin,     ///< {%
  block_end,       ///< %}
  name,
  string,  ///< `text` is the value, escapes resolved
  integer,
  floating,
  op,
  end,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;    ///< from 1
  int column;  ///< from 1, in bytes
};

/// The tokens of `source` (UTF-8), the last of kind end. Throws Error(refused) with line and column.
std::vector<Token> tokenize(std::string_view source);

/// Throws Error(refused): a template that can't be parsed.
[[noreturn]] void syntax_error(int line, int column, const std::string& message);

}  // namespace onebit::jinja
