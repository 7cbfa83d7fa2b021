// SIGINT and SIGTERM as a request to stop; a second signal ends the program at once.
#pragma once

namespace onebit {

/// While one exists, the signals only set a mark. At most one at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  bool requested() const;
  /// Forgets the mark, so that work may go on (a chat's next message).
  void reset();
  /// Blocks until a signal has come, or another thread has called wake().
  void wait();
  void wake();
  /// Throws Error(runtime, "interrupted") when a signal has come.
  void check() const;
};

}  // namespace onebit
