// poll() around every call, so that nothing waits longer than its limit or past the server's end.
#include "server/http_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "server/http_head.h"

namespace onebit {

namespace {

using std::chrono::milliseconds;

constexpr size_t kReadBytes = 64 << 10;
constexpr int kStoppingWriteMs = 1000;
constexpr int kFinishMs = 2000;
constexpr size_t kFinishBytes = 64 << 20;
constexpr short kGone = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;

int ms_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

}  // namespace

HttpStream::HttpStream(Fd socket, int stop_fd, const HttpLimits& limits)
    : socket_(std::move(socket)), stop_fd_(stop_fd), limits_(limits) {}

bool HttpStream::stopping() const {
  pollfd fd{stop_fd_, POLLIN, 0};
  return ::poll(&fd, 1, 0) > 0;
}

bool HttpStream::closed_by_client() const {
  pollfd fd{socket_.get(), POLLRDHUP, 0};
  return ::poll(&fd, 1, 0) > 0 && (fd.revents & kGone) != 0;
}

/// Receives some bytes behind buffer_. False: closed, timed out or stopping.
bool HttpStream::fill(Time deadline) {
  if (taken_ > 0) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  while (true) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const int left = ms_until(deadline);
    const int n = ::poll(fds, 2, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || fds[1].revents != 0) return false;
    const size_t before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    const ssize_t got = ::recv(socket_.get(), buffer_.data() + before, kReadBytes, 0);
    const bool again = got < 0 && (errno == EAGAIN || errno == EINTR);
    buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (!again) return got > 0;
  }
}

HttpStream::Head HttpStream::read_head(std::string& head) {
  Time deadline = Clock::now() + milliseconds(limits_.idle_ms);
  bool begun = false;
  while (true) {
    // Line ends in front of a request line are left over from the request before.
    while (taken_ < buffer_.size() && !begun && (buffer_[taken_] == '\r' || buffer_[taken_] == '\n')) ++taken_;
    const std::string_view bytes = std::string_view(buffer_).substr(taken_);
    if (!bytes.empty() && !begun) {
      begun = true;
      deadline = Clock::now() + milliseconds(limits_.header_ms);
    }
    const size_t size = head_size(bytes);
    if (size > limits_.max_header_bytes || (size == 0 && bytes.size() > limits_.max_header_bytes))
      return Head::too_long;
    if (size > 0) {
      head = bytes.substr(0, size);
      taken_ += size;
      return Head::ok;
    }
    if (!fill(deadline)) return begun && ms_until(deadline) == 0 ? Head::timeout : Head::closed;
  }
}

void HttpStream::begin_body(size_t max_bytes) {
  body_left_ = max_bytes;
  body_deadline_ = Clock::now() + milliseconds(limits_.body_ms);
}

long HttpStream::read(char* to, size_t size) {
  if (body_left_ == 0) return -1;
  if (taken_ == buffer_.size() && !fill(body_deadline_)) return 0;
  const size_t n = std::min({size, buffer_.size() - taken_, body_left_});
  std::copy_n(buffer_.data() + taken_, n, to);
  taken_ += n;
  body_left_ -= n;
  return static_cast<long>(n);
}

bool HttpStream::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || errno != EAGAIN) return false;
    pollfd fd{socket_.get(), POLLOUT, 0};
    const int limit = stopping() ? kStoppingWriteMs : limits_.write_ms;
    // In slices, so that the server's end is noticed.
    bool ready = false;
    for (int waited = 0; waited < limit && !ready; waited += kStoppingWriteMs) {
      ready = ::poll(&fd, 1, std::min(kStoppingWriteMs, limit)) > 0;
      if (!ready && stopping()) return false;
    }
    if (!ready || (fd.revents & POLLOUT) == 0) return false;
  }
  return true;
}

HttpClient::Wait HttpStream::wait(int fd, int timeout_ms) const {
  while (true) {
    pollfd fds[3] = {{fd, POLLIN, 0}, {socket_.get(), POLLRDHUP, 0}, {stop_fd_, POLLIN, 0}};
    const int n = ::poll(fds, 3, timeout_ms);
    if (n < 0 && errno == EINTR) continue;
    if (fds[1].revents & kGone) return Wait::gone;
    if (fds[2].revents != 0) return Wait::stopping;
    return n > 0 ? Wait::ready : Wait::timeout;
  }
}

void HttpStream::finish() {
  ::shutdown(socket_.get(), SHUT_WR);
  const Time deadline = Clock::now() + milliseconds(kFinishMs);
  for (size_t dropped = 0; dropped < kFinishBytes; dropped += buffer_.size()) {
    buffer_.clear();
    taken_ = 0;
    if (!fill(deadline)) break;
  }
  socket_.reset();
}

}  // namespace onebit
