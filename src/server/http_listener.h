// Accepts connections and gives each a thread, so that long replies never keep a short one waiting.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http.h"
#include "server/socket.h"

namespace onebit {

class HttpListener {
 public:
  /// Starts to accept on `socket` (from listen_on). `application` must outlive the listener.
  HttpListener(Fd socket, HttpApplication& application, const HttpLimits& limits);
  /// Stops and waits for every connection.
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;

  /// No new connections or requests; replies under way go on. Returns at once.
  void stop();

 private:
  using Threads = std::list<std::thread>;
  void accept_all();
  bool accept_one();
  void serve(Fd socket, Threads::iterator self);
  void join_finished();

  Fd socket_;
  HttpApplication& application_;
  HttpLimits limits_;
  Event stop_;
  std::atomic<size_t> bodies_bytes_ = 0;
  std::mutex mutex_;
  Threads threads_;   // connections, guarded by mutex_
  Threads finished_;  // to be joined, guarded by mutex_
  std::thread accepting_;
};

}  // namespace onebit
