// How a converted model is called in its file: a title of the folder's name, and its size in words, as llama.cpp's
// converter makes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace onebit {

/// "qwen3-8b-instruct" -> "Qwen3 8b Instruct": words of lower-case letters begin with a capital, others stay.
std::string title_of(std::string_view folder);

/// Elements of a model: all together, those outside of experts, those of one expert (a shared one is not counted here).
struct ParameterCount {
  int64_t total = 0, shared = 0, of_one_expert = 0, n_expert = 0;
};

/// "181K", "4.0B"; "8x160K" with experts: their number, and what one of them has together with the rest.
std::string size_label(const ParameterCount& count);

}  // namespace onebit
