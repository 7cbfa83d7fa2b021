// A web page on another site can make a browser send requests here; it can't choose the Host and Origin headers.
#include "server/guard.h"

#include <algorithm>

#include "server/api_error.h"

namespace onebit {

namespace {

ApiError forbidden(const std::string& message) { return {403, error_type(403), message}; }

/// The host of "host:port", without brackets.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? std::string_view() : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

bool is_loopback_v4(std::string_view host) {
  int n_parts = 0;
  while (true) {
    const size_t dot = host.find('.');
    const std::string_view part = host.substr(0, dot);
    if (part.empty() || part.size() > 3 ||
        !std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return false;
    if (n_parts++ == 0 && part != "127") return false;
    if (dot == std::string_view::npos) return n_parts == 4;
    host.remove_prefix(dot + 1);
  }
}

/// Takes the same time whatever the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference = static_cast<unsigned char>(difference | (a[i] ^ other));
  }
  return difference == 0;
}

std::string_view host_of_origin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

}  // namespace

bool names_loopback(std::string_view host) {
  std::string name(without_port(host));
  while (name.ends_with('.')) name.pop_back();
  constexpr std::string_view kLocal = ".localhost";
  const bool below_local = name.size() > kLocal.size() &&
                           equal_ignoring_case(std::string_view(name).substr(name.size() - kLocal.size()), kLocal);
  return equal_ignoring_case(name, "localhost") || below_local || name == "::1" || is_loopback_v4(name);
}

void Guard::check(const HttpRequest& request, bool needs_key) const {
  const std::string host = request.header("Host").value_or("");
  if (options_.loopback && !host.empty() && !names_loopback(host)) {
    throw forbidden("Host: this server answers to localhost only; a page or name elsewhere can't be served");
  }
  const auto origin = request.header("Origin");
  const bool changes_state = request.method != "GET" && request.method != "OPTIONS";
  if (origin && changes_state && !origin_allowed(request, *origin)) {
    throw forbidden("Origin: pages of this site may not call; allow it with --cors-origin");
  }
  if (!needs_key || options_.api_keys.empty()) return;
  std::string key = request.header("x-api-key").value_or("");
  const std::string authorization = request.header("Authorization").value_or("");
  constexpr std::string_view kBearer = "Bearer ";
  if (equal_ignoring_case(std::string_view(authorization).substr(0, kBearer.size()), kBearer)) {
    key = authorization.substr(kBearer.size());
  }
  if (!key_matches(key)) throw ApiError(401, error_type(401), "invalid or missing API key");
}

bool Guard::origin_allowed(const HttpRequest& request, const std::string& origin) const {
  for (const std::string& allowed : options_.cors_origins) {
    if (allowed == "*" || equal_ignoring_case(allowed, origin)) return true;
  }
  const std::string_view host = host_of_origin(origin);  // empty for "null"
  if (host.empty()) return false;
  return names_loopback(host) || equal_ignoring_case(host, request.header("Host").value_or(""));
}

bool Guard::key_matches(std::string_view key) const {
  bool any = false;
  for (const std::string& expected : options_.api_keys) any = equal_in_constant_time(key, expected) || any;
  return any && !key.empty();
}

HttpHeaders Guard::cors_headers(const HttpRequest& request) const {
  const auto origin = request.header("Origin");
  if (!origin || !origin_allowed(request, *origin)) return {};
  return {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}};
}

}  // namespace onebit
