// The API: which paths there are, who may call them, and what each answers. Works from the first connection on; until
// the model is loaded, all but the page answers 503 with the progress of loading.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/guard.h"
#include "server/http.h"
#include "server/server.h"
#include "server/serving.h"

namespace onebit {

class Application : public HttpApplication {
 public:
  /// `options` and `logger` must outlive the object. `loopback`: the server is bound to a loopback address.
  Application(const ServerOptions& options, spdlog::logger& logger, bool loopback);

  void set_progress(double share) { progress_ = share; }
  /// From here on requests are served.
  void set_serving(Serving* serving) { serving_ = serving; }

  std::optional<HttpReply> refuse(const HttpRequest& head) override;
  HttpReply handle(HttpRequest& request) override;
  HttpReply broken(int status, const std::string& why) override;

 private:
  using Handler = HttpReply (Application::*)(Serving&, HttpRequest&);
  struct Route {
    const char* method;
    const char* path;
    Handler handler;  // null: known, but not offered
    bool needs_key = true;
  };
  static const Route kRoutes[];

  const Route& find_route(const HttpRequest& request) const;
  HttpReply answer(HttpRequest& request);
  HttpReply failed(const HttpRequest& request, const ApiError& error);
  ApiError loading() const;
  HttpReply preflight(const HttpRequest& request) const;

  HttpReply page(Serving& serving, HttpRequest& request);
  HttpReply health(Serving& serving, HttpRequest& request);
  HttpReply models(Serving& serving, HttpRequest& request);
  HttpReply props(Serving& serving, HttpRequest& request);
  HttpReply slots(Serving& serving, HttpRequest& request);
  HttpReply slot_action(Serving& serving, HttpRequest& request);
  HttpReply metrics(Serving& serving, HttpRequest& request);
  HttpReply tokenize(Serving& serving, HttpRequest& request);
  HttpReply detokenize(Serving& serving, HttpRequest& request);
  HttpReply apply_template(Serving& serving, HttpRequest& request);
  HttpReply chat_completions(Serving& serving, HttpRequest& request);
  HttpReply text_completions(Serving& serving, HttpRequest& request);
  HttpReply native_completion(Serving& serving, HttpRequest& request);
  HttpReply generate(Serving& serving, Api api, HttpRequest& request);

  const ServerOptions& options_;
  spdlog::logger& logger_;
  Guard guard_;
  std::atomic<double> progress_ = 0;
  std::atomic<Serving*> serving_ = nullptr;
};

/// The web page (page.html).
extern const char* const kPageHtml;

}  // namespace onebit
