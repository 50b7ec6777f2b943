// LoadGenerator: asks an engine for answers and notes when their tokens came, as its users see them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/trace.h"
#include "runtime/engine/engine_client.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// One request's life at the front end, now_ns().
struct RequestRecord {
  std::int64_t submitted_ns = 0;
  std::int64_t first_ns = 0;  // of the first token; 0: none came
  std::int64_t last_ns = 0;
  std::int64_t tokens = 0;
  // Between tokens; those that came together share the time since the ones before.
  std::vector<float> gaps_s;
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

  // Begins with new records.
  void begin() { records_.clear(); }
  void submit(const runtime::Request& request);
  // Waits for news and notes them. An Error if a request was refused.
  void poll();
  // Ends whatever still runs.
  void stop();
  // Submits all of them, at most so many at a time, and waits for their ends.
  void run(std::span<const runtime::Request> requests, std::int64_t at_once);

  std::int64_t unfinished() const { return static_cast<std::int64_t>(client_.unfinished()); }
  // In the order in which they were submitted.
  const std::vector<RequestRecord>& records() const { return records_; }

 private:
  RequestRecord* record_of(const runtime::Update& update);

  runtime::EngineClient& client_;
  Trace* trace_;
  std::uint64_t next_id_ = 1;
  std::vector<RequestRecord> records_;  // the last has the id next_id_ - 1
};

}  // namespace nvllm::launcher
