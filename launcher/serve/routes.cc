#include "launcher/serve/routes.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr Route generate(const char* path, ParseCall parse) {
  return {.method = "POST", .path = path, .kind = RouteKind::generate, .parse = parse};
}
constexpr Route respond(const char* method, const char* path, Respond function) {
  return {.method = method, .path = path, .kind = RouteKind::respond, .respond = function};
}
constexpr Route built_in(const char* path, RouteKind kind) {
  return {.method = "GET", .path = path, .kind = kind};
}
constexpr Route refused(const char* path, const char* why) {
  return {.method = "POST", .path = path, .kind = RouteKind::refused, .why_refused = why};
}
constexpr Route anthropic(Route route) {
  route.error = message_error_body;
  return route;
}

constexpr Route kRoutes[] = {
    built_in("/", RouteKind::page),
    built_in("/health", RouteKind::health),
    built_in("/ping", RouteKind::ping),
    {.method = "POST", .path = "/ping", .kind = RouteKind::ping},
    built_in("/version", RouteKind::version),
    built_in("/load", RouteKind::load),
    built_in("/metrics", RouteKind::metrics),
    respond("GET", "/openapi.json", respond_openapi),
    respond("GET", "/v1/models", respond_models),
    respond("GET", "/v1/models/{model}", respond_model),
    respond("POST", "/tokenize", respond_tokenize),
    respond("POST", "/detokenize", respond_detokenize),
    generate("/v1/chat/completions", parse_chat_completion),
    generate("/v1/completions", parse_completion),
    generate("/v1/responses", parse_response),
    anthropic(generate("/v1/messages", parse_message)),
    anthropic(respond("POST", "/v1/messages/count_tokens", respond_count_tokens)),
    refused("/v1/embeddings", "this server generates text and computes no embeddings"),
    refused("/v1/audio/transcriptions", "this server reads no audio"),
    refused("/v1/rerank", "this server generates text and ranks no documents"),
    refused("/v1/score", "this server generates text and computes no scores"),
};

// What a path has in place of "{model}", "" if there is none; nullopt: it is not the route's path.
// The name of a model may contain slashes.
std::optional<std::string_view> model_of_path(const Route& route, std::string_view path) {
  constexpr std::string_view kModel = "{model}";
  std::string_view prefix = route.path;
  if (path == prefix && !prefix.ends_with(kModel)) return "";
  if (!prefix.ends_with(kModel)) return std::nullopt;
  prefix.remove_suffix(kModel.size());
  if (!path.starts_with(prefix) || path == prefix) return std::nullopt;
  return path.substr(prefix.size());
}

}  // namespace

RouteMatch find_route(std::string_view method, std::string_view path) {
  RouteMatch match;
  for (const Route& route : kRoutes) {
    const std::optional<std::string_view> model = model_of_path(route, path);
    if (!model) continue;
    const std::string_view served = route.method;
    if (method == served || (method == "HEAD" && served == "GET")) {
      return {.route = &route, .model = std::string(*model)};
    }
    match.methods += (match.methods.empty() ? "" : ", ") + std::string(served);
  }
  return match;
}

// --- Access ---

namespace {

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::string_view given_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  if (const std::string* value = request.header("Authorization")) {
    std::string scheme = value->substr(0, kBearer.size());
    std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (scheme == kBearer) return without_spaces(std::string_view(*value).substr(kBearer.size()));
  }
  const std::string* const key = request.header("X-Api-Key");
  return key == nullptr ? std::string_view() : without_spaces(*key);
}

}  // namespace

bool has_api_key(const HttpRequest& request, const std::vector<std::string>& keys) {
  const std::string_view given = given_key(request);
  bool found = false;
  for (const std::string& key : keys) found |= equal_in_constant_time(given, key);
  return found;
}

std::vector<std::string> read_api_keys(const std::string& path) {
  constexpr const char* kFix = "; pass a file with a key in each line";
  std::ifstream file(path);
  if (!file) fail("--api-key-file ", path, ": ", errno_text(errno), kFix);
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    const std::string_view key = without_spaces(line);
    if (!key.empty()) keys.emplace_back(key);
  }
  if (file.bad()) fail("--api-key-file ", path, ": cannot be read", kFix);
  if (keys.empty()) fail("--api-key-file ", path, ": has no key; write one into each line");
  return keys;
}

std::vector<HttpHeader> cors_headers(const HttpRequest& request,
                                     const std::vector<std::string>& allowed) {
  const std::string* const origin = request.header("Origin");
  if (origin == nullptr) return {};
  const bool all = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!all && std::find(allowed.begin(), allowed.end(), *origin) == allowed.end()) return {};
  std::vector<HttpHeader> headers = {{"Access-Control-Allow-Origin", all ? "*" : *origin},
                                     {"Access-Control-Expose-Headers", "X-Request-Id"}};
  if (!all) headers.push_back({"Vary", "Origin"});
  if (!is_preflight(request)) return headers;
  headers.push_back({"Access-Control-Allow-Methods", "GET, POST, OPTIONS"});
  const std::string* const wanted = request.header("Access-Control-Request-Headers");
  headers.push_back({"Access-Control-Allow-Headers", wanted != nullptr ? *wanted : "*"});
  headers.push_back({"Access-Control-Max-Age", "600"});
  return headers;
}

bool is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.header("Access-Control-Request-Method") != nullptr;
}

}  // namespace nvllm::launcher
