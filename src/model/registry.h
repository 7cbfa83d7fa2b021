// Architecture string -> what it is and who builds its trunk. The one list of what the engine runs.
#pragma once

#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "plan/plan.h"

namespace onebit {

class Model;
struct Taps;

inline constexpr std::string_view kDrafterArchitecture = "dflash";

struct Architecture {
  std::string_view name;
  bool moe = false;
  bool hybrid = false;
  RopeStyle rope = RopeStyle::neox;
  HeadMap head_map = HeadMap::tiled;
  /// Appends the trunk, from token ids to the residual stream before the final norm, and returns it [tok, n_embd].
  Value (*trunk)(Plan& plan, Model& model, const Taps* taps) = nullptr;
};

const std::vector<Architecture>& architectures();
/// Throws Error(refused) naming the known ones.
const Architecture& find_architecture(const GgufFile& file);

}  // namespace onebit
