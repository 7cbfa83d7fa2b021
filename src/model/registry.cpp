#include "model/registry.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/trunks.h"

namespace onebit {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kAll = {
      {.name = "qwen3", .trunk = qwen3_trunk},
      {.name = "qwen3moe", .moe = true, .trunk = qwen3_trunk},
      {.name = "llama", .rope = RopeStyle::normal, .trunk = llama_trunk},
      {.name = "qwen35", .hybrid = true, .trunk = qwen35_trunk},
      {.name = "qwen35moe", .moe = true, .hybrid = true, .trunk = qwen35_trunk},
      {.name = "qwen3next", .moe = true, .hybrid = true, .head_map = HeadMap::grouped, .trunk = qwen35_trunk},
  };
  return kAll;
}

const Architecture& find_architecture(const GgufFile& file) {
  const std::string name = file.architecture();
  std::string known;
  for (const Architecture& arch : architectures()) {
    if (arch.name == name) return arch;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", arch.name);
  }
  if (name == kDrafterArchitecture) {
    refuse("{}: this is a drafter; give it with --dflash, and a target model with -m", file.path());
  }
  refuse("{}: architecture {} is not supported; supported: {}", file.path(), printable(name), known);
}

}  // namespace onebit
