// Routes: the handler of each path.
#pragma once

#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

// The kind of handler.
enum class RouteKind : std::uint8_t {
  page,      // the chat page
  health,    // 200 while the engine serves, else 503
  ping,      // the same
  version,   // the program's version
  load,      // how many requests are under way
  metrics,   // for Prometheus
  respond,   // a function of the body, in the pool
  generate,  // a request to the engine
  refused,   // an endpoint of other servers, with the reason why it is not supported
};

struct Route {
  const char* method;
  const char* path;
  RouteKind kind;
  Respond respond = nullptr;
  ParseCall parse = nullptr;
  const char* why_refused = nullptr;
  // The error object of this API.
  std::string (*error)(int status, std::string_view message, std::string_view param) = error_body;

  // Whether it needs an API key where there are any.
  bool guarded() const { return std::string_view(path).starts_with("/v1/"); }
};

// The result of a lookup by path and method.
struct RouteMatch {
  const Route* route = nullptr;
  // The path's other methods, "GET, POST", if this one is not supported; empty: unknown path.
  std::string methods = "";
};
RouteMatch find_route(std::string_view method, std::string_view path);

}  // namespace nvllm::launcher
