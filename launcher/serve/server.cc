#include "launcher/serve/server.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/json_text.h"
#include "base/logging.h"
#include "launcher/cli/program.h"
#include "launcher/serve/page/page.h"
#include "launcher/serve/prometheus.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kJson = "application/json";
constexpr std::size_t kMaxPoolThreads = 4;
constexpr std::size_t kMaxIdBytes = 128;  // of a client's X-Request-Id

HttpServerOptions http_options(const ServeOptions& options) {
  return {.host = options.host,
          .port = static_cast<std::uint16_t>(options.port),
          .unix_socket = options.uds,
          .tls_certificate = options.ssl_certfile,
          .tls_key = options.ssl_keyfile,
          .max_body_bytes = static_cast<std::size_t>(options.max_request_bytes),
          .max_unsent_bytes = static_cast<std::size_t>(options.max_unsent_bytes)};
}

std::vector<std::string> all_api_keys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    for (std::string& key : read_api_keys(options.api_key_file)) keys.push_back(std::move(key));
  }
  const char* const from_environment = std::getenv("NVLLM_API_KEY");
  if (from_environment != nullptr && *from_environment != '\0') {
    keys.emplace_back(from_environment);
  }
  return keys;
}

std::string new_id(std::uint64_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  // Differs from those of other servers, and of this one before a restart.
  static const auto salt = static_cast<std::uint64_t>(now_ns());
  std::string id;
  for (std::uint64_t value : {salt * 0x9e3779b97f4a7c15 + number, number}) {
    for (int i = 0; i < 12; ++i, value >>= 4) id += kDigits[value & 15];
  }
  return id;
}

}  // namespace

Server::Server(const ServeOptions& options)
    : options_(options),
      api_keys_(all_api_keys(options)),
      http_(http_options(options),
            {.request = [this](ExchangeId exchange,
                               HttpRequest request) { on_request(exchange, std::move(request)); },
             .gone = [this](ExchangeId exchange) { on_gone(exchange); },
             .error_body = [](int status,
                              const std::string& why) { return error_body(status, why); }}) {}

Server::~Server() {
  stop(Nanoseconds(0));
}

void Server::open(EnginePort& engine, ApiContext context, const ServerMetricsOptions& metrics) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::lock_guard lock(mutex_);
  if (!pool_) pool_.emplace(std::min(cores, kMaxPoolThreads));
  if (!context_) context_.emplace(std::move(context));
  if (!metrics_) metrics_.emplace(metrics);
  engine_ = &engine;
}

void Server::drain() {
  draining_ = true;
}

const ServerMetrics* Server::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_ ? &*metrics_ : nullptr;
}

std::size_t Server::open_requests() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

bool Server::stop(Nanoseconds limit) {
  http_.stop();
  return !pool_ || pool_->stop(limit);
}

bool Server::pause(Nanoseconds limit) {
  // The HTTP server's thread still sends what was answered meanwhile.
  if (pool_ && !pool_->pause(limit)) return false;
  http_.pause();
  return true;
}

void Server::resume() {
  if (pool_) pool_->resume();
  http_.resume();
}

// --- The HTTP server's thread ---

void Server::on_request(ExchangeId exchange, HttpRequest request) {
  std::vector<HttpHeader> headers = cors_headers(request, options_.allowed_origins);
  if (is_preflight(request)) return answer(exchange, 204, std::move(headers), nullptr, "");
  if (request.path == options_.root_path) request.path += '/';
  if (request.path.starts_with(options_.root_path + "/")) {
    request.path.erase(0, options_.root_path.size());
  }
  const RouteMatch match = find_route(request.method, request.path);
  if (match.route == nullptr && !match.methods.empty()) {
    headers.push_back({"Allow", match.methods});
    return refuse(exchange, nullptr, 405,
                  str(request.method.substr(0, 16), " is no method of ", request.path, "; use ",
                      match.methods),
                  std::move(headers));
  }
  if (match.route == nullptr) {
    return refuse(exchange, nullptr, 404,
                  str("there is no ", request.path.substr(0, 100),
                      " here; /openapi.json lists what there is"),
                  std::move(headers));
  }
  if (match.route->guarded() && !api_keys_.empty() && !has_api_key(request, api_keys_)) {
    headers.push_back({"WWW-Authenticate", "Bearer"});
    return refuse(exchange, match.route, 401,
                  "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                  std::move(headers));
  }
  if (!match.model.empty()) request.body = match.model;  // of a GET, which has no other
  route(*match.route, exchange, std::move(request), std::move(headers));
}

void Server::route(const Route& route, ExchangeId exchange, HttpRequest request,
                   std::vector<HttpHeader> headers) {
  switch (route.kind) {
    case RouteKind::page: return answer_page(exchange, request, std::move(headers));
    case RouteKind::health:
    case RouteKind::ping: {
      const std::optional<std::string> busy = busy_reason();
      if (busy) return refuse(exchange, &route, 503, *busy, std::move(headers));
      return answer(exchange, 200, std::move(headers), kJson, "{}");
    }
    case RouteKind::version:
      return answer(exchange, 200, std::move(headers), kJson,
                    str("{\"version\": \"", kVersion, "\"}"));
    case RouteKind::load:
      return answer(exchange, 200, std::move(headers), kJson,
                    str("{\"server_load\": ", open_requests(), "}"));
    case RouteKind::metrics: {
      const ServerMetrics* const figures = metrics();
      if (figures == nullptr) {
        return refuse(exchange, &route, 503, "the model is being loaded", std::move(headers));
      }
      return answer(exchange, 200, std::move(headers), kPrometheusContentType, figures->text());
    }
    case RouteKind::refused:
      return refuse(exchange, &route, 400, route.why_refused, std::move(headers));
    case RouteKind::respond:
    case RouteKind::generate: return admit(route, exchange, std::move(request), std::move(headers));
  }
}

void Server::answer_page(ExchangeId exchange, const HttpRequest& request,
                         std::vector<HttpHeader> headers) {
  const ChatPage& page = chat_page();
  headers.push_back({"ETag", std::string(page.etag)});
  headers.push_back({"Cache-Control", "no-cache"});
  const std::string* const known = request.header("If-None-Match");
  if (known != nullptr && *known == page.etag) {
    return answer(exchange, 304, std::move(headers), nullptr, "");
  }
  headers.push_back({"Content-Security-Policy", std::string(page.content_security_policy)});
  headers.push_back({"X-Content-Type-Options", "nosniff"});
  headers.push_back({"Referrer-Policy", "no-referrer"});
  headers.push_back({"Vary", "Accept-Encoding"});
  const std::string* const accepted = request.header("Accept-Encoding");
  const bool gzip = accepted != nullptr && accepted->find("gzip") != std::string::npos;
  if (gzip) headers.push_back({"Content-Encoding", "gzip"});
  answer(exchange, 200, std::move(headers), "text/html; charset=utf-8",
         std::string(gzip ? page.gzip : page.html));
}

void Server::answer(ExchangeId exchange, int status, std::vector<HttpHeader> headers,
                    const char* content_type, std::string body) {
  if (content_type != nullptr) headers.push_back({"Content-Type", content_type});
  std::vector<HttpOutput> outputs(1);
  outputs[0] = {.exchange = exchange,
                .status = status,
                .headers = std::move(headers),
                .body = std::move(body),
                .last = true};
  http_.send(std::move(outputs));
}

void Server::refuse(ExchangeId exchange, const Route* route, int status, const std::string& why,
                    std::vector<HttpHeader> headers) {
  if (status == 503) headers.push_back({"Retry-After", "1"});
  // So that the client, or a proxy, tries again elsewhere and not on this connection.
  if (status == 503 && draining_) headers.push_back({"Connection", "close"});
  auto* const error = route != nullptr ? route->error : error_body;
  answer(exchange, status, std::move(headers), kJson, error(status, why, ""));
}

// Why requests are currently rejected.
std::optional<std::string> Server::busy_reason() const {
  if (draining_) return "the server is shutting down";
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) return no_engine_;
  return std::nullopt;
}

void Server::admit(const Route& route, ExchangeId exchange, HttpRequest request,
                   std::vector<HttpHeader> headers) {
  std::optional<std::string> busy = busy_reason();
  // Must be complete before it is added to the jobs, all of which the engine's thread reads.
  auto job = std::make_shared<Job>();
  const std::string* const id = request.header("X-Request-Id");
  const bool has_id = id != nullptr && !id->empty() && id->size() <= kMaxIdBytes;
  job->exchange = exchange;
  job->route = &route;
  job->info = {.id = has_id ? *id : new_id(++last_request_), .created_s = std::time(nullptr)};
  job->headers = std::move(headers);
  job->headers.push_back({"X-Request-Id", job->info.id});
  if (const std::string* parent = request.header("traceparent")) job->trace_parent = *parent;
  job->received_ns = now_ns();
  job->body = std::move(request.body);
  {
    const std::lock_guard lock(mutex_);
    if (!busy && route.kind == RouteKind::generate) {
      if (queued_requests_ >= options_.max_queued_requests) {
        busy = str("too many requests wait: ", queued_requests_,
                   "; see --max-num-queued-reqs, or try again later");
      } else if (queued_tokens_ >= options_.max_queued_tokens) {
        busy = str("prompts of ", queued_tokens_,
                   " tokens wait; see --max-num-queued-tokens, or try again later");
      }
    }
    if (!busy) {
      jobs_.emplace(exchange, job);
      job->counted_as_queued = route.kind == RouteKind::generate;
      queued_requests_ += job->counted_as_queued ? 1 : 0;
    }
  }
  if (busy) return refuse(exchange, &route, 503, *busy, job->headers);
  pool_->run([this, job] { read_body(job); });
}

// The client disconnected: its sequences can be aborted.
void Server::on_gone(ExchangeId exchange) {
  JobPtr job;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(exchange);
    if (found == jobs_.end()) return;
    job = found->second;
  }
  if (!claim(job)) return;
  log(*job, 499);
  // If the pool is just submitting it, the pool sees that the job has ended, and aborts it.
  abort_engine_requests(*job);
}

// --- The pool ---

void Server::read_body(const JobPtr& job) {
  if (job->ended) return;
  try {
    if (job->route->kind == RouteKind::respond) {
      std::string body = job->route->respond(*context_, job->body);
      return finish(job, 200, std::move(body));
    }
    job->call = job->route->parse(*context_, job->info, job->body);
    job->body = std::string();
    submit(job);
  } catch (const ApiError& error) {
    fail(job, error.status(), error.what(), error.param());
  } catch (const Error& error) {
    fail(job, 400, error.what());
  } catch (const std::exception& error) {
    fail_unforeseen(job, error);
  }
}

void Server::submit(const JobPtr& job) {
  // Moved out: once the first is submitted, the call belongs to the engine's thread.
  const std::vector<runtime::Request> requests = std::exchange(job->call->requests(), {});
  std::vector<std::int64_t> lengths;
  for (const runtime::Request& request : requests) {
    lengths.push_back(static_cast<std::int64_t>(request.prompt.size()));
    job->prompt_tokens += lengths.back();
    job->open_answers += request.sampling.n;
    job->n = request.sampling.n;
    if (request.sampling.max_tokens) job->max_tokens = *request.sampling.max_tokens;
  }
  job->aborted.assign(requests.size(), 0);
  job->answers.resize(static_cast<std::size_t>(job->open_answers));
  EnginePort* engine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (job->ended) return;
    engine = engine_;
    job->prompt_lengths = std::move(lengths);
    job->first_engine_request = last_engine_request_ + 1;
    last_engine_request_ += requests.size();
    if (engine != nullptr) {
      queued_tokens_ += job->counted_as_queued ? job->prompt_tokens.load() : 0;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        engine_requests_.emplace(job->first_engine_request + i, EngineRequest{job, i});
      }
    }
  }
  if (engine == nullptr) return fail(job, 503, busy_reason().value_or("the engine is starting"));
  engine->submit(job->first_engine_request, requests);
  if (job->ended) abort_engine_requests(*job);
}

}  // namespace nvllm::launcher
