// From flags to what the floors below take: engine options with recipes applied, sampling, requests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/recipes.h"
#include "cli/signals.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/text_model.h"

namespace onebit {

struct EngineSetup {
  EngineOptions engine;
  RecipeFacts facts;
  std::vector<AppliedRecipe> recipes;
  std::vector<std::string> warnings;
};

/// Our name of a device: llama-server's "CUDA0", "ROCm0" and "none" are understood too.
std::string device_name(std::string name);
/// Which device of several, and how they divide a model.
BackendOptions backend_options(const Options& options);

/// --w4a4 and --int4-rule.
CacheType cache_type(const Options& options);
W4a4Choice w4a4_choice(const Options& options);

/// Reads the files' headers, applies recipes to `options` and fills in the engine's options. Throws Error(usage) for a
/// missing -m and Error(refused) for files and recipes that are bad.
EngineSetup set_up_engine(Options& options);

/// Loads the engine with a bar on a terminal; warnings go to stderr. A signal ends it with Error(runtime).
/// `text` is looked at while weights are loaded.
std::unique_ptr<Engine> load_engine(EngineSetup& setup, std::string_view command, const StopSignals& signals,
                                    TextReading* text = nullptr);

struct EngineAndText {
  std::unique_ptr<Engine> engine;
  TextModel text;
};

/// The engine as from load_engine(), and meanwhile the text side of its model.
EngineAndText load_engine_and_text(EngineSetup& setup, const Options& options, std::string_view command,
                                   const StopSignals& signals);

/// `base` with the sampling flags that were given; a seed is drawn when none was.
SamplingOptions sampling_options(const Options& options, SamplingOptions base);

/// The template of --chat-template-file; "" means the model's.
std::string chat_template(const Options& options);

/// The variables for the chat template (--chat-template-kwargs). Throws Error(usage) when it isn't a JSON object.
nlohmann::ordered_json template_kwargs(const Options& options);

/// The text of -p, -f or stdin. Throws Error(usage) when there are two of them, or none and stdin is a terminal.
std::string prompt_text(const Options& options);

}  // namespace onebit
