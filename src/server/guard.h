// Who may ask: the checks on Host, Origin and API key that come before anything else is looked at.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace onebit {

struct GuardOptions {
  bool loopback = true;                    // bound to a loopback address: the Host header must name one
  std::vector<std::string> api_keys = {};  // empty: no key is asked for
  /// Other sites whose pages may call, e.g. "https://chat.example"; "*": all.
  std::vector<std::string> cors_origins = {};
};

class Guard {
 public:
  explicit Guard(GuardOptions options) : options_(std::move(options)) {}

  /// Throws ApiError: 403 for a Host or Origin that isn't ours, 401 for a missing or wrong key where the path asks for
  /// one.
  void check(const HttpRequest& request, bool needs_key) const;

  /// The headers that let a page of the request's Origin read the reply; none for origins that aren't allowed.
  HttpHeaders cors_headers(const HttpRequest& request) const;

 private:
  bool origin_allowed(const HttpRequest& request, const std::string& origin) const;
  bool key_matches(std::string_view key) const;

  GuardOptions options_;
};

/// True for localhost, *.localhost, 127.a.b.c and ::1, with or without a port.
bool names_loopback(std::string_view host);

}  // namespace onebit
