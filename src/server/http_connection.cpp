// The only file that knows the HTTP library: it parses heads and bodies and writes replies, one Peer per connection.
#include "server/http_connection.h"

#include <httplib.h>

#include "server/http_head.h"
#include "server/http_stream.h"

namespace onebit {

namespace {

/// The library's view of the connection.
class LibraryStream : public httplib::Stream {
 public:
  LibraryStream(HttpStream& stream, std::string head) : stream_(stream), head_(std::move(head)) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !stream_.closed_by_client(); }
  ssize_t read(char* to, size_t size) override {
    if (taken_ == head_.size()) return stream_.read(to, size);
    const size_t n = std::min(size, head_.size() - taken_);
    std::copy_n(head_.data() + taken_, n, to);
    taken_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    return stream_.write({from, size}) ? static_cast<ssize_t>(size) : -1;
  }
  // Nothing here depends on where a request comes from.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return 0; }

 private:
  HttpStream& stream_;
  std::string head_;
  size_t taken_ = 0;
};

class LibrarySink : public HttpSink {
 public:
  explicit LibrarySink(httplib::DataSink& sink) : sink_(sink) {}
  bool write(std::string_view bytes) override {
    // Nothing written means the end to the library.
    ok_ = ok_ && (bytes.empty() || sink_.write(bytes.data(), bytes.size()));
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  httplib::DataSink& sink_;
  bool ok_ = true;
};

/// Room for one body out of what all connections may hold together.
class BodyRoom {
 public:
  BodyRoom(std::atomic<size_t>& used, size_t limit) : used_(used), limit_(limit) {}
  ~BodyRoom() { used_ -= mine_; }
  BodyRoom(const BodyRoom&) = delete;
  bool take(size_t n) {
    mine_ += n;
    return (used_ += n) <= limit_;
  }

 private:
  std::atomic<size_t>& used_;
  size_t limit_, mine_ = 0;
};

const char* reason_of(int status) {
  switch (status) {
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Bad Request";
  }
}

/// A reply without the library, for requests that it can't or needn't read.
std::string plain_reply(const HttpReply& reply) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " " + reason_of(reply.status) + "\r\n";
  text += "Content-Type: " + reply.content_type + "\r\nContent-Length: " + std::to_string(reply.body.size()) + "\r\n";
  for (const auto& [name, value] : reply.headers) text += name + ": " + value + "\r\n";
  return text + "Connection: close\r\n\r\n" + reply.body;
}

class Peer : private httplib::Server {
 public:
  Peer(Fd socket, int stop_fd, HttpApplication& application, const HttpLimits& limits, std::atomic<size_t>& bodies)
      : stream_(std::move(socket), stop_fd, limits), application_(application), limits_(limits), bodies_(bodies) {
    svr_sock_ = 0;  // the library takes an invalid socket for the sign to end
    keep_alive_timeout_sec_ = limits.idle_ms / 1000;
    keep_alive_max_count_ = 100;
    // The path is matched by the application; here it is always "/" (see serve_one).
    Get("/", [this](const httplib::Request&, httplib::Response& to) { answer(to); });
    Options("/", [this](const httplib::Request&, httplib::Response& to) { answer(to); });
    const HandlerWithContentReader with_body = [this](const httplib::Request&, httplib::Response& to,
                                                      const httplib::ContentReader& read) { answer_body(to, read); };
    Post("/", with_body);
    Put("/", with_body);
    Patch("/", with_body);
    Delete("/", with_body);
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& to) {
      return refused(to) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
    });
    set_expect_100_continue_handler(
        [this](const httplib::Request&, httplib::Response& to) { return refused(to) ? to.status : 100; });
    set_error_handler([this](const httplib::Request&, httplib::Response& to) {
      if (to.body.empty()) give(application_.broken(to.status, "the request could not be read"), to);
    });
  }

  void serve() {
    while (!stream_.stopping() && serve_one()) continue;
    stream_.finish();
  }

 private:
  /// False: the connection ends.
  bool serve_one() {
    std::string head;
    const HttpStream::Head result = stream_.read_head(head);
    if (result == HttpStream::Head::closed) return false;
    HeadCheck check;
    if (result == HttpStream::Head::ok) check = clean_head(head);
    if (result == HttpStream::Head::timeout) check = refused_head(408, "the headers did not arrive in time");
    if (result == HttpStream::Head::too_long) check = refused_head(431, "the headers are too long");
    if (check.status != 0) {
      stream_.write(plain_reply(application_.broken(check.status, check.why)));
      return false;
    }
    fields_ = std::move(check.fields);
    close_ = !check.keep_alive || check.unread_body;
    LibraryStream library_stream(stream_, std::move(head));
    // Chunks have a frame of their own.
    stream_.begin_body(limits_.max_body_bytes + limits_.max_body_bytes / 4 + (1 << 20));
    bool closed = false;
    parsed_ = false;
    const bool ok = process_request(library_stream, close_, closed, [this](httplib::Request& from) { take(from); });
    // What the library couldn't parse may have a body, which would pass for the next request.
    return ok && parsed_ && !close_;
  }

  void take(httplib::Request& from) {
    parsed_ = true;
    request_ = HttpRequest();
    request_.method = from.method == "HEAD" ? "GET" : from.method;
    request_.path = std::exchange(from.path, "/");
    request_.query.assign(from.params.begin(), from.params.end());
    request_.headers = std::move(fields_);
    request_.client = &stream_;
    version_ = from.version;
  }

  bool refused(httplib::Response& to) {
    auto refusal = application_.refuse(request_);
    const auto length = request_.header("Content-Length");
    if (!refusal && length && std::stoull(*length) > limits_.max_body_bytes) refusal = too_large();
    if (!refusal) return false;
    refusal->close = true;  // the body isn't read
    give(std::move(*refusal), to);
    return true;
  }

  HttpReply too_large() {
    return application_.broken(413,
                               "the request body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes");
  }

  void answer(httplib::Response& to) { give(application_.handle(request_), to); }

  void answer_body(httplib::Response& to, const httplib::ContentReader& read) {
    BodyRoom room(bodies_, limits_.max_bodies_bytes);
    int status = 0;
    const bool complete = read([&](const char* data, size_t n) {
      if (request_.body.size() + n > limits_.max_body_bytes) status = 413;
      if (status == 0 && !room.take(n)) status = 503;
      if (status == 0) request_.body.append(data, n);
      return status == 0;
    });
    if (complete) {
      answer(to);
    } else {
      if (status == 0) status = to.status > 0 ? to.status : 400;
      HttpReply reply = status == 413 ? too_large() : application_.broken(status, "the request body could not be read");
      reply.close = true;
      give(std::move(reply), to);
    }
    request_ = HttpRequest();
  }

  void give(HttpReply reply, httplib::Response& to) {
    to.status = reply.status;
    if (reply.close) {
      close_ = true;
      to.set_header("Connection", "close");
    }
    for (const auto& [name, value] : reply.headers) to.set_header(name, value);
    if (!reply.stream) {
      to.set_content(reply.body, reply.content_type);
      return;
    }
    auto provider = [run = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
      LibrarySink library_sink(sink);
      run(library_sink);
      if (library_sink.ok()) sink.done();
      return library_sink.ok();
    };
    if (version_ == "HTTP/1.0") {  // no chunks: the end of the connection is the end of the reply
      close_ = true;
      to.set_content_provider(reply.content_type, std::move(provider));
    } else {
      to.set_chunked_content_provider(reply.content_type, std::move(provider));
    }
  }

  HttpStream stream_;
  HttpApplication& application_;
  const HttpLimits& limits_;
  std::atomic<size_t>& bodies_;
  HttpRequest request_;
  HttpHeaders fields_;  // of the request being read; the library decodes values, which would let line ends in
  std::string version_;
  bool close_ = false, parsed_ = false;
};

}  // namespace

void serve_connection(Fd socket, int stop_fd, HttpApplication& application, const HttpLimits& limits,
                      std::atomic<size_t>& bodies_bytes) {
  try {
    Peer(std::move(socket), stop_fd, application, limits, bodies_bytes).serve();
  } catch (const std::exception&) {
    // Out of memory while reading or replying: the connection is closed, the others go on.
  }
}

void refuse_connection(Fd socket, HttpApplication& application) {
  const std::string reply = plain_reply(application.broken(503, "too many connections"));
  [[maybe_unused]] const ssize_t n = ::send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace onebit
