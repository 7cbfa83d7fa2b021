#include "cli/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace onebit {
namespace {

// A handler can reach nothing but objects of static storage.
volatile sig_atomic_t stop_requested = 0;
int wake_pipe[2] = {-1, -1};

void on_signal(int signal_number) {
  if (stop_requested) {
    ::signal(signal_number, SIG_DFL);
    ::raise(signal_number);
    return;
  }
  stop_requested = 1;
  const char byte = 0;
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = ::write(wake_pipe[1], &byte, 1);
  errno = saved;
}

void install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);  // no SA_RESTART: a blocked read of the terminal returns
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  CHECK(wake_pipe[0] < 0);
  if (::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) fail(ErrorKind::runtime, "can't make a pipe for signals");
  stop_requested = 0;
  install(on_signal);
}

StopSignals::~StopSignals() {
  install(SIG_DFL);
  for (int& end : wake_pipe) {
    ::close(end);
    end = -1;
  }
}

bool StopSignals::requested() const { return stop_requested != 0; }

void StopSignals::reset() {
  char byte;
  while (::read(wake_pipe[0], &byte, 1) == 1) {
  }
  stop_requested = 0;
}

void StopSignals::wait() {
  pollfd ready = {wake_pipe[0], POLLIN, 0};
  while (::poll(&ready, 1, -1) < 0 && errno == EINTR) {
  }
}

void StopSignals::wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(wake_pipe[1], &byte, 1);
}

void StopSignals::check() const {
  if (requested()) fail(ErrorKind::runtime, "interrupted");
}

}  // namespace onebit
