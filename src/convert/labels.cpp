#include "convert/labels.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>

namespace onebit {
namespace {

bool is_lower_word(std::string_view word) {
  bool has_letter = false;
  for (const unsigned char c : word) {
    if (std::isupper(c)) return false;
    has_letter = has_letter || std::islower(c);
  }
  return has_letter;
}

/// "8b", "v1.5": sizes and versions stay as they are.
bool is_number(std::string_view word) {
  if (std::isdigit(static_cast<unsigned char>(word[0]))) return true;
  if (word[0] != 'v' || word.size() < 2) return false;
  for (size_t i = 1; i < word.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(word[i])) != 0;
    const bool point = word[i] == '.' && i > 1 && word[i - 1] != '.' && i + 1 < word.size();
    if (!digit && !point) return false;
  }
  return true;
}

/// Two digits at least: "1.5B", "160K".
std::string rounded(double count) {
  const std::pair<double, const char*> units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}};
  double scaled = count / 1e3;
  const char* suffix = "K";
  for (const auto& [size, name] : units) {
    if (count <= size) continue;
    scaled = count / size;
    suffix = name;
    break;
  }
  const double whole = std::nearbyint(scaled);
  const int digits = whole >= 10 ? 0 : whole >= 1 ? 1 : 2;
  return fmt::format("{:.{}f}{}", scaled, digits, suffix);
}

}  // namespace

std::string title_of(std::string_view folder) {
  std::string title;
  for (size_t at = 0; at < folder.size();) {
    const size_t end = std::min(folder.find_first_of("- \t", at), folder.size());
    std::string word(folder.substr(at, end - at));
    at = end + 1;
    if (word.empty()) continue;
    if (is_lower_word(word) && !is_number(word)) {
      bool inside = false;  // of a run of letters
      for (char& c : word) {
        const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
        if (letter && !inside) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        inside = letter;
      }
    }
    title += (title.empty() ? "" : " ") + word;
  }
  return title;
}

std::string size_label(const ParameterCount& count) {
  if (count.n_expert == 0) return rounded(static_cast<double>(count.total));
  return fmt::format("{}x{}", count.n_expert, rounded(static_cast<double>(count.shared + count.of_one_expert)));
}

}  // namespace onebit
