// Builds the syntax tree of a template from its text.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace onebit::jinja {

/// Parses a template (UTF-8). Throws Error(refused) with line and column on a syntax error.
Template parse(std::string_view source);

}  // namespace onebit::jinja
