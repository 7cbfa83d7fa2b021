#include "cli/engine_setup.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <random>

#include "base/error.h"
#include "cli/output.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "model/mtp.h"
#include "model/shapes.h"

namespace onebit {
namespace {

constexpr int32_t kServeSlots = 4;
constexpr size_t kMaxTemplateBytes = 1 << 20;

std::string drafter_kind(const std::string& path) {
  if (path.empty()) return "none";
  const GgufFile file = open_model_file(path, Filling::none);
  if (has_mtp_head(file)) return "mtp";
  if (!is_drafter(file)) return file.architecture();  // refused with its reason when the drafter is opened
  return read_drafter_config(file).version() == 2 ? "dflash2" : "dflash";
}

RecipeFacts read_facts(const Options& options, const EngineOptions& engine) {
  const GgufFile file = open_model_file(options.model, Filling::none);
  RecipeFacts facts;
  facts.device = make_backend(engine.device, engine.backend)->info().name;
  facts.architecture = file.architecture();
  facts.drafter = drafter_kind(options.drafter);
  facts.moe = file.get_or<int64_t>(keys::expert_count(facts.architecture), 0) > 0;
  facts.rotated = hadamard_stamp(file) != 0;
  return facts;
}

std::vector<Recipe> wanted_recipes(const Options& options) {
  if (options.no_recipes) return {};
  if (options.recipes.empty()) return parse_recipes(kBuiltInRecipes, "built-in recipes");
  return parse_recipes(read_input(options.recipes, 1 << 20), options.recipes);
}

EngineOptions engine_options(const Options& options) {
  EngineOptions engine;
  engine.model_path = options.model;
  engine.drafter_path = options.drafter;
  engine.device = device_name(options.device);
  engine.backend = backend_options(options);
  engine.w4a4 = w4a4_choice(options);
  engine.n_ctx = options.n_ctx;
  const bool serves = options.command == kServe || options.command == kPlan;
  engine.n_slots = static_cast<int32_t>(options.n_parallel.value_or(serves ? kServeSlots : 1));
  engine.n_batch = static_cast<int32_t>(options.n_batch);
  engine.cache = cache_type(options);
  engine.draft_max = static_cast<int32_t>(options.draft_max);
  engine.draft_p_min = static_cast<float>(options.draft_p_min);
  const bool fixed = options.given.count("--mtp-max") != 0 && options.draft_max > 0;
  engine.draft_adaptive = options.draft_adaptive == "on" || (options.draft_adaptive == "auto" && !fixed);
  engine.lookup = options.lookup == "on" || (options.lookup == "auto" && !options.drafter.empty());
  const bool converses = serves || options.command == kChat;
  if (converses) engine.cache_bytes = options.cache_ram_mib < 0 ? -1 : options.cache_ram_mib << 20;
  engine.memory_limit = options.memory_limit_mib << 20;
  return engine;
}

void check_model_flags(Options& options, std::vector<std::string>& warnings) {
  if (options.model.empty()) fail(ErrorKind::usage, "-m FILE is missing: which model?");
  if (!options.mtp.empty() && !options.drafter.empty()) fail(ErrorKind::usage, "--mtp and --dflash: give one of them");
  if (!options.mtp.empty()) options.drafter = options.mtp;
  if (options.spec_type == "draft-mtp" && options.drafter.empty()) options.drafter = options.model;
  if (options.spec_type == "none") options.drafter.clear();
  if (!options.mmproj.empty()) warnings.push_back("--mmproj: images can't be read, text only");
}

}  // namespace

std::string device_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name == "none") return "cpu";
  for (size_t at = name.find("hip"); at != std::string::npos; at = name.find("hip", at)) name.replace(at, 3, "rocm");
  return name;
}

BackendOptions backend_options(const Options& options) {
  BackendOptions backend{.n_threads = static_cast<int>(options.n_threads), .isa = options.isa};
  if (options.split_mode == "none") backend.split = SplitMode::none;
  if (options.split_mode == "layer") backend.split = SplitMode::layer;
  if (options.split_mode == "tensor") backend.split = SplitMode::tensor;
  backend.ordinal = static_cast<int>(options.main_gpu);
  const char* at = options.tensor_split.data();
  const char* const end = at + options.tensor_split.size();
  while (at != end) {
    double share = 0;
    const auto [stop, error] = std::from_chars(at, end, share);
    if (error != std::errc() || !(share >= 0) || (stop != end && (*stop != ',' || stop + 1 == end))) {
      fail(ErrorKind::usage, "--tensor-split: expected numbers like 3,1, found \"{}\"", options.tensor_split);
    }
    backend.shares.push_back(share);
    at = stop == end ? end : stop + 1;
  }
  return backend;
}

CacheType cache_type(const Options& options) {
  if (options.cache_type == "f32") return CacheType::f32;
  return options.cache_type == "q8_0" ? CacheType::q8_0 : CacheType::f16;
}

W4a4Choice w4a4_choice(const Options& options) {
  return {parse_w4a4(options.w4a4), parse_int4_rule(options.int4_rule)};
}

EngineSetup set_up_engine(Options& options) {
  EngineSetup setup;
  check_model_flags(options, setup.warnings);
  setup.facts = read_facts(options, engine_options(options));
  setup.recipes = apply_recipes(wanted_recipes(options), setup.facts, options);
  setup.engine = engine_options(options);
  return setup;
}

std::unique_ptr<Engine> load_engine(EngineSetup& setup, std::string_view command, const StopSignals& signals,
                                    TextReading* text) {
  Progress progress("loading");
  setup.engine.on_progress = [&](double share) {
    progress.update(share);
    signals.check();
    if (text) text->check();
  };
  auto engine = std::make_unique<Engine>(plan_engine(setup.engine));
  progress.clear();
  for (const std::string& warning : setup.warnings) notice(command, warning);
  for (const std::string& warning : engine->warnings()) notice(command, warning);
  return engine;
}

SamplingOptions sampling_options(const Options& options, SamplingOptions base) {
  const auto set = [](auto& to, const auto& from) {
    if (from) to = static_cast<std::remove_reference_t<decltype(to)>>(*from);
  };
  set(base.temperature, options.temperature);
  set(base.top_k, options.top_k);
  set(base.top_p, options.top_p);
  set(base.min_p, options.min_p);
  const auto given = [&](const char* flag) { return options.given.count(flag) != 0; };
  if (given("--typical")) base.typical_p = static_cast<float>(options.typical_p);
  if (given("--repeat-penalty")) base.repeat_penalty = static_cast<float>(options.repeat_penalty);
  if (given("--repeat-last-n")) base.repeat_last_n = static_cast<int32_t>(options.repeat_last_n);
  if (given("--presence-penalty")) base.presence_penalty = static_cast<float>(options.presence_penalty);
  if (given("--frequency-penalty")) base.frequency_penalty = static_cast<float>(options.frequency_penalty);
  base.seed = options.seed >= 0 ? static_cast<uint64_t>(options.seed) : std::random_device()();
  return base;
}

EngineAndText load_engine_and_text(EngineSetup& setup, const Options& options, std::string_view command,
                                   const StopSignals& signals) {
  TextReading text(options.model, chat_template(options));
  auto engine = load_engine(setup, command, signals, &text);
  return {std::move(engine), text.take()};
}

std::string chat_template(const Options& options) {
  const std::string& path = options.template_file;
  return path.empty() ? "" : read_input(path, kMaxTemplateBytes);
}

nlohmann::ordered_json template_kwargs(const Options& options) {
  if (options.template_kwargs.empty()) return nlohmann::ordered_json::object();
  auto kwargs = nlohmann::ordered_json::parse(options.template_kwargs, nullptr, false);
  if (kwargs.is_object()) return kwargs;
  fail(ErrorKind::usage, "--chat-template-kwargs: expected a JSON object, found {}", options.template_kwargs);
}

std::string prompt_text(const Options& options) {
  const bool from_flag = options.given.count("--prompt") != 0;
  if (from_flag && !options.prompt_file.empty()) fail(ErrorKind::usage, "-p and -f: give one of them");
  if (from_flag) return options.prompt;
  if (options.prompt_file.empty() && ::isatty(STDIN_FILENO) == 1)
    fail(ErrorKind::usage, "-p TEXT or -f FILE is missing");
  return read_input(options.prompt_file.empty() ? "-" : options.prompt_file);
}

}  // namespace onebit
