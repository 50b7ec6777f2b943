// Server::Job: an open request.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launcher/serve/server.h"

namespace nvllm::launcher {

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
  std::int64_t prompt_tokens = 0;
  std::vector<std::int64_t> prompt_lengths;  // of each engine request
  std::optional<std::int64_t> max_tokens;
  std::int32_t n = 1;

  // Used by the engine's thread.
  bool stream_started = false;
  bool counted_as_queued = false;  // guarded by Server::mutex_
  std::string out;                 // of a stream, to be sent
  std::vector<char> aborted;       // engine requests whose answers have reached stop strings
  std::int64_t open_answers = 0;
  std::int64_t generated_tokens = 0;
  struct AnswerTimes {
    std::int64_t last_ns = 0;
    std::int64_t tokens = 0;
  };
  std::vector<AnswerTimes> answers;  // of all engine requests, n each
  std::size_t touched_in = 0;        // the call of apply() that last had an update for it
};

}  // namespace nvllm::launcher
