// Errors as clients see them: a status, a type and a message in llama-server's shape.
#pragma once

#include <exception>
#include <string>

#include "base/error.h"
#include "server/http.h"
#include "server/json.h"

namespace onebit {

/// An error with its own status; others are given one by their kind (see error_reply).
class ApiError : public Error {
 public:
  ApiError(int status, std::string type, const std::string& message, Json details = Json::object());
  int status() const { return status_; }
  const std::string& type() const { return type_; }
  /// Further fields of the error object.
  const Json& details() const { return details_; }

 private:
  int status_;
  std::string type_;
  Json details_;
};

ApiError invalid_request(const std::string& message);       // 400
ApiError not_supported(const std::string& message);         // 501
ApiError unavailable(const std::string& message);           // 503
ApiError too_long(int64_t n_prompt_tokens, int64_t n_ctx);  // 400, exceed_context_size_error

/// {"error": {code, message, type, ...}}
Json error_json(const ApiError& error);
/// The one place where exceptions become replies.
ApiError as_api_error(const std::exception_ptr& exception);
HttpReply error_reply(const ApiError& error);
/// The type that goes with a status.
const char* error_type(int status);

}  // namespace onebit
