// What commands print: text and JSON to stdout, checked; notices and progress to stderr.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace onebit {

using Json = nlohmann::ordered_json;

/// Writes all of `text` to stdout. Throws Error(runtime), e.g. when the disk is full.
void print(std::string_view text);
/// Hands what was printed to the system.
void flush();
/// One document and a line end. Bytes that are not UTF-8 become U+FFFD.
void print_json(const Json& document);
/// One line on stderr: "1bit COMMAND: TEXT".
void notice(std::string_view command, std::string_view text);

/// "1.50 GiB": units are powers of 1024.
std::string bytes_text(int64_t bytes);

/// All of a file, or of stdin for "-", at most `limit` bytes. Throws Error(refused).
std::string read_input(const std::string& path, size_t limit = size_t{1} << 30);

/// A line on a terminal that shows how far a long task is; silent when stderr is not a terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  /// `share` of the work done, 0..1.
  void update(double share);
  /// Takes the line away.
  void clear();

 private:
  std::string what_;
  bool shown_ = false, terminal_;
  int percent_ = -1;
};

}  // namespace onebit
