// Tuned settings as data (config/recipes.json): what matches a model, a drafter and a device adds flags, unless the
// user gave them. In: JSON and the facts of one start. Out: the flags that were added.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace onebit {

/// What a recipe can match.
struct RecipeFacts {
  std::string device, architecture;
  std::string drafter = "none";  // "none", "dflash", "dflash2"
  bool moe = false, rotated = false;
};

struct Recipe {
  std::string id, why, measured, source;
  std::vector<std::string> devices, architectures, drafters;  // empty: any
  std::optional<bool> moe, rotated;
  std::vector<std::string> args;  // a flag with its values, another flag ...

  bool matches(const RecipeFacts& facts) const;
};

struct AppliedRecipe {
  std::string id;
  std::vector<std::string> added;
};

/// The set that is compiled in.
extern const char* const kBuiltInRecipes;

/// Reads a set: {"recipes": [{"id", "match": {"device": [], "architecture": [], "drafter": [], "moe", "hadamard_q4_0"},
/// "args": [], "why", "measured", "source"}]}. Throws Error(refused) naming the recipe for an unknown key, a wrong
/// type, an id given twice, no args or no measurement, and flags that `1bit serve` does not have. `name` stands for the
/// set.
std::vector<Recipe> parse_recipes(std::string_view json, const std::string& name);

/// Applies all recipes that match, in order; a flag that was typed, or that an earlier recipe added, stays, and one
/// that the command doesn't have is left out.
std::vector<AppliedRecipe> apply_recipes(const std::vector<Recipe>& recipes, const RecipeFacts& facts,
                                         Options& options);

}  // namespace onebit
