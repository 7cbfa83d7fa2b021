// From a path to its handler, with the checks in front and the errors behind.
#include "server/application.h"

#include "server/answering.h"
#include "server/api_error.h"

namespace onebit {

namespace {

constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

ApiError not_found(const std::string& path) {
  return {404, error_type(404), fmt::format("there is nothing at {}", printable(path))};
}

}  // namespace

const Application::Route Application::kRoutes[] = {
    {"GET", "/", &Application::page, false},
    {"GET", "/health", &Application::health, false},
    {"GET", "/v1/health", &Application::health, false},
    {"GET", "/v1/models", &Application::models},
    {"GET", "/models", &Application::models},
    {"GET", "/props", &Application::props},
    {"GET", "/slots", &Application::slots},
    {"GET", "/metrics", &Application::metrics},
    {"POST", "/v1/chat/completions", &Application::chat_completions},
    {"POST", "/chat/completions", &Application::chat_completions},
    {"POST", "/v1/completions", &Application::text_completions},
    {"POST", "/completion", &Application::native_completion},
    {"POST", "/completions", &Application::native_completion},
    {"POST", "/tokenize", &Application::tokenize},
    {"POST", "/detokenize", &Application::detokenize},
    {"POST", "/apply-template", &Application::apply_template},
    {"POST", "/v1/responses", nullptr},
    {"POST", "/v1/messages", nullptr},
    {"POST", "/v1/messages/count_tokens", nullptr},
    {"POST", "/v1/embeddings", nullptr},
    {"POST", "/embeddings", nullptr},
    {"POST", "/embedding", nullptr},
    {"POST", "/v1/rerank", nullptr},
    {"POST", "/rerank", nullptr},
    {"POST", "/infill", nullptr},
    {"POST", "/props", nullptr},
    {"POST", "/slots/", &Application::slot_action},  // and all below
    {"GET", "/lora-adapters", nullptr},
    {"POST", "/lora-adapters", nullptr},
};

Application::Application(const ServerOptions& options, spdlog::logger& logger, bool loopback)
    : options_(options), logger_(logger), guard_({loopback, options.api_keys, options.cors_origins}) {}

/// Throws ApiError 404, 405 or 501.
const Application::Route& Application::find_route(const HttpRequest& request) const {
  const Route* other_method = nullptr;
  for (const Route& route : kRoutes) {
    const std::string_view path = route.path;
    const bool below = path.size() > 1 && path.ends_with('/') && request.path.starts_with(path);
    if (!below && request.path != path) continue;
    if (request.method != route.method) {
      other_method = &route;
    } else if (route.handler == nullptr) {
      throw not_supported(fmt::format("{} {} is not supported by this server", route.method, path));
    } else {
      return route;
    }
  }
  if (other_method == nullptr) throw not_found(request.path);
  throw ApiError(
      405, error_type(405),
      fmt::format("{}: expected {}, found {}", printable(request.path), other_method->method, request.method));
}

std::optional<HttpReply> Application::refuse(const HttpRequest& head) {
  try {
    bool needs_key = true;
    for (const Route& route : kRoutes) {
      if (head.path == route.path && head.method == route.method) needs_key = route.needs_key;
    }
    if (head.method == "OPTIONS") needs_key = false;
    guard_.check(head, needs_key);
    const std::string type = head.header("Content-Type").value_or("");
    if (type.starts_with("multipart/"))
      throw ApiError(415, error_type(415), "expected a body of type application/json");
  } catch (...) {
    return failed(head, as_api_error(std::current_exception()));
  }
  return std::nullopt;
}

HttpReply Application::handle(HttpRequest& request) {
  HttpReply reply;
  try {
    reply = answer(request);
  } catch (...) {
    reply = failed(request, as_api_error(std::current_exception()));
  }
  for (auto& header : guard_.cors_headers(request)) reply.headers.push_back(std::move(header));
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  return reply;
}

HttpReply Application::answer(HttpRequest& request) {
  if (request.method == "OPTIONS") return preflight(request);
  const Route& route = find_route(request);
  Serving* serving = serving_;
  if (route.handler == &Application::page) return page(*serving, request);
  if (serving == nullptr) throw loading();
  return (this->*route.handler)(*serving, request);
}

HttpReply Application::failed(const HttpRequest& request, const ApiError& error) {
  Serving* serving = serving_;
  if (serving != nullptr) serving->metrics().count_error(error.status());
  // The message may quote the request, so it stays between us and the client. Before the model is loaded, failing is
  // nothing to tell.
  const bool tell = error.status() >= 500 && error.status() != 501 && serving != nullptr;
  logger_.log(tell ? spdlog::level::warn : spdlog::level::debug, "{} {}: {} {}", request.method,
              printable(request.path), error.status(), error.type());
  return error_reply(error);
}

HttpReply Application::broken(int status, const std::string& why) {
  return error_reply({status, error_type(status), why});
}

ApiError Application::loading() const {
  return {503, error_type(503), "Loading model", {{"progress", progress_.load()}}};
}

HttpReply Application::preflight(const HttpRequest& request) const {
  HttpReply reply;
  reply.status = 204;
  reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  reply.headers.emplace_back("Access-Control-Allow-Headers",
                             request.header("Access-Control-Request-Headers").value_or("*"));
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

HttpReply Application::page(Serving&, HttpRequest&) {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.headers = {
      {"Content-Security-Policy", kPagePolicy}, {"Referrer-Policy", "no-referrer"}, {"Cache-Control", "no-cache"}};
  reply.body = kPageHtml;
  return reply;
}

HttpReply Application::generate(Serving& serving, Api api, HttpRequest& request) {
  return answer_request(serving, api, request, {options_.keep_alive_s, &logger_});
}

HttpReply Application::chat_completions(Serving& serving, HttpRequest& request) {
  return generate(serving, Api::chat, request);
}

HttpReply Application::text_completions(Serving& serving, HttpRequest& request) {
  return generate(serving, Api::completion, request);
}

HttpReply Application::native_completion(Serving& serving, HttpRequest& request) {
  return generate(serving, Api::native, request);
}

}  // namespace onebit
