// `1bit imatrix`: how large the inputs of a model's matrices are on a text, for `1bit quantize --imatrix`, or their
// whole second moments, for `--hessian`.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "measure/hessian_file.h"
#include "measure/imatrix.h"

namespace onebit {
namespace {

constexpr int64_t kChunkTokens = 512;

}  // namespace

int cmd_imatrix(const Options& options) {
  if (options.model.empty()) fail(ErrorKind::usage, "-m FILE is missing: which model?");
  if (options.prompt_file.empty()) fail(ErrorKind::usage, "-f FILE is missing: which text?");
  if (options.output.empty()) fail(ErrorKind::usage, "-o FILE is missing: where to?");
  const StopSignals signals;
  const int64_t n_ctx = options.n_ctx > 0 ? std::max<int64_t>(options.n_ctx, 4) : kChunkTokens;
  const auto model = Model::open(options.model, W4a4::none);
  const TextChunks chunks =
      cut_text(*model, read_input(options.prompt_file), n_ctx, options.n_chunks, options.prompt_file);
  Progress progress("measuring");
  const auto write = options.save_hessians ? write_hessians : write_imatrix;
  const int64_t n =
      write(*model, chunks, measure_options(options), options.prompt_file, options.output, [&](double share) {
        progress.update(share);
        signals.check();
      });
  progress.clear();
  print(fmt::format("{}: {} {}, {} chunks of {} tokens\n", options.output, n,
                    options.save_hessians ? "inputs" : "matrices", chunks.n_chunk(), n_ctx));
  return 0;
}

}  // namespace onebit
