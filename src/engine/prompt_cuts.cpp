#include "engine/prompt_cuts.h"

#include <algorithm>

namespace onebit {

std::vector<PromptCut> prompt_cuts(std::span<const int32_t> prompt, std::span<const int32_t> turn_ids, int64_t every) {
  std::vector<PromptCut> cuts;
  int64_t last_turn = 0;
  for (int64_t pos = 1; pos < static_cast<int64_t>(prompt.size()); ++pos) {
    const int32_t id = prompt[static_cast<size_t>(pos - 1)];
    const bool multiple = pos % every == 0;
    const bool turn =
        pos - last_turn >= kShortestPiece && std::find(turn_ids.begin(), turn_ids.end(), id) != turn_ids.end();
    if (!multiple && !turn) continue;
    cuts.push_back({pos, turn, multiple});
    if (turn) last_turn = pos;
  }
  int64_t last_kept = -kWorthKeeping;  // so that the first is
  for (PromptCut& cut : cuts) {
    cut.keep = cut.keep || cut.pos - last_kept >= kWorthKeeping;
    if (cut.keep) last_kept = cut.pos;
  }
  for (size_t i = cuts.size() - std::min<size_t>(cuts.size(), 2); i < cuts.size(); ++i) cuts[i].keep = true;
  return cuts;
}

}  // namespace onebit
