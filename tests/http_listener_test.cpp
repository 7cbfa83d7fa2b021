// The HTTP layer over real sockets, with an application that does what the test says; and who may ask.
#include "server/http_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <condition_variable>

#include "server/api_error.h"
#include "server/guard.h"
#include "server/http_head.h"

namespace onebit {
namespace {

using std::chrono::milliseconds;

class Echo : public HttpApplication {
 public:
  std::optional<HttpReply> refuse(const HttpRequest& head) override {
    if (head.header("refuse-me")) return broken(403, "refused");
    return std::nullopt;
  }
  HttpReply handle(HttpRequest& request) override {
    HttpReply reply;
    reply.content_type = "text/plain";
    if (request.path == "/stream") {
      reply.stream = [this, client = request.client](HttpSink& sink) { stream(sink, *client); };
    } else {
      reply.body = request.method + " " + request.path + " " + find_header(request.query, "q").value_or("-") + " " +
                   request.header("X-Test").value_or("-") + " " + std::to_string(request.body.size());
    }
    return reply;
  }
  HttpReply broken(int status, const std::string& why) override {
    return error_reply({status, error_type(status), why});
  }

  /// Two chunks, then waits for what `event` brings.
  void stream(HttpSink& sink, const HttpClient& client) {
    sink.write("one");
    sink.write("");
    sink.write("two");
    const auto outcome = client.wait(event.fd(), 10'000);
    const std::lock_guard lock(mutex);
    waited = outcome;
    changed.notify_all();
  }

  Event event;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<HttpClient::Wait> waited;
};

/// A client that sends bytes as they are.
class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  void send(std::string_view bytes) { ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// What has come until `end` was seen, the server closed, or 5 s have passed.
  std::string receive(std::string_view end = "\n\n\n") {
    std::string all;
    char buffer[4096];
    pollfd fd{fd_.get(), POLLIN, 0};
    while (all.find(end) == std::string::npos && ::poll(&fd, 1, 5000) > 0) {
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (n <= 0) {
        closed_ = true;
        break;
      }
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }
  bool closed() const { return closed_; }
  void leave() { fd_.reset(); }

 private:
  Fd fd_;
  bool closed_ = false;
};

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() { start({}); }
  void start(const HttpLimits& limits) {
    listener_.reset();
    SocketAddress address = resolve_address("127.0.0.1", 0);
    Fd socket = listen_on(address, "127.0.0.1");
    port_ = address.port();
    listener_ = std::make_unique<HttpListener>(std::move(socket), application_, limits);
  }
  std::string ask(std::string_view bytes) {
    Client client(port_);
    client.send(bytes);
    return client.receive();
  }

  Echo application_;
  std::unique_ptr<HttpListener> listener_;
  int port_ = 0;
};

std::string get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}
std::string post(const std::string& body, const std::string& headers = "") {
  return "POST /p HTTP/1.1\r\nHost: x\r\n" + headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}
void expect_status(const std::string& reply, int status) {
  EXPECT_EQ(reply.substr(0, 12), "HTTP/1.1 " + std::to_string(status)) << reply;
}

TEST_F(ListenerTest, RequestsOfOneConnection) {
  Client client(port_);
  client.send(get("/a%20b?q=%41", "X-Test: 100%25\r\n") + post("12345"));  // one right behind the other
  const std::string replies = client.receive("POST /p - - 5");
  expect_status(replies, 200);
  EXPECT_NE(replies.find("GET /a b A 100%25 0"), std::string::npos) << replies;  // header values are as they came
  EXPECT_NE(replies.find("POST /p - - 5"), std::string::npos) << replies;
}

TEST_F(ListenerTest, BodiesInChunks) {
  const std::string reply =
      ask("POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: "
          "close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_NE(reply.find("POST /p - - 5"), std::string::npos) << reply;
}

TEST_F(ListenerTest, HeadAndMethodsWithoutBody) {
  const std::string reply = ask("HEAD /h HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  expect_status(reply, 200);
  EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
  // A body behind a GET can't be told from the next request: the connection ends.
  const std::string smuggled = ask(get("/g", "Content-Length: 30\r\n") + get("/evil"));
  EXPECT_EQ(smuggled.find("evil"), std::string::npos) << smuggled;
}

TEST_F(ListenerTest, BrokenHeads) {
  const std::pair<const char*, int> cases[] = {
      {"\x16\x03\x01\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"BREW /pot HTTP/1.1\r\n\r\n", 501},
      {"CONNECT x:1 HTTP/1.1\r\n\r\n", 501},
      {"GET / HTTP/3.0\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nspace before : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"GET /?a?b HTTP/1.1\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) expect_status(ask(bytes), status);
}

TEST_F(ListenerTest, LongHeads) {
  std::string fields;
  for (int i = 0; i < 101; ++i) fields += "A: b\r\n";
  expect_status(ask(get("/", fields)), 431);
  expect_status(ask("GET / HTTP/1.1\r\nA: " + std::string(70'000, 'a')), 431);
  expect_status(ask(get("/" + std::string(9000, 'a'))), 414);
  expect_status(ask(get("/", "Range: bytes=" + std::string(4000, '-') + "\r\nConnection: close\r\n")),
                200);  // not looked at
}

TEST_F(ListenerTest, LongBodies) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  start(limits);
  expect_status(ask(post(std::string(1000, 'x'), "Connection: close\r\n")), 200);
  expect_status(ask(post(std::string(1001, 'x'))), 413);
  expect_status(
      ask("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(2048, 'x') + "\r\n0\r\n\r\n"),
      413);
  expect_status(ask("POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n"), 413);
  limits.max_bodies_bytes = 500;
  start(limits);
  expect_status(ask(post(std::string(1000, 'x'))), 503);
}

TEST_F(ListenerTest, RefusedBeforeTheBody) {
  Client client(port_);
  client.send("POST /p HTTP/1.1\r\nRefuse-Me: 1\r\nContent-Length: 1000000\r\n\r\n");
  expect_status(client.receive(), 403);
  EXPECT_TRUE(client.closed());
}

TEST_F(ListenerTest, SlowHeads) {
  HttpLimits limits;
  limits.header_ms = 50;
  start(limits);
  expect_status(ask("GET / HT"), 408);
  limits.idle_ms = 50;
  start(limits);
  EXPECT_EQ(ask(""), "");  // closed without a word
  limits.body_ms = 50;
  start(limits);
  expect_status(ask("POST /p HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), 400);
}

TEST_F(ListenerTest, Streams) {
  application_.event.signal();
  const std::string chunked = ask(get("/stream", "Connection: close\r\n"));
  EXPECT_NE(chunked.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(chunked.find("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"), std::string::npos) << chunked;
  const std::string plain = ask("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(plain.ends_with("\r\n\r\nonetwo")) << plain;
}

TEST_F(ListenerTest, AClientThatLeavesIsNoticedAtOnce) {
  Client client(port_);
  client.send(get("/stream"));
  client.receive("two");
  client.leave();
  std::unique_lock lock(application_.mutex);
  ASSERT_TRUE(application_.changed.wait_for(lock, milliseconds(1000), [&] { return application_.waited.has_value(); }));
  EXPECT_EQ(application_.waited, HttpClient::Wait::gone);
}

TEST_F(ListenerTest, StoppingEndsStreamsAndIdleConnections) {
  Client streaming(port_), idle(port_);
  streaming.send(get("/stream"));
  streaming.receive("two");
  const auto before = std::chrono::steady_clock::now();
  listener_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(2000));
  EXPECT_EQ(application_.waited, HttpClient::Wait::stopping);
  idle.receive();
  EXPECT_TRUE(idle.closed());
}

TEST_F(ListenerTest, TooManyConnections) {
  HttpLimits limits;
  limits.max_connections = 1;
  start(limits);
  Client first(port_);
  first.send(get("/a"));
  first.receive("GET /a");
  expect_status(ask(get("/b")), 503);
}

TEST_F(ListenerTest, APortIsTakenOnce) {
  SocketAddress address = resolve_address("127.0.0.1", port_);
  EXPECT_THROW(listen_on(address, "127.0.0.1"), Error);
  EXPECT_THROW(resolve_address("no such host.invalid", 1), Error);
  EXPECT_TRUE(resolve_address("127.0.0.1", 1).loopback);
  EXPECT_FALSE(resolve_address("0.0.0.0", 1).loopback);
}

TEST(HttpHead, Cleaned) {
  std::string head =
      "POST /x HTTP/1.1\r\nHost: h\r\nrange: bytes=0-1\r\nAccept-Encoding: br\r\nContent-Type: a/b\r\n\r\n";
  const HeadCheck check = clean_head(head);
  EXPECT_EQ(check.status, 0);
  EXPECT_TRUE(check.keep_alive);
  EXPECT_EQ(head, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(find_header(check.fields, "content-type"), "a/b");
  std::string old = "GET / HTTP/1.0\r\n\r\n";
  EXPECT_FALSE(clean_head(old).keep_alive);
}

int guard_status(const GuardOptions& options, const std::string& method, const HttpHeaders& headers,
                 bool needs_key = true) {
  HttpRequest request;
  request.method = method;
  request.headers = headers;
  try {
    Guard(options).check(request, needs_key);
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

TEST(Guard, NamesOfThisMachine) {
  for (const char* good : {"localhost", "LocalHost:8000", "a.localhost", "127.0.0.1", "127.1.2.3:80", "[::1]:8000",
                           "[::1]", "localhost."}) {
    EXPECT_TRUE(names_loopback(good)) << good;
  }
  for (const char* bad : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "128.0.0.1",
                          "127.0.0", "0.0.0.0", "[::2]", ".localhost", "127.0.0.1x", "notlocalhost"}) {
    EXPECT_FALSE(names_loopback(bad)) << bad;
  }
}

TEST(Guard, HostOnLoopback) {
  EXPECT_EQ(guard_status({}, "GET", {{"Host", "localhost:8000"}}), 200);
  EXPECT_EQ(guard_status({}, "GET", {}), 200);
  EXPECT_EQ(guard_status({}, "GET", {{"Host", "evil.example"}}), 403);
  EXPECT_EQ(guard_status({.loopback = false}, "GET", {{"Host", "evil.example"}}), 200);
}

TEST(Guard, OriginOfWhatChangesState) {
  const auto post_from = [](const char* origin, const GuardOptions& options = {}) {
    return guard_status(options, "POST", {{"Host", "localhost:8000"}, {"Origin", origin}});
  };
  EXPECT_EQ(post_from("http://localhost:3000"), 200);
  EXPECT_EQ(post_from("https://evil.example"), 403);
  EXPECT_EQ(post_from("null"), 403);
  EXPECT_EQ(post_from(""), 403);
  EXPECT_EQ(post_from("http://localhost.evil.example"), 403);
  EXPECT_EQ(post_from("https://chat.example", {.cors_origins = {"https://chat.example"}}), 200);
  EXPECT_EQ(guard_status({}, "GET", {{"Origin", "https://evil.example"}}), 200);
  EXPECT_EQ(guard_status({.loopback = false}, "POST", {{"Host", "box:80"}, {"Origin", "http://box:80"}}), 200);
  EXPECT_EQ(guard_status({.loopback = false}, "POST", {{"Host", "box:80"}, {"Origin", "http://other:80"}}), 403);
}

TEST(Guard, Keys) {
  const GuardOptions options = {.api_keys = {"secret", "other"}};
  EXPECT_EQ(guard_status(options, "POST", {}), 401);
  EXPECT_EQ(guard_status(options, "POST", {{"Authorization", "Bearer secret"}}), 200);
  EXPECT_EQ(guard_status(options, "POST", {{"authorization", "bearer other"}}), 200);
  EXPECT_EQ(guard_status(options, "POST", {{"X-Api-Key", "secret"}}), 200);
  for (const char* bad : {"", "secre", "secrets", "secretsecret", "Secret", " secret"}) {
    EXPECT_EQ(guard_status(options, "POST", {{"x-api-key", bad}}), 401) << bad;
  }
  EXPECT_EQ(guard_status(options, "POST", {{"Authorization", "Basic secret"}}), 401);
  EXPECT_EQ(guard_status(options, "GET", {}, false), 200);
}

TEST(Guard, PagesThatMayRead) {
  const Guard guard(GuardOptions{});
  HttpRequest request;
  request.headers = {{"Host", "localhost:1"}, {"Origin", "http://localhost:2"}};
  EXPECT_EQ(find_header(guard.cors_headers(request), "Access-Control-Allow-Origin"), "http://localhost:2");
  request.headers = {{"Host", "localhost:1"}, {"Origin", "https://evil.example"}};
  EXPECT_TRUE(guard.cors_headers(request).empty());
}

}  // namespace
}  // namespace onebit
