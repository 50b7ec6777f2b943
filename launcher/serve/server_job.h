// Server::Job: a request that is under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launcher/serve/server.h"

namespace nvllm::launcher {

struct Server::Job {
  // Set by the HTTP server's thread before anybody else knows the job.
  ExchangeId exchange = 0;
  const Route* route = nullptr;
  ApiRequestInfo info;
  std::vector<HttpHeader> headers;  // of the response, whatever it is
  std::string trace_parent;
  std::int64_t received_ns = 0;

  std::atomic<bool> ended = false;  // answered, or the client has left: nothing more is sent

  // The pool's, until the job is submitted; then the engine thread's.
  std::string body;
  std::unique_ptr<ApiCall> call;
  std::uint64_t first_engine_request = 0;
  std::int64_t prompt_tokens = 0;
  std::vector<std::int64_t> prompt_lengths;  // of each engine request
  std::optional<std::int64_t> max_tokens;
  std::int32_t n = 1;

  // The engine thread's.
  bool stream_started = false;
  bool counted_as_queued = false;  // guarded by Server::mutex_
  std::string out;                 // of a stream, to be sent
  std::vector<char> aborted;       // engine requests whose answers have met stop strings
  std::int64_t open_answers = 0;
  std::int64_t generated_tokens = 0;
  struct AnswerTimes {
    std::int64_t last_ns = 0;
    std::int64_t tokens = 0;
  };
  std::vector<AnswerTimes> answers;  // of all engine requests, n each
  std::size_t touched_in = 0;        // the call of apply() that last had something for it
};

}  // namespace nvllm::launcher
