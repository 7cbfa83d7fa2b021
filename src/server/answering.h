// One request from body to reply: submitted to the engine, followed to its end as a stream or as a whole, cancelled
// when the client leaves.
#pragma once

#include <spdlog/logger.h>

#include "server/http.h"
#include "server/serving.h"

namespace onebit {

struct AnsweringOptions {
  int keep_alive_s = 10;
  spdlog::logger* logger = nullptr;
};

/// Blocks until the answer is complete, unless it is to be streamed. Throws ApiError and Error.
HttpReply answer_request(Serving& serving, Api api, HttpRequest& request, const AnsweringOptions& options);

}  // namespace onebit
