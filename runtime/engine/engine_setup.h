// EngineSetup: how an engine comes to be, on rank 0: every rank makes its runner while its weights
// are still loading, GEMMs are tuned if that is asked for, then the cache is sized from the rank
// with the smallest free memory, and made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// GEMM configurations of rank 0 that earlier runs or this one measured.
struct GemmTuning {
  std::uint64_t known = 0, measured = 0;
  std::vector<std::string> notes = {};  // one line each, for people
};

// The file that each rank reads when its runner is made; empty: none.
std::string tuning_file_to_read(const EngineOptions& options, DeviceKind device);

// With --tune full, measures the missing GEMM configurations on all ranks and keeps them. After all
// ranks have made their runners and loaded their weights.
GemmTuning tune_engine(const EngineOptions& options, const RunnerOptions& runner, DeviceKind device,
                       ipc::GroupCaller& caller);

}  // namespace nvllm::runtime
