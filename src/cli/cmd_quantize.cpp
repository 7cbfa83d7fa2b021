// `1bit quantize`: a smaller file of a model, plain or Hadamard-rotated.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "convert/quantize.h"
#include "gguf/hadamard.h"

namespace onebit {

ProgressCallback show_stream(Progress& progress, const StopSignals& signals) {
  return [&](const StreamProgress& p) {
    progress.update(p.bytes_total > 0 ? static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes_total) : 1);
    return !signals.requested();
  };
}

int cmd_quantize(const Options& options) {
  const std::string name = options.type.empty() ? "q4_0" : options.type;
  const std::optional<BlockType> type = parse_type(name);
  if (!type) fail(ErrorKind::usage, "--type: unknown type \"{}\"", name);
  if (options.hadamard != 0 && options.hadamard != kHadamardBlock) {
    fail(ErrorKind::usage, "--hadamard: expected {} (or 0: not rotated), found {}", kHadamardBlock, options.hadamard);
  }
  const StopSignals signals;
  Progress progress("quantising");
  QuantizeOptions wish;
  wish.in = options.files[0];
  wish.out = options.files[1];
  wish.type = *type;
  wish.rotate = options.hadamard != 0;
  wish.threads = static_cast<int>(options.n_threads);
  wish.progress = show_stream(progress, signals);
  const QuantizeResult result = quantize(wish);
  progress.clear();
  print(fmt::format("{}: {} tensors, {} of them rotated, {} (from {})\n", wish.out, result.n_tensors, result.n_rotated,
                    bytes_text(static_cast<int64_t>(result.bytes_out)),
                    bytes_text(static_cast<int64_t>(result.bytes_in))));
  return 0;
}

}  // namespace onebit
