// EngineClient: the front end's side of the engine. It never blocks on the engine while the engine
// may be blocked on it: long requests go in parts, and only as many as the engine has acknowledged
// are on the way.
//
//   EngineClient client(workers.member());
//   const EngineInfo info = client.open(options, on_load_state);
//   client.submit(1, {.prompt = {1, 2, 3}, .sampling = {.max_tokens = 16}});
//   while (client.unfinished() > 0)
//     for (Update& update : client.poll(std::chrono::milliseconds(100))) ...
//
// When the group is aborted, or rank 0 is silent for the step timeout, any call throws
// (GroupAborted, PeerTimeout): the run is over, and what was received before is all there is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/trace.h"
#include "ipc/group.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/options.h"
#include "runtime/request.h"

namespace nvllm::runtime {

// Used by the launcher's main thread.
class EngineClient {
 public:
  explicit EngineClient(ipc::Member& launcher);
  ~EngineClient();

  using OnLoadState = std::function<void(const LoadState&)>;
  EngineInfo open(const EngineOptions& options, const OnLoadState& on_load_state = {});

  // Queues a request under a number that no unfinished one has. What is wrong with it comes back as
  // an Update with an error.
  void submit(std::uint64_t id, const Request& request);
  // Its updates end with FinishReason::abort, unless it ended before.
  void abort(std::uint64_t id);

  // Sends what can be sent and returns what has come; waits for something up to the limit.
  std::vector<Update> poll(Nanoseconds limit);
  std::size_t unfinished() const;  // requests submitted whose last update poll() has not returned

  // The next two wait for the answer; updates that come meanwhile are kept for poll().
  EngineStatistics statistics();
  std::vector<ProcessTrace> take_trace();  // of all ranks

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::runtime
