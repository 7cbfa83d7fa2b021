// Drafts for free: where the last few tokens of an answer occurred before in its prompt or in itself, what followed
// then may follow again. Good for quoting, code and lists; costs a hash table of positions.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace onebit {

class Lookup {
 public:
  /// What followed the latest earlier occurrence of the end of `history`, at most `n` tokens; empty when its last
  /// kLeast tokens are new. `history` may only have grown since the last call.
  std::span<const int32_t> propose(std::span<const int32_t> history, int64_t n);

 private:
  static constexpr int64_t kLeast = 4;  // tokens that must agree

  std::unordered_map<uint64_t, int64_t> after_;  // hash of kLeast tokens -> position behind their latest occurrence
  int64_t n_indexed_ = 0;                        // ends of history below this are in after_
  std::vector<int32_t> proposal_;
};

}  // namespace onebit
