// `1bit serve`: one model behind an HTTP API. Owns the listener, the engine and the thread that runs it. In: options;
// out: replies and streams to clients, one log line per request on the logger.
#pragma once

#include <spdlog/logger.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "server/http.h"

namespace onebit {

struct ServerOptions {
  EngineOptions engine;
  std::string host = "127.0.0.1";
  int port = 8000;                        // 0: any free one
  std::string version = "1bit";           // told in /props
  std::string alias;                      // the served model's id; empty: the file's name without .gguf
  std::vector<std::string> api_keys;      // empty: no key is asked for
  bool allow_open = false;                // listen beyond loopback without a key
  std::vector<std::string> cors_origins;  // sites whose pages may call, beside this server's own and loopback ones

  std::string chat_template;                                                  // replaces the file's when not empty
  nlohmann::ordered_json template_kwargs = nlohmann::ordered_json::object();  // defaults of chat_template_kwargs
  std::string reasoning_format = "auto";                                      // auto, deepseek or none
  std::function<SamplingOptions(SamplingOptions)> sampling;  // the file's recommendation -> the requests' defaults
  std::optional<uint64_t> seed;                              // of requests without one; absent: a new one each time
  int64_t max_tokens = -1;                                   // of requests without one

  std::string slot_save_path;  // folder of saved slots; empty: they can't be saved

  int64_t max_queue = 64;         // requests that wait for a slot; more are refused with 503
  int64_t max_messages = 10'000;  // of a conversation
  int keep_alive_s = 10;          // a comment is sent when a stream has been silent for this long
  HttpLimits http;

  std::shared_ptr<spdlog::logger> logger;                 // absent: to stderr
  std::function<void(const std::string& url)> on_listen;  // called once connections are accepted
  /// Called when the engine can't be stopped in time (it is inside a long step): the place to end the process.
  std::function<void()> on_overdue;
};

class Server {
 public:
  /// Throws Error(usage) for options that don't fit each other.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;

  /// Listens, loads the engine, serves until stop(). Throws what loading threw, and Error(runtime) when it can't listen
  /// or the engine breaks down. Once.
  void run();
  /// Ends run(): requests under way end with an error. From any thread or a signal handler.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onebit
