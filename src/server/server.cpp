// Start and end: listener first, then the engine on a thread of its own; in the end the other way round.
#include "server/server.h"

#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "server/application.h"
#include "server/http_listener.h"
#include "server/serving.h"
#include "server/socket.h"

namespace onebit {

namespace {

/// What the engine gets to end its last step before on_overdue is called.
constexpr int kEngineEndMs = 3000;

std::string url_of(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", v6 ? "[" + host + "]" : host, port);
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions o) : options(std::move(o)) {}

  void run_engine();
  void load();
  void end_engine(std::thread& engine);

  ServerOptions options;
  std::shared_ptr<spdlog::logger> logger;
  std::unique_ptr<Application> application;
  std::unique_ptr<Serving> serving;      // made by the engine's thread
  std::atomic<Serving*> live = nullptr;  // the same, once it is complete
  std::atomic<bool> stopping = false;
  Event end;           // stop() was called, or the engine's thread has ended
  Event engine_ended;  // the latter
  std::exception_ptr failure;
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  const ServerOptions& o = impl_->options;
  for (const std::string& key : o.api_keys) {
    if (key.empty()) fail(ErrorKind::usage, "--api-key: a key is empty");
  }
  if (o.reasoning_format != "auto" && o.reasoning_format != "deepseek" && o.reasoning_format != "none") {
    fail(ErrorKind::usage, "--reasoning-format: expected auto, deepseek or none, found '{}'", o.reasoning_format);
  }
  if (!o.template_kwargs.is_object()) fail(ErrorKind::usage, "--chat-template-kwargs: expected a JSON object");
  impl_->logger = o.logger;
  if (!impl_->logger) {
    impl_->logger = std::make_shared<spdlog::logger>("server", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    impl_->logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
  }
}

Server::~Server() = default;

void Server::stop() {
  impl_->stopping = true;
  impl_->end.signal();
}

void Server::run() {
  Impl& s = *impl_;
  SocketAddress address = resolve_address(s.options.host, s.options.port);
  if (!address.loopback && s.options.api_keys.empty() && !s.options.allow_open) {
    fail(ErrorKind::usage,
         "--host {}: anybody who reaches this address could use the server; give an --api-key, or allow it with "
         "--allow-open",
         s.options.host);
  }
  Fd socket = listen_on(address, s.options.host);
  s.application = std::make_unique<Application>(s.options, *s.logger, address.loopback);
  std::thread engine;
  {
    HttpListener listener(std::move(socket), *s.application, s.options.http);
    const std::string url = url_of(s.options.host, address.port());
    s.logger->info("listening on {}", url);
    if (s.options.on_listen) s.options.on_listen(url);
    engine = std::thread([&s] { s.run_engine(); });
    pollfd fd{s.end.fd(), POLLIN, 0};
    while (::poll(&fd, 1, -1) <= 0) continue;
    s.logger->info("stopping");
  }  // waits for the connections; each one ends its request
  s.end_engine(engine);
  if (s.failure && !s.stopping) std::rethrow_exception(s.failure);
}

/// The engine's thread.
void Server::Impl::run_engine() {
  try {
    load();
    live = serving.get();
    application->set_serving(serving.get());
    if (stopping) serving->stop();  // it came before `live` was set
    serving->run();
  } catch (...) {
    failure = std::current_exception();
  }
  engine_ended.signal();
  end.signal();
}

void Server::Impl::load() {
  EngineOptions engine = options.engine;
  engine.on_progress = [this](double share) {
    if (stopping) fail(ErrorKind::runtime, "stopped while loading");
    application->set_progress(share);
    if (options.engine.on_progress) options.engine.on_progress(share);
  };
  serving = std::make_unique<Serving>(options, engine);
  for (const std::string& warning : serving->engine().warnings()) logger->warn("{}", warning);
  if (const std::string doubt = serving->check_drafter(); !doubt.empty()) logger->warn("{}", doubt);
  const EngineOptions& o = serving->engine().options();
  logger->info("ready: {} on {}, {} slots of {} tokens, drafter {}", serving->model_id(),
               serving->engine().device().name, o.n_slots, o.n_ctx, serving->drafter_kind());
}

void Server::Impl::end_engine(std::thread& engine) {
  if (Serving* s = live) s->stop();
  pollfd fd{engine_ended.fd(), POLLIN, 0};
  if (::poll(&fd, 1, kEngineEndMs) == 0 && options.on_overdue) {
    logger->warn("the engine is still inside a step");
    options.on_overdue();
  }
  engine.join();
}

}  // namespace onebit
