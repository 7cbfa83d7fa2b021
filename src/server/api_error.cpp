// Kinds of errors to statuses, statuses to types.
#include "server/api_error.h"

#include <new>

namespace onebit {

namespace {

/// Seconds after which it makes sense to ask again.
constexpr const char* kRetryAfter = "2";

ErrorKind kind_of_status(int status) { return status < 500 ? ErrorKind::usage : ErrorKind::runtime; }

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::refused:
      return 400;
    case ErrorKind::out_of_memory:
      return 503;
    case ErrorKind::runtime:
      break;
  }
  return 500;
}

}  // namespace

ApiError::ApiError(int status, std::string type, const std::string& message, Json details)
    : Error(kind_of_status(status), message), status_(status), type_(std::move(type)), details_(std::move(details)) {}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

ApiError invalid_request(const std::string& message) { return {400, error_type(400), message}; }
ApiError not_supported(const std::string& message) { return {501, error_type(501), message}; }
ApiError unavailable(const std::string& message) { return {503, error_type(503), message}; }

ApiError too_long(int64_t n_prompt_tokens, int64_t n_ctx) {
  const std::string message = fmt::format(
      "the prompt has {} tokens, the context holds {} and the answer needs at least one; shorten the prompt or start "
      "the server with a larger --ctx-size",
      n_prompt_tokens, n_ctx);
  return {400, "exceed_context_size_error", message, {{"n_prompt_tokens", n_prompt_tokens}, {"n_ctx", n_ctx}}};
}

Json error_json(const ApiError& error) {
  Json body = {{"code", error.status()}, {"message", error.what()}, {"type", error.type()}};
  body.update(error.details());
  return {{"error", std::move(body)}};
}

ApiError as_api_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    const int status = status_of(error.kind());
    return {status, error_type(status), error.what()};
  } catch (const std::bad_alloc&) {
    return unavailable("out of memory while serving this request");
  } catch (const std::exception& error) {
    return {500, error_type(500), fmt::format("internal error: {}", error.what())};
  }
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply;
  reply.status = error.status();
  if (error.status() == 503 || error.status() == 429) reply.headers.emplace_back("Retry-After", kRetryAfter);
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  reply.body = to_text(error_json(error));
  return reply;
}

}  // namespace onebit
