// Server: passes requests between connections, the thread pool and the engine.
//
//   Server server(options);               // binds; throws an Error if it cannot
//   ... fork the workers ...
//   server.start();                       // answers /health with 503 from here on
//   server.open(port, context, metrics);  // the engine is there
//   while (...) server.apply(client.poll(limit), client.load());
//   server.close_engine("rank 1 (pid 4711) killed by SIGKILL");   // and open() again
//
// Threads: the HTTP server's thread brings requests, the pool reads their bodies and submits them,
// the engine's thread calls apply() and the other public functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/serve/http/http_server.h"
#include "launcher/serve/metrics.h"
#include "launcher/serve/routes.h"
#include "launcher/serve/worker_pool.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// EnginePort: the server's interface to the engine. Implemented with a session's EngineClient, and
// by a mock engine for tests and measurements of the server alone. May be called by any thread.
// Updates reach the server through Server::apply().
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  // Submits requests under ids that no unfinished ones have: first_id, first_id + 1, ...
  virtual void submit(std::uint64_t first_id, const std::vector<runtime::Request>& requests) = 0;
  // The request's updates end with FinishReason::abort, unless it finished before.
  virtual void abort(std::uint64_t id) = 0;
};

class Server {
 public:
  explicit Server(const ServeOptions& options);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  const std::string& address() const { return http_.address(); }
  std::uint16_t port() const { return http_.port(); }

  void start() { http_.start(); }
  // From now on requests are submitted to the engine. The first context and metrics are kept
  // permanently.
  void open(EnginePort& engine, ApiContext context, const ServerMetricsOptions& metrics);
  // The engine is gone: answers every open request with the reason, and rejects others until
  // open().
  void close_engine(const std::string& why);

  void apply(const std::vector<runtime::Update>& updates,
             const runtime::SchedulerStatistics& scheduler);
  // Checks deadlines; call it about ten times a second.
  void tick();

  // Rejects new requests from now on; /health fails. May be called by any thread.
  void drain();
  bool draining() const { return draining_; }
  // How many requests are under way.
  std::size_t open_requests() const;
  // Answers all open requests with an error.
  void end_requests(int status, const std::string& why);
  // Sends unsent bytes, and closes all connections. False: the pool is still busy with a text after
  // the limit, so that the destructor would wait for it.
  bool stop(Nanoseconds limit);

  // For a fork: until resume(), no other thread of the server runs or holds a lock. False: the pool
  // is still busy after the limit.
  bool pause(Nanoseconds limit);
  void resume();

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  // An engine request of a job.
  struct EngineRequest {
    JobPtr job;
    std::size_t index = 0;
  };

  // server.cc: the HTTP server's thread.
  void on_request(ExchangeId exchange, HttpRequest request);
  void on_gone(ExchangeId exchange);
  void route(const Route& route, ExchangeId exchange, HttpRequest request,
             std::vector<HttpHeader> headers);
  void answer_page(ExchangeId exchange, const HttpRequest& request,
                   std::vector<HttpHeader> headers);
  void answer(ExchangeId exchange, int status, std::vector<HttpHeader> headers,
              const char* content_type, std::string body);
  void refuse(ExchangeId exchange, const Route* route, int status, const std::string& why,
              std::vector<HttpHeader> headers);
  std::optional<std::string> busy_reason() const;
  void admit(const Route& route, ExchangeId exchange, HttpRequest request,
             std::vector<HttpHeader> headers);

  // server.cc: the pool.
  void read_body(const JobPtr& job);
  void submit(const JobPtr& job);

  // server_answers.cc: any thread.
  void finish(const JobPtr& job, int status, std::string body);
  void fail(const JobPtr& job, int status, const std::string& why, const std::string& param = "");
  // For unexpected exceptions: a failure of one request does not affect others.
  void fail_unforeseen(const JobPtr& job, const std::exception& error);
  bool claim(const JobPtr& job);
  void log(const Job& job, int status) const;

  // server_answers.cc: the engine's thread.
  static void start_call(Job& job);
  static void begin_stream(Job& job, std::vector<HttpOutput>& outputs);
  void send_progress(const JobPtr& job, std::vector<HttpOutput>& outputs);
  void apply_to(const JobPtr& job, const runtime::Update& update, std::size_t index,
                EnginePort& engine);
  void record(Job& job, std::size_t index, const runtime::Update& update,
              std::int64_t& prompt_tokens);
  std::vector<JobPtr> all_jobs() const;
  bool waits_for_stream(const Job& job) const;

  // Any thread.
  void abort_engine_requests(const Job& job);
  const ServerMetrics* metrics() const;

  const ServeOptions options_;
  std::vector<std::string> api_keys_;
  HttpServer http_;
  std::optional<ApiContext> context_;
  std::optional<ServerMetrics> metrics_;
  std::atomic<bool> draining_ = false;
  std::uint64_t last_request_ = 0;  // the HTTP server's thread's
  // Used by the engine's thread only.
  std::size_t round_ = 0;  // calls of apply()
  std::int64_t last_tick_ns_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  EnginePort* engine_ = nullptr;
  std::string no_engine_ = "the model is being loaded";  // why there is no engine
  std::unordered_map<ExchangeId, JobPtr> jobs_;
  std::unordered_map<std::uint64_t, EngineRequest> engine_requests_;
  std::uint64_t last_engine_request_ = 0;
  std::int64_t queued_requests_ = 0, queued_tokens_ = 0;  // without a first token yet

  std::optional<WorkerPool> pool_;  // its tasks use all members above
};

// An open request.
struct Server::Job {
  // Set by the HTTP server's thread before other threads know the job.
  ExchangeId exchange = 0;
  const Route* route = nullptr;
  ApiRequestInfo info;
  std::vector<HttpHeader> headers;  // of the response, whatever it is
  std::string trace_parent;
  std::int64_t received_ns = 0;

  std::atomic<bool> ended = false;  // answered, or the client has left: nothing more is sent

  // Used by the pool until the job is submitted; then by the engine's thread.
  std::string body;
  std::unique_ptr<ApiCall> call;
  std::uint64_t first_engine_request = 0;
  std::atomic<std::int64_t> prompt_tokens = 0;  // any thread may log it
  std::vector<std::int64_t> prompt_lengths;     // of each engine request
  std::optional<std::int64_t> max_tokens;
  std::int32_t n = 1;

  // Used by the engine's thread.
  bool call_started = false;  // call->begin() has run
  bool stream_started = false;
  bool counted_as_queued = false;  // guarded by Server::mutex_
  std::string out;                 // of a stream, to be sent
  std::vector<char> aborted;       // engine requests whose answers have reached stop strings
  std::int64_t open_answers = 0;
  std::atomic<std::int64_t> generated_tokens = 0;  // any thread may log it
  struct AnswerTimes {
    std::int64_t last_ns = 0;
    std::int64_t tokens = 0;
  };
  std::vector<AnswerTimes> answers;  // of all engine requests, n each
  std::size_t touched_in = 0;        // the call of apply() that last had an update for it
};

}  // namespace nvllm::launcher
