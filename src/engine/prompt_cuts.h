// Where reading a prompt pauses so that the state there can be kept. The places depend only on what comes before them,
// so a prompt that starts from a kept state is read in the same pieces as one that is read from its beginning, and
// gives the same numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace onebit {

/// Shortest piece that ends with a turn, since every piece is a pass over the model.
inline constexpr int64_t kShortestPiece = 4;
/// Tokens that reading again is worth the room of a state.
inline constexpr int64_t kWorthKeeping = 128;

struct PromptCut {
  int64_t pos = 0;    // tokens before it
  bool turn = false;  // a turn ends there
  bool keep = false;  // whether the state is worth keeping (the cut is made in any case)
};

/// The cuts of a prompt, ascending, before its last token: the end of every turn (a token of `turn_ids`) at least
/// kShortestPiece after the last such cut, and every multiple of `every`. Kept are the first turn's (system and tools),
/// the last two (before and after the last message), the multiples, and of the other turns' those kWorthKeeping tokens
/// behind the last kept one.
std::vector<PromptCut> prompt_cuts(std::span<const int32_t> prompt, std::span<const int32_t> turn_ids, int64_t every);

}  // namespace onebit
