// One connection: reads requests, asks the application, writes replies, until either side has had enough.
#pragma once

#include <atomic>

#include "server/http.h"
#include "server/socket.h"

namespace onebit {

/// Serves requests until the client leaves, the connection is idle too long, or `stop_fd` becomes readable (a reply
/// under way is finished). `bodies_bytes` counts the bodies of all connections. Doesn't throw.
void serve_connection(Fd socket, int stop_fd, HttpApplication& application, const HttpLimits& limits,
                      std::atomic<size_t>& bodies_bytes);

/// Tells a client that there are too many connections; doesn't wait for it.
void refuse_connection(Fd socket, HttpApplication& application);

}  // namespace onebit
