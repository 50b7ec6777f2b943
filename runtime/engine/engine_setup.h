// set_up_engine(): how rank 0 opens an engine. Every rank creates its runner while its weights are
// still loading; GEMMs are tuned if --tune requires it; then the cache is sized by the rank with
// the smallest free memory, and allocated.
#pragma once

#include "ipc/rpc.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/engine/engine_rank.h"
#include "runtime/options.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

struct EngineSetup {
  EngineInfo info;
  SchedulerLimits limits;
};

// Used by rank 0's main thread. Pushes "load_state" to the launcher while it waits for the weights.
EngineSetup set_up_engine(const EngineOptions& options, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::RequestServer& server, const EngineRank& own);

// Maximum number of steps in flight: the device runs one, and with async_scheduling the next one is
// enqueued after it. In a pipeline each stage runs one step and none is enqueued ahead: the first
// stage cannot read the last sampled token from its device, because only the last stage's device
// has it.
int steps_in_flight(const EngineOptions& options, int stages);

}  // namespace nvllm::runtime
