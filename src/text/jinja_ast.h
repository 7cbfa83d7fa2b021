// The syntax tree of a template: a list of statements over expressions. Made by the parser, walked by the interpreter,
// never changed in between.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace onebit::jinja {

enum class ExprKind {
  literal,  ///< value (a string's characters live in `text`)
  name,     ///< name
  list,     ///< operands are the items
  tuple,    ///< operands are the items
  dict,     ///< operands are key, value, key, value ...
  negate,   ///< -a
  plus,     ///< +a
  not_,
  and_,
  or_,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,       ///< a ~ b
  compare,      ///< operands a, b, c ... with words[i] between operands i and i + 1
  conditional,  ///< operands: value, test, other value (or null) of `value if test else other`
  attribute,    ///< a.name; the name is also in `text`
  item,         ///< a[b]
  slice,        ///< operands: a, start, stop, step of a[start:stop:step], each bound null when left out
  call,         ///< operands: what is called, then the arguments; the last words.size() of these have names
  filter,       ///< a | name(arguments); operands: a, then the arguments, named ones as in a call
  test,         ///< a is name(arguments); operands as in a filter
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind;
  int line;
  std::string name = {};
  std::vector<ExprPtr> operands = {};
  std::vector<std::string> words = {};  ///< operators of compare, names of named arguments
  Text text = {};
  Value value = {};
  int depth = 1;  ///< levels of the tree below and including this node
};

enum class StatementKind {
  text,          ///< print `text`
  print,         ///< print `value`
  if_,           ///< the first branch whose test holds (or is null)
  for_,          ///< for target in value if condition: body, else otherwise
  set,           ///< target = value
  set_block,     ///< target = body's output, seen by `value` (the filters of the block) as kBlockText
  macro,         ///< name(parameters): body
  call_block,    ///< print the call `value`, in which caller(parameters) is the body
  filter_block,  ///< print `value`, in which kBlockText is the body's output
  with,          ///< body, with parameters set to their defaults
  break_,
  continue_,
};

/// The name under which a block's filters find its output; no template can write it.
inline constexpr const char* kBlockText = "<block>";

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExprPtr default_value;  ///< or null
};

struct Branch {
  ExprPtr test;  ///< null for else
  Block body;
};

struct Statement {
  StatementKind kind;
  int line;
  std::string name = {};
  Text text = {};
  ExprPtr target = {};  ///< a name, a tuple of names, or an attribute of a name
  ExprPtr value = {};
  ExprPtr condition = {};
  std::vector<Branch> branches = {};
  std::vector<Parameter> parameters = {};
  Block body = {};
  Block otherwise = {};
  bool is_recursive = false;  ///< a for loop whose body may call loop(items)
};

/// A parsed template.
struct Template {
  Block body;
};

}  // namespace onebit::jinja
