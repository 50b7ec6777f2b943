// LoadGenerator: submits requests to an engine and records when their tokens arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "launcher/bench/summary.h"
#include "runtime/engine/engine_client.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Times of one request at the front end, in now_ns().
struct RequestRecord {
  std::int64_t submitted_ns = 0;
  std::int64_t first_ns = 0;  // first token; 0: none yet
  std::int64_t last_ns = 0;
  std::int64_t tokens = 0;
  // Inter-token latencies (ITL); tokens that arrive together share the time since the previous
  // ones.
  std::vector<float> gaps_s;
  std::vector<runtime::TokenLogprob> logprobs;  // of the tokens, if requested
  std::int32_t cached_tokens = 0, preemptions = 0;
  bool finished = false;

  double first_token_s() const { return static_cast<double>(first_ns - submitted_ns) * 1e-9; }
};

// Used by the launcher's main thread.
class LoadGenerator {
 public:
  // Both must outlive it; trace may be nullptr.
  explicit LoadGenerator(runtime::EngineClient& client, Trace* trace = nullptr)
      : client_(client), trace_(trace) {}

  // Called at each poll with the total number of requests (0: unknown). Must return quickly.
  void on_poll(std::function<void(std::size_t total)> call) { on_poll_ = std::move(call); }

  // Discards the records of earlier requests.
  void clear() { records_.clear(); }
  void submit(const runtime::Request& request);
  // Waits for updates and records them. Throws an Error if a request was rejected.
  void poll();
  // Aborts the requests that still run.
  void abort_all();
  // Submits all requests, at most `at_once` of them in flight, and waits until they have finished.
  void run(std::span<const runtime::Request> requests, std::int64_t at_once);

  std::int64_t unfinished() const { return static_cast<std::int64_t>(client_.unfinished()); }
  // In order of submission.
  const std::vector<RequestRecord>& records() const { return records_; }

 private:
  RequestRecord* record_of(const runtime::Update& update);

  runtime::EngineClient& client_;
  Trace* trace_;
  std::function<void(std::size_t total)> on_poll_;
  std::size_t total_ = 0;  // of run()
  std::uint64_t next_id_ = 1;
  std::vector<RequestRecord> records_;  // the last one has id next_id_ - 1
};

}  // namespace nvllm::launcher
