// Errors of the whole engine. Bad files, flags, requests and devices throw Error; a broken invariant of our own is a
// CHECK.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace onebit {

/// What went wrong, which decides the exit code of the program and the HTTP status of a reply.
enum class ErrorKind {
  runtime = 1,        ///< an operation failed while running (I/O, device)
  usage = 2,          ///< a flag or request is wrong
  refused = 3,        ///< an input file is bad or does not fit the others
  out_of_memory = 4,  ///< a pool does not fit the budget
};

/// The one exception type. The message says what was wanted, what was found, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

/// Throws Error(kind) with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

/// Refuses an input file (exit code 3).
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::refused, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace onebit

/// An invariant of our own code; no input from outside may reach a failing CHECK.
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) ::onebit::check_failed(#condition, __FILE__, __LINE__); \
  } while (0)
