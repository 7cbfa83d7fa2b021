// The command line: what was typed becomes an Options. One row per flag (options.cpp) gives parsing, --help and
// docs/cli.md; nothing else knows a flag's name, default or range.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace onebit {

/// The commands, as bits, so that a flag's row can name several.
enum CommandBit : uint32_t {
  kServe = 1 << 0,
  kRun = 1 << 1,
  kChat = 1 << 2,
  kPlan = 1 << 3,
  kBench = 1 << 4,
  kInspect = 1 << 5,
  kTokenize = 1 << 6,
  kDetokenize = 1 << 7,
  kQuantize = 1 << 8,
  kConvert = 1 << 9,
  kVersion = 1 << 10,
  kHelp = 1 << 11,
  kEval = 1 << 12,
  kImatrix = 1 << 13,
};
inline constexpr uint32_t kEngineCommands = kServe | kRun | kChat | kPlan | kBench;
/// Commands that run a model over a text.
inline constexpr uint32_t kMeasureCommands = kEval | kImatrix | kQuantize;

/// Every value that a flag sets. The initial values are the defaults.
struct Options {
  CommandBit command = kHelp;
  std::vector<std::string> files;  // what is not a flag: IN, OUT, ...
  std::set<std::string> given;     // names of the flags that were typed ("--ctx-size"); recipes never override these
  bool help = false;

  // model and device
  std::string model, drafter, device = "auto", isa, w4a4 = "auto", int4_rule = "search", cache_type = "f16";
  std::string split_mode = "auto", tensor_split;
  int64_t main_gpu = 0;
  int64_t n_threads = 0, n_ctx = 0, n_batch = 512, memory_limit_mib = 0;
  std::optional<int64_t> n_parallel;
  int64_t cache_ram_mib = -1;
  int64_t draft_max = -1;
  double draft_p_min = 0;
  std::string mtp, draft_adaptive = "auto", lookup = "auto";
  std::string recipes;
  bool no_recipes = false;

  // text and sampling
  std::string prompt, prompt_file, system;
  std::optional<int64_t> n_predict;
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  double typical_p = 1, repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int64_t repeat_last_n = 64, seed = -1;
  std::vector<std::string> stops;
  std::string template_kwargs, template_file;
  bool chat = false, ignore_eos = false;

  // server
  std::string host = "127.0.0.1", alias, api_key_file, reasoning_format = "auto", spec_type, mmproj;
  std::vector<std::string> api_keys, cors_origins;
  std::string slot_save_path;
  bool allow_open = false;
  int64_t port = 8000, max_queue = 64;

  // bench
  std::string bench_prompt = "512", bench_gen = "64", bench_verify = "8", bench_depth = "0";  // lists of numbers
  int64_t bench_reps = 5;
  double draft_accept = 0;
  bool steps = false;

  // measurements over texts
  int64_t n_chunks = 0;
  std::string save_logits, against, output, importance, hessians, w4a4_budget;
  bool gptq = false, save_hessians = false, no_search = false;
  double balance = 0.25;

  // files and listings
  std::string type;
  std::vector<std::string> tensor_types;
  int64_t hadamard = 0;
  bool json = false, jsonl = false, tensors = false, ops = false, add_special = false, no_parse_special = false;
};

/// Where a flag's value goes; monostate: accepted for compatibility, without effect.
using FlagTarget = std::variant<std::monostate, bool Options::*, int64_t Options::*, double Options::*,
                                std::optional<int64_t> Options::*, std::optional<double> Options::*,
                                std::string Options::*, std::vector<std::string> Options::*>;

struct FlagRow {
  const char* names;  // comma-separated; the first long one is the flag's name, spellings after '/' stay out of --help
  FlagTarget target;
  const char* value;     // what follows: "" nothing, "N", "FILE"; "a|b|c": one of these; "[X]": may be left out
  const char* fallback;  // the default in words, "" where there is none to tell
  uint32_t commands;
  const char* help;
  double low = 0, high = 0;  // allowed range of a number, both ends in

  bool belongs_to(CommandBit command) const;   // plan takes what serve takes
  std::string name() const;                    // "--model"
  std::vector<std::string> spellings() const;  // every one that is accepted
  std::string shown() const;                   // "-m, --model FILE"
  std::string also() const;                    // the spellings after '/', "" when there are none
};
const std::vector<FlagRow>& flag_rows();

struct CommandRow {
  CommandBit bit;
  const char* name;
  const char* usage;  // what follows the name in a usage line
  int n_files;        // how many arguments that are not flags; -1: at most one
  const char* summary;
};
const std::vector<CommandRow>& command_rows();
/// The row of a command; throws Error(usage) naming the known ones.
const CommandRow& find_command(std::string_view name);
const CommandRow& command_row(CommandBit bit);

/// Parses a whole command line (without the program's own name). `program` is that name: under "llama-server", or when
/// the first argument is a flag, the command is serve. Throws Error(usage), one line.
Options parse_command_line(std::string_view program, const std::vector<std::string>& arguments);

/// Applies flags to options, for recipes: `arguments` is a flag with its values.
void apply_arguments(Options& options, const std::vector<std::string>& arguments);

/// The name of the flag with this spelling for this command ("--model" for "-m"), or nothing.
std::optional<std::string> flag_name(std::string_view spelling, CommandBit command);

/// The text of `1bit help`, of `1bit COMMAND --help`, and docs/cli.md.
std::string help_text();
std::string help_text(const CommandRow& command);
std::string help_markdown();

}  // namespace onebit
