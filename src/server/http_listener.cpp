// The accept loop and the threads of the connections.
#include "server/http_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <exception>

#include "server/http_connection.h"

namespace onebit {

HttpListener::HttpListener(Fd socket, HttpApplication& application, const HttpLimits& limits)
    : socket_(std::move(socket)), application_(application), limits_(limits) {
  accepting_ = std::thread([this] { accept_all(); });
}

HttpListener::~HttpListener() {
  stop();
  accepting_.join();
  while (true) {
    join_finished();
    const std::lock_guard lock(mutex_);
    if (threads_.empty() && finished_.empty()) return;
    std::this_thread::yield();
  }
}

void HttpListener::stop() { stop_.signal(); }

void HttpListener::accept_all() {
  while (true) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
    ::poll(fds, 2, -1);
    if (fds[1].revents != 0) break;
    // Out of descriptors or memory: the connection waits in the backlog until others have ended.
    if (!accept_one()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    join_finished();
  }
  socket_.reset();  // connections in the backlog are refused
}

bool HttpListener::accept_one() {
  Fd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  const int on = 1;
  ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const std::lock_guard lock(mutex_);
  try {
    if (threads_.size() >= static_cast<size_t>(limits_.max_connections)) {
      refuse_connection(std::move(client), application_);
      return true;
    }
    Threads one(1);
    const auto self = one.begin();
    *self = std::thread([this, self, fd = std::move(client)]() mutable { serve(std::move(fd), self); });
    threads_.splice(threads_.end(), one);  // serve() waits for the lock before it looks for itself
  } catch (const std::exception&) {
    return false;  // no memory or threads: this connection is closed
  }
  return true;
}

void HttpListener::serve(Fd socket, Threads::iterator self) {
  serve_connection(std::move(socket), stop_.fd(), application_, limits_, bodies_bytes_);
  const std::lock_guard lock(mutex_);
  finished_.splice(finished_.end(), threads_, self);
}

void HttpListener::join_finished() {
  Threads finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  for (std::thread& thread : finished) thread.join();
}

}  // namespace onebit
