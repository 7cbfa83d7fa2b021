// The bytes of one connection with their time limits: heads, bodies, replies, and whether the client is still there.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "server/http.h"
#include "server/socket.h"

namespace onebit {

class HttpStream : public HttpClient {
 public:
  /// `socket` doesn't block. A readable `stop_fd` ends all reading and shortens writing.
  HttpStream(Fd socket, int stop_fd, const HttpLimits& limits);

  enum class Head { ok, closed, timeout, too_long };
  /// Waits for a request and takes its head off the stream.
  Head read_head(std::string& head);

  /// Allows `max_bytes` until the next head, in body_ms.
  void begin_body(size_t max_bytes);
  /// At most `size` bytes of the body; 0 or less: no more can be had.
  long read(char* to, size_t size);
  bool write(std::string_view bytes);
  bool closed_by_client() const;
  bool stopping() const;
  Wait wait(int fd, int timeout_ms) const override;

  /// Ends the connection so that the client still gets the last reply: what it is sending is read for a moment and
  /// dropped.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  bool fill(Time deadline);

  Fd socket_;
  int stop_fd_;
  HttpLimits limits_;
  std::string buffer_;  // received
  size_t taken_ = 0;    // of buffer_
  size_t body_left_ = 0;
  Time body_deadline_;
};

}  // namespace onebit
