// `1bit convert`: a GGUF file of a Hugging Face checkpoint.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "convert/convert.h"
#include "model/shapes.h"

namespace onebit {

int cmd_convert(const Options& options) {
  const std::string name = options.type.empty() ? "bf16" : options.type;
  if (is_shape(options.files[0])) {
    write_shape(options.files[0], options.files[1]);
    return 0;
  }
  const std::optional<BlockType> type = parse_type(name);
  if (!type) fail(ErrorKind::usage, "--type: unknown type \"{}\"", name);
  const StopSignals signals;
  Progress progress("converting");
  ConvertOptions wish;
  wish.in = options.files[0];
  wish.out = options.files[1];
  wish.type = *type;
  wish.threads = static_cast<int>(options.n_threads);
  wish.progress = show_stream(progress, signals);
  const ConvertResult result = convert(wish);
  progress.clear();
  print(fmt::format("{}: {}, {} tensors in {}{}{}\n", wish.out, result.architecture, result.n_tensors,
                    bytes_text(static_cast<int64_t>(result.bytes_out)),
                    result.n_mtp > 0 ? fmt::format(", {} MTP block(s)", result.n_mtp) : "",
                    result.tokenizer ? "" : ", without a tokenizer: the folder has none"));
  return 0;
}

}  // namespace onebit
