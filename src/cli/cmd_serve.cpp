// `1bit serve`: flags to the server's options, signals to its stop().
#include <unistd.h>

#include <fmt/ranges.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/version.h"
#include "server/server.h"

namespace onebit {
namespace {

constexpr size_t kMaxKeyFile = 64 << 10;

/// Keys of the command line and those of a file, one a line.
std::vector<std::string> read_keys(const Options& options) {
  std::vector<std::string> keys = options.api_keys;
  if (options.api_key_file.empty()) return keys;
  std::string text = read_input(options.api_key_file, kMaxKeyFile);
  std::string key;
  for (const char c : text + "\n") {
    if (c != '\n' && c != '\r') {
      key += c;
    } else if (!key.empty()) {
      keys.push_back(std::move(key));
      key.clear();
    }
  }
  if (keys.size() == options.api_keys.size())
    refuse("{}: expected a key on each line, found none", options.api_key_file);
  return keys;
}

/// Refused unless it is a folder.
std::string slot_folder(const std::string& path) {
  if (path.empty() || std::filesystem::is_directory(path)) return path;
  fail(ErrorKind::usage, "--slot-save-path: expected a folder, found {}", path);
}

ServerOptions server_options(const Options& options, const EngineSetup& setup) {
  ServerOptions server;
  server.engine = setup.engine;
  server.host = options.host;
  server.port = static_cast<int>(options.port);
  server.version = fmt::format("1bit {}", kVersionNumber);
  server.alias = options.alias;
  server.api_keys = read_keys(options);
  server.allow_open = options.allow_open;
  server.cors_origins = options.cors_origins;
  server.chat_template = chat_template(options);
  server.template_kwargs = template_kwargs(options);
  server.reasoning_format = options.reasoning_format;
  server.sampling = [options](SamplingOptions base) { return sampling_options(options, std::move(base)); };
  if (options.seed >= 0) server.seed = static_cast<uint64_t>(options.seed);
  server.max_tokens = options.n_predict.value_or(-1);
  server.max_queue = options.max_queue;
  server.slot_save_path = slot_folder(options.slot_save_path);
  server.on_overdue = [] { ::_exit(0); };
  return server;
}

/// Stops the server when a signal comes; ends with the object.
class StopOnSignal {
 public:
  StopOnSignal(Server& server, StopSignals& signals)
      : signals_(signals), thread_([&] {
          signals.wait();
          server.stop();
        }) {}
  ~StopOnSignal() {
    signals_.wake();
    thread_.join();
  }
  StopOnSignal(const StopOnSignal&) = delete;

 private:
  StopSignals& signals_;
  std::thread thread_;
};

}  // namespace

int cmd_serve(Options options) {
  StopSignals signals;
  const EngineSetup setup = set_up_engine(options);
  for (const std::string& warning : setup.warnings) notice("serve", warning);
  for (const AppliedRecipe& recipe : setup.recipes) {
    notice("serve", fmt::format("recipe {}: {}", recipe.id, fmt::join(recipe.added, " ")));
  }
  Server server(server_options(options, setup));
  const StopOnSignal stop(server, signals);
  server.run();
  return 0;
}

}  // namespace onebit
