// Runs an action as if the disk were full after a number of bytes.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/error.h"

namespace onebit::test {

/// The message of the Error that `action` throws in a process whose files may grow to `limit` bytes; empty when it ends
/// well. A child process runs the action, because the limit can't be taken back.
inline std::string error_on_full_disk(rlim_t limit, const std::function<void()>& action) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &size);
    std::string message;
    try {
      action();
    } catch (const Error& error) {
      message = error.what();
    }
    const ssize_t written = ::write(pipe_ends[1], message.data(), message.size());
    ::_exit(written == static_cast<ssize_t>(message.size()) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::string message;
  char buffer[512];
  for (ssize_t n; (n = ::read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
    message.append(buffer, static_cast<size_t>(n));
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? message : "the process died";
}

}  // namespace onebit::test
