// The head of a request (request line and headers) as bytes: checked and cleaned before the HTTP library parses it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/http.h"

namespace onebit {

/// Length of the head at the start of `bytes`, its blank line included; 0: it isn't complete.
size_t head_size(std::string_view bytes);

/// What a head says about what follows it.
struct HeadCheck {
  int status = 0;  // of the reply that refuses the request; 0: fine
  std::string why;
  bool keep_alive = true;
  bool unread_body = false;  // a body that belongs to a method without one: nothing can follow it
  HttpHeaders fields;        // as they came, names and trimmed values
};

HeadCheck refused_head(int status, std::string why);

/// Checks a complete head and rewrites it: Range, Accept-Encoding and Content-Type are dropped (replies are whole and
/// plain, and what a body is, is the application's business), a missing length becomes Content-Length: 0. Refused:
/// methods and versions that aren't served, lines that aren't header fields, more than 100 of them, and hosts and
/// lengths that two readers could understand differently.
HeadCheck clean_head(std::string& head);

}  // namespace onebit
