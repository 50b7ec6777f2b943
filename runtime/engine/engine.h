// Engine: rank 0's loop. It takes requests from the front end, lets the scheduler choose each step,
// broadcasts it, and sends back what came out. While the device runs one step, the next one is
// already chosen and enqueued.
//
// From the front end, through ipc::RequestClient (see engine_client.h, the other side):
//   open(EngineOptions) -> EngineInfo     once; waits for the weights, sizes the cache
//   add(part of a request), abort(id), statistics() -> EngineStatistics, take_trace()
// To the front end: pushes "load_state" while it opens, then "updates": vector<Update> per step.
#pragma once

#include <memory>

#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::runtime {

class EngineRank;  // what every rank binds (engine_rank.h)

// Used by rank 0's main thread.
class Engine {
 public:
  // All must outlive it.
  Engine(ipc::Member& me, ipc::GroupCaller& caller, ipc::RequestServer& server, EngineRank& own);
  ~Engine();

  void bind(ipc::Registry& requests);

  // Runs steps and requests until the launcher wants the group to stop. Idle, it sleeps on the
  // ring.
  void serve(const ipc::Registry& requests);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::runtime
