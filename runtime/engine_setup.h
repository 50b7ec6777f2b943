// EngineSetup: how an engine comes to be, on rank 0: every rank gets its runner while its weights are
// still loading, then the cache is sized from what the poorest of them has left, and made.
#pragma once

#include "ipc/rpc.h"
#include "runtime/engine_messages.h"
#include "runtime/engine_options.h"
#include "runtime/engine_rank.h"
#include "runtime/scheduler.h"

namespace nvllm::runtime {

struct EngineSetup {
  EngineInfo info;
  SchedulerLimits limits;
};

// Used by rank 0's main thread. Pushes "load_state" to the launcher while it waits for the weights.
EngineSetup set_up_engine(const EngineOptions& options, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::RequestServer& server, const EngineRank& own);

}  // namespace nvllm::runtime
