#include "cli/recipes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace onebit {
namespace {

using nlohmann::json;

/// A flag begins with '-' that no digit or point follows.
bool is_flag(const std::string& token) {
  return token.size() > 1 && token[0] == '-' && std::string_view("0123456789.").find(token[1]) == std::string::npos;
}

/// One recipe, for messages about it.
struct Reader {
  const std::string& where;

  void only(const json& object, std::initializer_list<std::string_view> known) const {
    if (!object.is_object()) refuse("{}: expected an object, found {}", where, object.type_name());
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) refuse("{}: unknown key \"{}\"", where, key);
    }
  }
  std::string text(const json& object, const char* key, bool required) const {
    const auto it = object.find(key);
    if (it == object.end() && !required) return "";
    if (it == object.end() || !it->is_string() || it->get_ref<const std::string&>().empty()) {
      refuse("{}: \"{}\": expected a text that is not empty", where, key);
    }
    return it->get<std::string>();
  }
  std::vector<std::string> texts(const json& object, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) return {};
    const bool ok = it->is_array() && !it->empty() &&
                    std::all_of(it->begin(), it->end(), [](const json& v) { return v.is_string(); });
    if (!ok) refuse("{}: \"{}\": expected a list of texts", where, key);
    return it->get<std::vector<std::string>>();
  }
  std::optional<bool> flag(const json& object, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) return std::nullopt;
    if (!it->is_boolean()) refuse("{}: \"{}\": expected true or false, found {}", where, key, it->type_name());
    return it->get<bool>();
  }
};

void check_args(const Recipe& recipe, const std::string& where) {
  if (recipe.args.empty()) refuse("{}: \"args\" is missing: a recipe adds something", where);
  if (!is_flag(recipe.args.front())) refuse("{}: \"args\" begins with \"{}\", not with a flag", where, recipe.args[0]);
  for (const std::string& token : recipe.args) {
    if (is_flag(token) && !flag_name(token, kPlan)) refuse("{}: unknown flag {}", where, token);
  }
  Options scratch;
  scratch.command = kPlan;
  try {
    apply_arguments(scratch, recipe.args);
  } catch (const Error& error) {
    refuse("{}: \"args\": {}", where, error.what());
  }
}

Recipe parse_recipe(const json& object, const std::string& name, size_t index) {
  const auto id = object.is_object() ? object.find("id") : object.end();
  const bool has_id = object.is_object() && id != object.end() && id->is_string();
  const std::string where = has_id ? fmt::format("{}: recipe \"{}\"", name, id->get_ref<const std::string&>())
                                   : fmt::format("{}: recipe {}", name, index + 1);
  const Reader in{where};
  in.only(object, {"id", "match", "args", "why", "measured", "source"});
  Recipe recipe;
  recipe.id = in.text(object, "id", true);
  recipe.why = in.text(object, "why", false);
  recipe.measured = in.text(object, "measured", true);
  recipe.source = in.text(object, "source", false);
  recipe.args = in.texts(object, "args");
  if (const auto match = object.find("match"); match != object.end()) {
    in.only(*match, {"device", "architecture", "drafter", "moe", "hadamard_q4_0"});
    recipe.devices = in.texts(*match, "device");
    recipe.architectures = in.texts(*match, "architecture");
    recipe.drafters = in.texts(*match, "drafter");
    recipe.moe = in.flag(*match, "moe");
    recipe.rotated = in.flag(*match, "hadamard_q4_0");
  }
  check_args(recipe, where);
  return recipe;
}

bool among(const std::vector<std::string>& wanted, const std::string& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

}  // namespace

bool Recipe::matches(const RecipeFacts& facts) const {
  return among(devices, facts.device) && among(architectures, facts.architecture) && among(drafters, facts.drafter) &&
         moe.value_or(facts.moe) == facts.moe && rotated.value_or(facts.rotated) == facts.rotated;
}

std::vector<Recipe> parse_recipes(std::string_view text, const std::string& name) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) refuse("{}: not a JSON document", name);
  Reader{name}.only(document, {"recipes"});
  const auto list = document.find("recipes");
  if (list == document.end() || !list->is_array()) refuse("{}: expected a list \"recipes\"", name);
  std::vector<Recipe> recipes;
  for (size_t i = 0; i < list->size(); ++i) {
    Recipe recipe = parse_recipe((*list)[i], name, i);
    for (const Recipe& other : recipes) {
      if (other.id == recipe.id) refuse("{}: recipe \"{}\" is given twice", name, recipe.id);
    }
    recipes.push_back(std::move(recipe));
  }
  return recipes;
}

std::vector<AppliedRecipe> apply_recipes(const std::vector<Recipe>& recipes, const RecipeFacts& facts,
                                         Options& options) {
  std::vector<AppliedRecipe> applied;
  for (const Recipe& recipe : recipes) {
    if (!recipe.matches(facts)) continue;
    std::vector<std::string> added;
    for (size_t i = 0; i < recipe.args.size();) {
      size_t end = i + 1;
      while (end < recipe.args.size() && !is_flag(recipe.args[end])) ++end;
      const std::optional<std::string> name = flag_name(recipe.args[i], options.command);
      if (name && !options.given.count(*name)) {
        added.insert(added.end(), recipe.args.begin() + static_cast<std::ptrdiff_t>(i),
                     recipe.args.begin() + static_cast<std::ptrdiff_t>(end));
      }
      i = end;
    }
    if (added.empty()) continue;
    apply_arguments(options, added);
    applied.push_back({recipe.id, std::move(added)});
  }
  return applied;
}

}  // namespace onebit
