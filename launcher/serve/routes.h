// Routing of requests: the handler of each path, and who may call it: API keys, and CORS for web
// pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/http/http_server.h"

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
  const char* path;  // "{model}" at the end stands for the name of a model
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
  std::string model = "";  // what the path has in place of "{model}"
};
RouteMatch find_route(std::string_view method, std::string_view path);

// --- Access ---

// Whether the request has one of the keys, as "Authorization: Bearer KEY" or "X-Api-Key: KEY". Its
// timing reveals nothing about a key but its length.
bool has_api_key(const HttpRequest& request, const std::vector<std::string>& keys);

// Reads keys from a file, one per line. Throws an Error if there are none.
std::vector<std::string> read_api_keys(const std::string& path);

// CORS headers for the response to this request; allowed: origins, or "*" for all.
std::vector<HttpHeader> cors_headers(const HttpRequest& request,
                                     const std::vector<std::string>& allowed);

// Whether it is a browser's CORS preflight request.
bool is_preflight(const HttpRequest& request);

}  // namespace nvllm::launcher
