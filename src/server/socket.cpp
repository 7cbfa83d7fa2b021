// The system calls behind sockets and events.
#include "server/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace onebit {

namespace {

constexpr int kBacklog = 512;

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Event::Event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) fail(ErrorKind::runtime, "cannot make an event: {}", std::strerror(errno));
}

void Event::signal() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);  // full: it is signalled already
}

void Event::clear() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
}

uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

SocketAddress resolve_address(const std::string& host, int port) {
  if (port < 0 || port > 65535) fail(ErrorKind::usage, "--port: expected 0 to 65535, found {}", port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    fail(ErrorKind::usage, "--host: cannot resolve '{}': {}; give an address of this machine", host,
         ::gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  address.loopback = is_loopback(found->ai_addr);
  return address;
}

Fd listen_on(SocketAddress& address, const std::string& host) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  auto* to = reinterpret_cast<sockaddr*>(&address.storage);
  // Not SO_REUSEPORT: a second server on the same port must fail instead of taking half of the connections.
  const bool ok = fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                  ::bind(fd.get(), to, address.size) == 0 && ::listen(fd.get(), kBacklog) == 0 &&
                  ::getsockname(fd.get(), to, &address.size) == 0;
  if (!ok) {
    fail(ErrorKind::runtime, "cannot listen on {}:{}: {}; choose another --port or --host", host, address.port(),
         std::strerror(errno));
  }
  return fd;
}

}  // namespace onebit
