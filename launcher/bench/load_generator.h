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

// The times of one request at the front end, on the clock of now_ns().
struct RequestRecord {
  std::int64_t submitted_ns = 0;
  std::int64_t first_ns = 0;  // of the first token; 0: there is none yet
  std::int64_t last_ns = 0;
  std::int64_t tokens = 0;
  // Inter-token latencies (ITL); tokens that arrive together share the time since the ones before.
  std::vector<float> gaps_s;
  std::vector<runtime::TokenLogprob> logprobs;  // of the tokens, where the request asks for them
  std::int32_t cached_tokens = 0, preemptions = 0;
  bool finished = false;

  double first_token_s() const { return static_cast<double>(first_ns - submitted_ns) * 1e-9; }
};

// Used by the launcher's main thread.
class LoadGenerator {
 public:
  // Both must outlive it; trace: nullptr for none.
  explicit LoadGenerator(runtime::EngineClient& client, Trace* trace = nullptr)
      : client_(client), trace_(trace) {}

  // Called at each poll, with how many requests there will be (0: unknown). It must be quick.
  void on_poll(std::function<void(std::size_t total)> call) { on_poll_ = std::move(call); }

  // Drops the records of earlier requests.
  void clear() { records_.clear(); }
  void submit(const runtime::Request& request);
  // Waits for updates and records them. Throws an Error if a request was refused.
  void poll();
  // Aborts the requests that still run.
  void abort_all();
  // Submits all requests, at most `at_once` in flight, and waits until they have finished.
  void run(std::span<const runtime::Request> requests, std::int64_t at_once);

  std::int64_t unfinished() const { return static_cast<std::int64_t>(client_.unfinished()); }
  // In the order in which they were submitted.
  const std::vector<RequestRecord>& records() const { return records_; }

 private:
  RequestRecord* record_of(const runtime::Update& update);

  runtime::EngineClient& client_;
  Trace* trace_;
  std::function<void(std::size_t total)> on_poll_;
  std::size_t total_ = 0;  // of run()
  std::uint64_t next_id_ = 1;
  std::vector<RequestRecord> records_;  // the last has the id next_id_ - 1
};

}  // namespace nvllm::launcher
