// Runs a template: the tree and its variables come in, the text goes out. It computes values and nothing else: no
// files, no clock but the one given, no code but the tables of built-ins; the Runtime's limits bound time, memory and
// stack.
#pragma once

#include "text/jinja_ast.h"

namespace onebit::jinja {

/// Renders `body` with the variables in `globals`. Throws Error(usage) when the template fails or exceeds a limit.
Text render(const Template& body, Runtime& rt, Scope& globals);

}  // namespace onebit::jinja
