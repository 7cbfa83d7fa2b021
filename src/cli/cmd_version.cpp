// `1bit version` and `1bit help`.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/version.h"

namespace onebit {

int cmd_version(const Options&) {
  print(fmt::format("1bit {} ({}, {})\n", kVersionNumber, kBuildType, kCompiler));
  return 0;
}

int cmd_help(const Options& options) {
  if (options.files.empty()) {
    print(help_text());
  } else if (options.files.front() == "markdown") {
    print(help_markdown());
  } else {
    print(help_text(find_command(options.files.front())));
  }
  return 0;
}

}  // namespace onebit
