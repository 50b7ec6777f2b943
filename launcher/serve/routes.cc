#include "launcher/serve/routes.h"

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

}  // namespace

RouteMatch find_route(std::string_view method, std::string_view path) {
  RouteMatch match;
  for (const Route& route : kRoutes) {
    if (path != route.path) continue;
    const std::string_view served = route.method;
    if (method == served || (method == "HEAD" && served == "GET")) return {.route = &route};
    match.methods += (match.methods.empty() ? "" : ", ") + std::string(served);
  }
  return match;
}

}  // namespace nvllm::launcher
