// `1bit plan`: what serve would do with these files, and why, without loading them.
#include <map>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "cli/output.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "model/linear.h"

namespace onebit {
namespace {

Json model_json(const Model& model) {
  return Json{{"path", model.file().path()},
              {"architecture", model.config().architecture},
              {"hadamard", model.weights().stamp()},
              {"moe", model.config().moe()},
              {"context_length", model.config().n_ctx_train}};
}

/// The type that holds most of a file's bytes.
std::string main_type(const GgufFile& file) {
  std::map<std::string, size_t> bytes;
  for (const TensorInfo& tensor : file.tensors()) bytes[type_name(tensor.type)] += tensor.data.size();
  std::string best;
  for (const auto& [type, n] : bytes) {
    if (best.empty() || n > bytes[best]) best = type;
  }
  return best;
}

Json drafter_json(const EnginePlan& plan) {
  if (!plan.drafter) return nullptr;
  const DrafterConfig& config = plan.drafter->config();
  return Json{{"kind", plan.drafter->kind()},
              {"path", plan.drafter->file().path()},
              {"type", main_type(plan.drafter->file())},
              {"block_size", config.block_size},
              {"n_max", plan.options.draft_max},
              {"adaptive", plan.options.draft_adaptive},
              {"lookup", plan.options.lookup},
              {"p_min", Json::parse(fmt::format("{}", plan.options.draft_p_min))}};  // 0.4, not its nearest float
}

std::string w4a4_reason(const EnginePlan& plan, int64_t n_tensors) {
  const GgufFile& file = plan.model->file();
  if (plan.options.w4a4.mode == W4a4::none) return "--w4a4 none: exact 8-bit activations";
  if (plan.options.w4a4.mode == W4a4::all) return "--w4a4 all: every q4_0 matrix of a block";
  if (file.has(keys::kW4a4Tensors)) return fmt::format("the file lists them in {}", keys::kW4a4Tensors);
  if (n_tensors > 0) return fmt::format("rotated q4_0 matrices ({} = {})", keys::kHadamard, kHadamardBlock);
  return "the file has no rotated q4_0 matrices";
}

Json w4a4_json(const EnginePlan& plan) {
  int64_t n = 0;
  for (const Weight& weight : plan.model->weights().all()) n += path_of(weight) == "w4a4";
  return Json{{"prompt", n > 0 ? "int4" : "int8"}, {"tensors", n}, {"why", w4a4_reason(plan, n)}};
}

/// What prompts may start from, beside what slots hold.
Json prefix_cache_json(const EnginePlan& plan) {
  const PrefixCacheSizes& cache = plan.cache_sizes;
  return Json{{"bytes", cache.bytes()},
              {"entries", cache.n_entries},
              {"state_bytes", cache.slot_bytes},
              {"pages", cache.n_pages},
              {"page_bytes", cache.page_bytes},
              {"draft_pages", cache.n_draft_pages},
              {"every", cache.n_entries > 0 ? cache.every : 0}};
}

Json document(const EnginePlan& plan, const EngineSetup& setup) {
  Json recipes = Json::array(), memory = Json::array(), warnings = Json::array();
  for (const AppliedRecipe& recipe : setup.recipes) recipes.push_back({{"id", recipe.id}, {"added", recipe.added}});
  for (const MemoryPool& pool : plan.memory) memory.push_back({{"pool", pool.name}, {"bytes", pool.bytes}});
  for (const auto* list : {&setup.warnings, &plan.warnings}) {
    for (const std::string& warning : *list) warnings.push_back(warning);
  }
  return Json{{"device", plan.backend->info().name},
              {"device_description", plan.backend->info().description},
              {"model", model_json(*plan.model)},
              {"drafter", drafter_json(plan)},
              {"context", plan.options.n_ctx},
              {"slots", plan.options.n_slots},
              {"batch", plan.options.n_batch},
              {"prefix_cache", prefix_cache_json(plan)},
              {"w4a4", w4a4_json(plan)},
              {"recipes", recipes},
              {"memory", memory},
              {"warnings", warnings}};
}

/// The listings of the plans, by name.
std::vector<std::pair<std::string, std::string>> listings(EnginePlan& plan) {
  std::vector<std::pair<std::string, std::string>> all;
  all.emplace_back("target", print_plan(plan.model->plan(plan.drafter ? &plan.drafter->taps() : nullptr)));
  if (plan.drafter) {
    all.emplace_back("encode", print_plan(plan.drafter->encode_plan()));
    all.emplace_back("draft", print_plan(plan.drafter->draft_plan()));
  }
  return all;
}

void print_text(const EnginePlan& plan, const Json& json) {
  const Json &model = json["model"], &drafter = json["drafter"], &w4a4 = json["w4a4"];
  print(fmt::format("device   {} ({})\n", plan.backend->info().name, plan.backend->info().description));
  print(fmt::format("model    {}: {}{}, {}\n", plan.model->file().path(), plan.model->config().architecture,
                    model["moe"].get<bool>() ? " (mixture of experts)" : "",
                    model["hadamard"].get<int64_t>() ? "Hadamard-rotated" : "not rotated"));
  print(fmt::format("context  {} tokens for each of {} sequences (trained for {})\n", plan.options.n_ctx,
                    plan.options.n_slots, model["context_length"].get<int64_t>()));
  if (drafter.is_null()) {
    print("drafter  none\n");
  } else {
    print(fmt::format("drafter  {}: {} {}, drafts {}{} tokens a step (block of {}), p-min {}{}\n",
                      plan.drafter->file().path(), drafter["kind"].get<std::string>(),
                      drafter["type"].get<std::string>(), plan.options.draft_adaptive ? "0 to " : "",
                      plan.options.draft_max, plan.drafter->config().block_size, plan.options.draft_p_min,
                      plan.options.lookup ? ", or what followed the same words before" : ""));
  }
  print(fmt::format("prompts  {} activations on {} matrices: {}\n", w4a4["prompt"].get<std::string>(),
                    w4a4["tensors"].get<int64_t>(), w4a4["why"].get<std::string>()));
  for (const Json& recipe : json["recipes"]) {
    print(fmt::format("recipe   {}:{}\n", recipe["id"].get<std::string>(), [&] {
      std::string flags;
      for (const Json& flag : recipe["added"]) flags += " " + flag.get<std::string>();
      return flags;
    }()));
  }
  const PrefixCacheSizes& cache = plan.cache_sizes;
  if (cache.n_entries > 0) {
    print(fmt::format(
        "cache    up to {} states that prompts may start from ({} each), {} pages of {} tokens ({} each)\n",
        cache.n_entries, bytes_text(cache.entry_bytes), cache.n_pages, kPageTokens, bytes_text(cache.page_bytes)));
  }
  for (const MemoryPool& pool : plan.memory) {
    print(fmt::format("memory   {:<28} {:>12}\n", pool.name, bytes_text(pool.bytes)));
  }
  print(fmt::format("memory   {:<28} {:>12}\n", "together", bytes_text(plan.memory_bytes())));
  for (const Json& warning : json["warnings"]) print(fmt::format("warning  {}\n", warning.get<std::string>()));
}

}  // namespace

int cmd_plan(Options options) {
  const EngineSetup setup = set_up_engine(options);
  EnginePlan plan = plan_engine(setup.engine);
  Json json = document(plan, setup);
  const auto ops = options.ops ? listings(plan) : std::vector<std::pair<std::string, std::string>>();
  if (options.json) {
    for (const auto& [name, text] : ops) json["ops"][name] = text;
    print_json(json);
    return 0;
  }
  print_text(plan, json);
  for (const auto& [name, text] : ops) print("\n" + text);
  return 0;
}

}  // namespace onebit
