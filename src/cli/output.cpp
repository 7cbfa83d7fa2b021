#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace onebit {
namespace {

constexpr int kBarWidth = 30;

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail(ErrorKind::runtime, "stdout: can't write: {}", std::strerror(errno));
  }
}

void flush() {
  if (std::fflush(stdout) != 0) fail(ErrorKind::runtime, "stdout: can't write: {}", std::strerror(errno));
}

void print_json(const Json& document) { print(document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }

void notice(std::string_view command, std::string_view text) {
  const std::string line = fmt::format("1bit {}: {}\n", command, text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string bytes_text(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string read_input(const std::string& path, size_t limit) {
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file) refuse("{}: can't open: {}", path, std::strerror(errno));
  std::string text;
  char part[1 << 16];
  while (const size_t n = std::fread(part, 1, sizeof part, file.get())) {
    if (text.size() + n > limit) refuse("{}: expected at most {} bytes of text", path, limit);
    text.append(part, n);
  }
  if (std::ferror(file.get())) refuse("{}: can't read: {}", path, std::strerror(errno));
  return text;
}

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::update(double share) {
  const int percent = static_cast<int>(100 * std::clamp(share, 0.0, 1.0));
  if (!terminal_ || percent == percent_) return;
  percent_ = percent;
  shown_ = true;
  const int filled = percent * kBarWidth / 100;
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %3d%%", what_.c_str(), bar.c_str(), percent);
  std::fflush(stderr);
}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
  percent_ = -1;
}

}  // namespace onebit
