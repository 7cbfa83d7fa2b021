// `1bit quantize`: a smaller file of a model, plain or Hadamard-rotated.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "gguf/hadamard.h"
#include "measure/quantize_model.h"

namespace onebit {
namespace {

constexpr int64_t kChunkTokens = 512, kChunks = 128;

/// "5%" or "5": a share from 0 to 1.
double parse_percent(const std::string& text) {
  double value = -1;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool complete = rest == end || (rest + 1 == end && *rest == '%');
  if (error != std::errc() || !complete || !(value >= 0 && value <= 100)) {
    fail(ErrorKind::usage, "--w4a4-budget: expected a percentage from 0% to 100%, found {}", text);
  }
  return value / 100;
}

BlockType read_type(const char* flag, const std::string& name) {
  const std::optional<BlockType> type = parse_type(name);
  if (!type) fail(ErrorKind::usage, "{}: unknown type \"{}\"", flag, name);
  return *type;
}

/// --type: a block type or one of the mixtures; q4_k and q5_k alone mean the medium ones.
void read_mixture(std::string name, QuantizeOptions& options) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool has_mixtures = name.starts_with("q4_k") || name.starts_with("q5_k");
  if (has_mixtures) options.finer = name.ends_with("_s") ? Finer::small : Finer::medium;
  if (has_mixtures && (name.ends_with("_s") || name.ends_with("_m"))) name.resize(name.size() - 2);
  options.type = read_type("--type", name);
}

/// "NAME=TYPE".
std::pair<std::string, BlockType> read_tensor_type(const std::string& text) {
  const size_t equal = text.find('=');
  if (equal == 0 || equal == std::string::npos) {
    fail(ErrorKind::usage, "--tensor-type: expected NAME=TYPE, found {}", text);
  }
  return {text.substr(0, equal), read_type("--tensor-type", text.substr(equal + 1))};
}

void check_flags(const Options& options) {
  if (options.hadamard != 0 && options.hadamard != kHadamardBlock) {
    fail(ErrorKind::usage, "--hadamard: expected {} (or 0: not rotated), found {}", kHadamardBlock, options.hadamard);
  }
  const bool calibrates = options.gptq && options.hessians.empty();
  if (!options.hessians.empty() && !options.gptq) fail(ErrorKind::usage, "--hessian needs --gptq");
  if (calibrates && options.prompt_file.empty()) {
    fail(ErrorKind::usage, "-f FILE is missing: --gptq reads a text (or --hessian FILE)");
  }
  if (!calibrates && options.w4a4_budget.empty() && !options.prompt_file.empty()) {
    fail(ErrorKind::usage, "-f: only --gptq without --hessian and --w4a4-budget read a text");
  }
  if (options.no_search && (options.gptq || !options.importance.empty())) {
    fail(ErrorKind::usage, "--no-search: --gptq and --imatrix search");
  }
  if (options.given.count("--balance") != 0 && !options.gptq) fail(ErrorKind::usage, "--balance needs --gptq");
}

ModelQuantizeOptions read_wish(const Options& options) {
  ModelQuantizeOptions wish;
  wish.file.in = options.files[0];
  wish.file.out = options.files[1];
  if (!options.type.empty()) read_mixture(options.type, wish.file);
  for (const std::string& text : options.tensor_types) wish.file.wishes.push_back(read_tensor_type(text));
  wish.file.rotate = options.hadamard != 0;
  wish.file.threads = static_cast<int>(options.n_threads);
  wish.file.importance = options.importance;
  wish.file.search = !options.no_search;
  wish.measure = measure_options(options);
  wish.gptq = options.gptq;
  wish.hessians = options.hessians;
  wish.balance = options.balance;
  wish.text_name = options.prompt_file;
  if (!options.prompt_file.empty()) wish.text = read_input(options.prompt_file);
  if (!options.w4a4_budget.empty()) wish.budget = parse_percent(options.w4a4_budget);
  wish.n_ctx = options.n_ctx > 0 ? std::max<int64_t>(options.n_ctx, 4) : kChunkTokens;
  wish.n_chunks = options.n_chunks > 0 ? options.n_chunks : kChunks;
  return wish;
}

/// The matrices that keep 8-bit activations, the costliest to round first.
void print_exact(std::vector<Int4Unit> units) {
  std::erase_if(units, [](const Int4Unit& unit) { return !unit.exact; });
  std::sort(units.begin(), units.end(),
            [](const Int4Unit& a, const Int4Unit& b) { return a.divergence * b.share > b.divergence * a.share; });
  double share = 0;
  for (const Int4Unit& unit : units) share += unit.share;
  print(fmt::format("8-bit activations in {} matrices, {:.2f} % of the multiplications:\n", units.size(), 100 * share));
  for (const Int4Unit& unit : units) {
    print(fmt::format("  {:<32} {:>6.2f} %  divergence {:.6f}\n", unit.tensor, 100 * unit.share, unit.divergence));
  }
}

}  // namespace

ProgressCallback show_stream(Progress& progress, const StopSignals& signals) {
  return [&](const StreamProgress& p) {
    progress.update(p.bytes_total > 0 ? static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes_total) : 1);
    return !signals.requested();
  };
}

int cmd_quantize(const Options& options) {
  check_flags(options);
  const StopSignals signals;
  Progress progress("quantising"), measuring("measuring");
  ModelQuantizeOptions wish = read_wish(options);
  wish.file.progress = show_stream(progress, signals);
  wish.stop = [&] { signals.check(); };
  wish.on_budget = [&](double share) { measuring.update(share); };
  const auto [result, units] = quantize_model(wish);
  progress.clear();
  measuring.clear();
  print(fmt::format("{}: {} tensors, {} of them rotated, {} (from {})\n", wish.file.out, result.n_tensors,
                    result.n_rotated, bytes_text(static_cast<int64_t>(result.bytes_out)),
                    bytes_text(static_cast<int64_t>(result.bytes_in))));
  if (!units.empty()) print_exact(units);
  return 0;
}

}  // namespace onebit
