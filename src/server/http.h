// The types that travel between the wire and the application: a request with its client, a reply or a stream of bytes.
// Only http_connection.cpp knows the HTTP library, only routes.cpp knows what the paths mean.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onebit {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// The first value of a header, whatever the case of its name; nothing when absent.
std::optional<std::string> find_header(const HttpHeaders& headers, std::string_view name);
bool equal_ignoring_case(std::string_view a, std::string_view b);

/// The other end of a connection.
class HttpClient {
 public:
  enum class Wait { ready, timeout, gone, stopping };
  virtual ~HttpClient() = default;
  /// Blocks until `fd` is readable, the client has closed the connection, the server stops, or `timeout_ms` have passed
  /// (-1: never).
  virtual Wait wait(int fd, int timeout_ms) const = 0;
};

struct HttpRequest {
  std::string method;  // upper case
  std::string path;    // decoded, without the query
  HttpHeaders query;   // decoded
  HttpHeaders headers;
  std::string body;  // empty until the request is admitted
  const HttpClient* client = nullptr;

  std::optional<std::string> header(std::string_view name) const { return find_header(headers, name); }
};

/// Where a streamed reply goes.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  /// False: the client is gone or doesn't read.
  virtual bool write(std::string_view bytes) = 0;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json; charset=utf-8";
  HttpHeaders headers;
  std::string body;
  std::function<void(HttpSink&)> stream;  // instead of body: called once, after the headers have been sent
  bool close = false;                     // the connection ends with this reply
};

/// What a listener serves. Called from many threads at once; must not throw.
class HttpApplication {
 public:
  virtual ~HttpApplication() = default;
  /// Looks at a request whose body is still unread; a reply refuses it.
  virtual std::optional<HttpReply> refuse(const HttpRequest& head) = 0;
  virtual HttpReply handle(HttpRequest& request) = 0;
  /// The reply to a request that could not be read.
  virtual HttpReply broken(int status, const std::string& why) = 0;
};

struct HttpLimits {
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 16 << 20;
  size_t max_bodies_bytes = 128 << 20;  // bodies of all connections together
  int max_connections = 512;
  int idle_ms = 60'000;    // between the requests of a connection
  int header_ms = 20'000;  // from the first byte of a request to the end of its headers
  int body_ms = 120'000;   // to the end of its body
  int write_ms = 30'000;   // without progress
};

}  // namespace onebit
