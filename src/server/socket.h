// File descriptors with an owner: sockets, and events that wake a poll().
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

namespace onebit {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// A flag that a poll() can wait on. signal() may be called from any thread and from a signal handler.
class Event {
 public:
  Event();
  void signal() const;
  void clear() const;
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

/// Where to listen, resolved.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool loopback = false;

  uint16_t port() const;
};

/// Throws Error(usage) when `host` is no name or address of this machine's.
SocketAddress resolve_address(const std::string& host, int port);

/// A listening socket, not blocking. Throws Error(runtime) when the address is in use or not allowed. On return
/// `address` carries the port that was given.
Fd listen_on(SocketAddress& address, const std::string& host);

}  // namespace onebit
