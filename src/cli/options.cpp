// The rows: one per flag, one per command.
#include "cli/options.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace onebit {
namespace {

constexpr double kMany = 2147483647;
constexpr double kHuge = 9007199254740992;  // 2^53: whole numbers up to here are exact
constexpr uint32_t kText = kRun | kChat;
constexpr uint32_t kSampling = kRun | kChat | kServe;
constexpr uint32_t kVocabulary = kTokenize | kDetokenize;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// The part of a row's names that is shown, or the other one.
std::string_view names_part(const char* names, bool shown) {
  const std::string_view all = names;
  const size_t slash = all.find('/');
  if (shown) return all.substr(0, slash);
  return slash == std::string_view::npos ? std::string_view() : all.substr(slash + 1);
}

}  // namespace

bool FlagRow::belongs_to(CommandBit command) const {
  return (commands & command) || (command == kPlan && (commands & kServe));
}

std::string FlagRow::name() const {
  for (const std::string& spelling : spellings()) {
    if (spelling.starts_with("--")) return spelling;
  }
  check_failed("a flag has a long name", __FILE__, __LINE__);
}

std::vector<std::string> FlagRow::spellings() const {
  std::vector<std::string> all = split(names_part(names, true), ',');
  for (std::string& more : split(names_part(names, false), ',')) all.push_back(std::move(more));
  return all;
}

std::string FlagRow::shown() const {
  std::string text;
  for (const std::string& spelling : split(names_part(names, true), ',')) {
    text += (text.empty() ? "" : ", ") + spelling;
  }
  return *value ? text + " " + value : text;
}

std::string FlagRow::also() const {
  std::string text;
  for (const std::string& spelling : split(names_part(names, false), ',')) {
    text += (text.empty() ? "" : ", ") + spelling;
  }
  return text;
}

const std::vector<FlagRow>& flag_rows() {
  using O = Options;
  static const std::vector<FlagRow> rows = {
      // --- model and device
      {"-m,--model", &O::model, "FILE", "", kEngineCommands | kVocabulary | kEval | kImatrix, "the model, a GGUF file"},
      {"--dflash/--model-draft,-md", &O::drafter, "FILE", "none", kEngineCommands,
       "a DFlash or DFlash2 drafter for the model; the answer stays the same, only faster"},
      {"--mtp", &O::mtp, "FILE", "none", kEngineCommands,
       "draft with the model's own multi-token head: the file that has it, or the model's file itself"},
      {"--device/-dev", &O::device, "NAME", "auto", kEngineCommands | kMeasureCommands,
       "auto, cpu, cuda, vulkan, rocm, or ref (the slow definition); cuda1 is the second one, and several names "
       "between "
       "commas divide the model's layers"},
      {"--split-mode/-sm", &O::split_mode, "auto|none|layer|tensor", "auto", kEngineCommands | kMeasureCommands,
       "layer: all GPUs, each with some of the layers; tensor: all, each with a part of every layer, which is faster; "
       "none: "
       "one; auto: one where the model fits, else by layers"},
      {"--tensor-split/-ts", &O::tensor_split, "N,N", "by free memory", kEngineCommands | kMeasureCommands,
       "how much of the layers each device takes, in proportion: 3,1"},
      {"--main-gpu/-mg", &O::main_gpu, "N", "0", kEngineCommands | kMeasureCommands, "which GPU, where one is used", 0,
       255},
      {"-t,--threads", &O::n_threads, "N", "all usable cores", kEngineCommands | kMeasureCommands | kConvert,
       "worker threads", 0, 1024},
      {"--isa", &O::isa, "NAME", "the best", kEngineCommands | kMeasureCommands,
       "instructions of the cpu device: amx, avx512, avxvnni, avx2, dotprod (Arm), portable"},
      {"-c,--ctx-size", &O::n_ctx, "N", "what the model was trained for, at most 8192", kEngineCommands,
       "longest sequence in tokens, prompt and answer together; 0 is the default", 0, kMany},
      {"-c,--ctx-size/--ctx", &O::n_ctx, "N", "512", kMeasureCommands, "tokens of a chunk of the text", 0, 1 << 20},
      {"--chunks", &O::n_chunks, "N", "eval, imatrix: all; quantize: 128", kMeasureCommands,
       "how many chunks of the text are read, from its start", 0, kMany},
      {"--parallel/-np", &O::n_parallel, "N", "serve and plan: 4, else 1", kEngineCommands,
       "sequences at once, each of up to --ctx-size tokens", 1, 256},
      {"-b,--batch-size", &O::n_batch, "N", "512", kEngineCommands, "most tokens of one pass over the model", 1, 65536},
      {"--cache-type/--cache-type-k,-ctk,--cache-type-v,-ctv", &O::cache_type, "f16|f32|q8_0", "f16",
       kEngineCommands | kEval, "how keys and values are kept; q8_0: half the memory of f16, on the cpu"},
      {"--w4a4", &O::w4a4, "auto|all|none", "auto", kEngineCommands | kEval,
       "which q4_0 matrices read prompts with 4-bit activations: the rotated ones (or those the file lists), all of "
       "a block's, none"},
      {"--int4-rule", &O::int4_rule, "amax|extreme|search", "search", kEngineCommands | kEval,
       "how activations are rounded to 4 bits: amax is the plainest, search the most accurate"},
      {"--memory-limit", &O::memory_limit_mib, "MIB", "what the device has free", kEngineCommands | kMeasureCommands,
       "refuse to load (exit 4) when the pools together need more", 0, kMany},
      {"--cache-ram/-cram", &O::cache_ram_mib, "MIB", "a quarter of what is left, at most 8192", kServe | kChat,
       "memory for states that prompts may start from: system prompts, earlier turns; taken at load. 0: only the slot "
       "that read a prompt can go on from it; -1: the default",
       -1, kMany},
      {"--mtp-max/--draft-max,--spec-draft-n-max", &O::draft_max, "N", "the drafter's block size less one",
       kEngineCommands, "most tokens drafted a step; 0 turns drafting off", -1, 1024},
      {"--draft-adaptive", &O::draft_adaptive, "auto|on|off", "auto", kEngineCommands,
       "on: how many tokens are drafted, down to none, is chosen for each step from measured times and what was "
       "accepted lately; off: always --mtp-max. auto: on unless --mtp-max is given"},
      {"--lookup", &O::lookup, "auto|on|off", "auto", kEngineCommands,
       "also draft what followed the same words before in the text. auto: beside a drafter; on: without one too"},
      {"--mtp-p-min/--draft-p-min,--spec-draft-p-min", &O::draft_p_min, "P", "0", kEngineCommands,
       "smallest confidence of a drafted token; a block is cut at the first one below. 0 keeps blocks whole", 0, 1},
      {"--recipes", &O::recipes, "FILE", "the built-in set", kEngineCommands, "tuned settings to use instead"},
      {"--no-recipes", &O::no_recipes, "", "", kEngineCommands, "no tuned settings"},
      // --- prompt and answer
      {"-p,--prompt", &O::prompt, "TEXT", "", kRun | kVocabulary, "the text"},
      {"-f,--file", &O::prompt_file, "FILE", "", kRun | kVocabulary | kMeasureCommands,
       "read the text from a file, - from stdin"},
      {"--system/-sys,--system-prompt", &O::system, "TEXT", "none", kText, "system message of a chat"},
      {"--chat", &O::chat, "", "", kRun, "put the prompt into the model's chat template as a user's message"},
      {"-n,--predict/--n-predict", &O::n_predict, "N", "run: 256; else until the context is full", kSampling,
       "most tokens of an answer; -1: until the context is full", -1, kMany},
      {"--stop/-r,--reverse-prompt", &O::stops, "TEXT", "none", kRun,
       "end the answer before this text; may be repeated"},
      {"--ignore-eos", &O::ignore_eos, "", "", kRun, "go on past the model's end of the answer"},
      {"--chat-template-kwargs", &O::template_kwargs, "JSON", "{}", kSampling,
       "variables for the chat template, e.g. {\"enable_thinking\":false}"},
      {"--chat-template-file", &O::template_file, "FILE", "the model's", kSampling,
       "a Jinja chat template to use instead"},
      // --- sampling
      {"--temp/--temperature", &O::temperature, "T", "run: 0; chat and serve: the file's wish, else 0.8", kSampling,
       "0 takes the most likely token", 0, 1000},
      {"--top-k", &O::top_k, "N", "the file's wish, else 40", kSampling, "draw among the N most likely; 0: all", 0,
       kMany},
      {"--top-p", &O::top_p, "P", "the file's wish, else 0.95", kSampling,
       "draw among the most likely tokens that hold this share", 0, 1},
      {"--min-p", &O::min_p, "P", "the file's wish, else 0.05", kSampling,
       "drop tokens less likely than this share of the most likely one", 0, 1},
      {"--typical/--typical-p", &O::typical_p, "P", "1", kSampling, "locally typical sampling; 1: off", 0, 1},
      {"--repeat-penalty", &O::repeat_penalty, "X", "1", kSampling, "divides the logits of recent tokens; 1: off", 0.01,
       1000},
      {"--repeat-last-n", &O::repeat_last_n, "N", "64", kSampling,
       "how far the penalties look back; -1: the whole context", -1, kMany},
      {"--presence-penalty", &O::presence_penalty, "X", "0", kSampling, "taken from logits of tokens that occurred",
       -1000, 1000},
      {"--frequency-penalty", &O::frequency_penalty, "X", "0", kSampling,
       "taken from logits of tokens, for each time they occurred", -1000, 1000},
      {"-s,--seed", &O::seed, "N", "-1, a new one each time", kSampling, "the same seed gives the same answer", -1,
       kHuge},
      // --- server
      {"--host", &O::host, "ADDRESS", "127.0.0.1", kServe, "address to listen on"},
      {"-p,--port", &O::port, "N", "8000", kServe, "port to listen on; 0 takes a free one", 0, 65535},
      {"-a,--alias", &O::alias, "NAME", "the file's name", kServe, "the model's name in requests and replies"},
      {"--api-key", &O::api_keys, "KEY", "none", kServe,
       "clients must send it (Authorization: Bearer KEY); several may be given"},
      {"--api-key-file", &O::api_key_file, "FILE", "none", kServe, "reads keys from a file, one a line"},
      {"--allow-open", &O::allow_open, "", "", kServe, "listen beyond this machine without a key"},
      {"--cors-origin", &O::cors_origins, "ORIGIN", "none", kServe,
       "a site whose pages may use the server; several may be given"},
      {"--reasoning-format", &O::reasoning_format, "auto|deepseek|none", "auto", kServe,
       "whether a <think> block goes to reasoning_content (auto, deepseek) or stays in the content (none)"},
      {"--slot-save-path", &O::slot_save_path, "DIR", "none", kServe,
       "a folder for POST /slots/N?action=save and restore; without it slots can't be saved"},
      {"--max-queue", &O::max_queue, "N", "64", kServe, "requests that may wait for a slot; more are refused", 0, 1e6},
      // --- bench
      {"--prompt/-p,--n-prompt", &O::bench_prompt, "N,N", "512", kBench,
       "tokens of the prompt tests; 0: leave them out"},
      {"--gen/-n,--n-gen", &O::bench_gen, "N,N", "64", kBench, "tokens of the decode tests; 0: leave them out"},
      {"--verify", &O::bench_verify, "N,N", "8", kBench, "rows of the verify tests; 0: leave them out"},
      {"--depth/-d,--n-depth", &O::bench_depth, "N,N", "0", kBench, "tokens before those of a test"},
      {"--draft-accept", &O::draft_accept, "X", "0, off", kBench,
       "with a drafter: tokens kept a step, by chance, instead of texts (what drafting costs on this machine)", 0,
       1024},
      {"--steps", &O::steps, "", "", kBench, "where the time goes: a table by kind of step"},
      {"--reps/-r,--repetitions", &O::bench_reps, "N", "5", kBench, "times each test runs, in turn with the others", 1,
       1000},
      // --- measurements over texts
      {"--save-logits", &O::save_logits, "FILE", "", kEval, "keep the predictions, for --against"},
      {"--against", &O::against, "FILE", "", kEval,
       "compare with the predictions that --save-logits kept of another model"},
      {"-o,--output", &O::output, "FILE", "", kImatrix, "the file to write"},
      {"--imatrix", &O::importance, "FILE", "none", kQuantize,
       "weight errors by how large each input is, from `1bit imatrix` or llama.cpp's tool"},
      {"--no-search", &O::no_search, "", "", kQuantize,
       "round by each type's plain rule instead of searching the scales of least error (k-quants always search)"},
      {"--hessian", &O::save_hessians, "", "", kImatrix,
       "keep the whole second moments of the inputs instead, for quantize --gptq --hessian: 2 bytes for each pair of a "
       "matrix's inputs"},
      {"--gptq", &O::gptq, "", "", kQuantize,
       "round q4_0 matrices so that their outputs on the text of -f stay close; much more accurate, takes longer"},
      {"--hessian", &O::hessians, "FILE", "none", kQuantize,
       "with --gptq: what `1bit imatrix --hessian` measured on a text, instead of running the model over that of -f"},
      {"--balance", &O::balance, "X", "0.25", kQuantize,
       "with --gptq: how far scales move between matrices, so that rounding hurts all channels alike; 0: off", 0, 1},
      {"--w4a4-budget", &O::w4a4_budget, "P%", "none", kQuantize,
       "with --hadamard 32 (or a rotated file) and -f: measures which matrices lose most by 4-bit activations and lets "
       "them keep 8 bits, up to this share of the multiplications; the file lists the others and what was measured, so "
       "that another share needs no text"},
      // --- files and listings
      {"--type", &O::type, "TYPE", "quantize: q4_0; convert: bf16", kQuantize | kConvert,
       "type of the matrices; quantize: or a mixture, q4_k_m (also q4_k), q4_k_s, q5_k_m (also q5_k), q5_k_s"},
      {"--tensor-type", &O::tensor_types, "NAME=TYPE", "none", kQuantize,
       "another type for the matrices whose name contains NAME; may be repeated, the first that fits counts"},
      {"--hadamard", &O::hadamard, "N", "0", kQuantize,
       "32 rotates the q4_0 matrices of blocks and stamps the file, so that prompts can use 4-bit activations", 0, 32},
      {"--tensors", &O::tensors, "", "", kInspect, "list every tensor"},
      {"--ops", &O::ops, "", "", kPlan, "list the steps of the model's and the drafter's plans"},
      {"--jsonl", &O::jsonl, "", "", kVocabulary, "one JSON object a line: {\"text\": ...} and {\"ids\": [...]}"},
      {"--add-special", &O::add_special, "", "", kTokenize, "add the tokens that the model wants around a text"},
      {"--no-parse-special", &O::no_parse_special, "", "", kTokenize, "read the text of control tokens as plain text"},
      {"--json", &O::json, "", "", kRun | kPlan | kBench | kInspect | kEval, "print one JSON document"},
      {"-h,--help", &O::help, "", "", ~0u, "this text"},
      // --- what programs pass to llama-server
      {"--spec-type", &O::spec_type, "TYPE", "", kServe, "none turns drafting off; else the drafter's file decides"},
      {"--mmproj", &O::mmproj, "FILE", "", kServe, "images can't be read: a warning, then text only"},
      {"--jinja", {}, "", "", kServe, "the file's template is always used"},
      {"--metrics/--slots,--props,--no-slots", {}, "", "", kServe, "what the server offers does not depend on it"},
      {"--flash-attn/-fa", {}, "[on|off|auto]", "", kServe, ""},
      {"--n-gpu-layers/--gpu-layers,-ngl", {}, "N", "", kServe, "a device holds the whole model"},
      {"--n-gpu-layers-draft/--gpu-layers-draft,--spec-draft-ngl,-ngld", {}, "N", "", kServe, ""},
      {"--ubatch-size/-ub", {}, "N", "", kServe, "--batch-size counts"},
      {"--threads-batch/-tb,--threads-http", {}, "N", "", kServe, "--threads counts"},
      {"--cache-reuse/--keep", {}, "N", "", kServe, "prefixes are always reused"},
      {"--reasoning-budget", {}, "N", "", kServe, "requests decide"},
      {"--mmap/--no-mmap,--mlock,--no-warmup,--warmup", {}, "", "", kServe, ""},
      {"--cont-batching/-cb,--no-cont-batching,-nocb,--kv-unified,-kvu", {}, "", "", kServe, ""},
      {"--context-shift/--no-context-shift,--no-mmproj-offload,--no-webui,--log-disable,--verbose,-v",
       {},
       "",
       "",
       kServe,
       ""},
  };
  return rows;
}

const std::vector<CommandRow>& command_rows() {
  static const std::vector<CommandRow> rows = {
      {kServe, "serve", "-m MODEL [--dflash DRAFTER] [flags]", 0,
       "answer requests over HTTP (OpenAI-style API, page at /)"},
      {kRun, "run", "-m MODEL -p TEXT [flags]", 0, "continue one text, or answer one message with --chat"},
      {kChat, "chat", "-m MODEL [flags]", 0, "talk with the model in the terminal"},
      {kQuantize, "quantize", "IN OUT [flags]", 2, "make a smaller GGUF file, rotated with --hadamard 32"},
      {kImatrix, "imatrix", "-m MODEL -f TEXT -o FILE [flags]", 0,
       "measure a model's inputs on a text, for quantize --imatrix or --hessian"},
      {kConvert, "convert", "HF_DIR OUT.gguf [flags]", 2, "make a GGUF file of a Hugging Face checkpoint"},
      {kEval, "eval", "-m MODEL -f TEXT [flags]", 0,
       "perplexity on a text, and divergence from another model's predictions"},
      {kBench, "bench", "-m MODEL [--dflash DRAFTER] [flags]", 0, "measure prompt, decode and verify speed"},
      {kInspect, "inspect", "FILE [flags]", 1, "what a GGUF file holds"},
      {kPlan, "plan", "-m MODEL [--dflash DRAFTER] [flags]", 0, "what serve would do with these files, and why"},
      {kTokenize, "tokenize", "-m MODEL [flags]", 0, "text to token ids, from stdin, -p or -f"},
      {kDetokenize, "detokenize", "-m MODEL [flags]", 0, "token ids to text, from stdin, -p or -f"},
      {kVersion, "version", "", 0, "version of the program"},
      {kHelp, "help", "[COMMAND]", -1, "this text, or that of one command"},
  };
  return rows;
}

const CommandRow& find_command(std::string_view name) {
  std::string known;
  for (const CommandRow& row : command_rows()) {
    if (name == row.name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  fail(ErrorKind::usage, "unknown command \"{}\"; known: {}", name, known);
}

const CommandRow& command_row(CommandBit bit) {
  for (const CommandRow& row : command_rows()) {
    if (row.bit == bit) return row;
  }
  check_failed("every command has a row", __FILE__, __LINE__);
}

std::optional<std::string> flag_name(std::string_view spelling, CommandBit command) {
  for (const FlagRow& row : flag_rows()) {
    if (!row.belongs_to(command)) continue;
    for (const std::string& known : row.spellings()) {
      if (known == spelling) return row.name();
    }
  }
  return std::nullopt;
}

}  // namespace onebit
