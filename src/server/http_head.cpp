// Line by line through the head.
#include "server/http_head.h"

#include <algorithm>
#include <array>

#include "server/http.h"

namespace onebit {

namespace {

constexpr size_t kMaxFields = 100;
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::array<std::string_view, 7> kMethods{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c > ' ' && c < 127 &&
           std::string_view("\"(),/:;<=>?@[\\]{}").find(static_cast<char>(c)) == std::string_view::npos;
  });
}

bool is_length(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The fields that decide how the connection goes on.
struct Framing {
  std::string method, version;
  std::string length;
  bool chunked = false, close = false, keep_alive = false, has_host = false;
  HttpHeaders fields;
};

HeadCheck read_request_line(std::string_view line, Framing& framing) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return refused_head(400, "the request line has no three parts");
  framing.method = line.substr(0, first);
  framing.version = line.substr(last + 1);
  if (std::find(kMethods.begin(), kMethods.end(), framing.method) == kMethods.end()) {
    return refused_head(501, "method not supported");
  }
  if (framing.version != "HTTP/1.1" && framing.version != "HTTP/1.0")
    return refused_head(505, "HTTP/1.1 is spoken here");
  return {};
}

/// `keep`: whether the line stays in the head.
HeadCheck read_field(std::string_view line, Framing& framing, bool& keep) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) ||
      line.find_first_of(std::string_view("\0\r\n", 3)) != std::string_view::npos) {
    return refused_head(400, "a header line is malformed");
  }
  const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
  framing.fields.emplace_back(name, value);
  keep = !equal_ignoring_case(name, "Range") && !equal_ignoring_case(name, "Accept-Encoding") &&
         !equal_ignoring_case(name, "Content-Type");
  if (equal_ignoring_case(name, "Host")) {
    if (framing.has_host) return refused_head(400, "two Host headers");
    framing.has_host = true;
  }
  if (equal_ignoring_case(name, "Content-Length")) {
    if (!framing.length.empty() || !is_length(value)) return refused_head(400, "Content-Length must be one number");
    framing.length = value;
  } else if (equal_ignoring_case(name, "Transfer-Encoding")) {
    if (framing.chunked || !equal_ignoring_case(value, "chunked")) {
      return refused_head(501, "Transfer-Encoding: only 'chunked' is supported");
    }
    framing.chunked = true;
  } else if (equal_ignoring_case(name, "Connection")) {
    framing.close = framing.close || equal_ignoring_case(value, "close");
    framing.keep_alive = framing.keep_alive || equal_ignoring_case(value, "keep-alive");
  }
  return {};
}

}  // namespace

HeadCheck refused_head(int status, std::string why) {
  HeadCheck check;
  check.status = status;
  check.why = std::move(why);
  return check;
}

size_t head_size(std::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  return end == std::string_view::npos ? 0 : end + 4;
}

HeadCheck clean_head(std::string& head) {
  Framing framing;
  std::string cleaned;
  std::string_view rest(head);
  rest.remove_suffix(kLineEnd.size());  // the blank line
  size_t n_fields = 0;
  while (!rest.empty()) {
    const size_t end = rest.find(kLineEnd);
    const std::string_view line = rest.substr(0, end);
    bool keep = true;
    HeadCheck check = cleaned.empty() ? read_request_line(line, framing) : read_field(line, framing, keep);
    if (check.status == 0 && ++n_fields > kMaxFields) check = refused_head(431, "too many headers");
    if (check.status != 0) return check;
    if (keep) cleaned.append(line).append(kLineEnd);
    rest.remove_prefix(end + kLineEnd.size());
  }
  if (framing.chunked && !framing.length.empty()) return refused_head(400, "Content-Length beside Transfer-Encoding");
  const bool has_body = framing.method[0] == 'P' || framing.method == "DELETE";
  if (has_body && !framing.chunked && framing.length.empty()) cleaned += "Content-Length: 0\r\n";
  head = cleaned.append(kLineEnd);
  HeadCheck check;
  check.fields = std::move(framing.fields);
  check.keep_alive = framing.version == "HTTP/1.1" ? !framing.close : framing.keep_alive;
  check.unread_body = !has_body && (framing.chunked || framing.length.find_first_not_of('0') != std::string::npos);
  return check;
}

}  // namespace onebit
