// EnginePort: the engine, as the server reaches it. A session's EngineClient is one; a mock engine,
// with which the server is tested and measured alone, is another.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/request.h"

namespace nvllm::launcher {

// Callable by any thread. Updates reach the server through Server::apply().
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  // Requests under numbers that no unfinished ones have: first_id, first_id + 1, ...
  virtual void submit(std::uint64_t first_id, const std::vector<runtime::Request>& requests) = 0;
  // The request's updates end with FinishReason::abort, unless it ended before.
  virtual void abort(std::uint64_t id) = 0;
};

}  // namespace nvllm::launcher
