// How an engine's products come to be chosen, on rank 0: what earlier runs measured, and, if that is asked for,
// what is missing is measured on all ranks and kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "ipc/rpc.h"
#include "runtime/engine_options.h"
#include "runtime/runner_options.h"

namespace nvllm::runtime {

// What each rank of a runner with these options reads when it is made; empty: nothing.
std::string products_to_read(const EngineOptions& options, DeviceKind device);

struct EngineProducts {
  std::uint64_t known = 0, measured = 0;  // kinds of products and their numbers of rows, of rank 0
  std::vector<std::string> notes;         // one line each, for people
};

// After all ranks have made their runners and loaded their weights.
EngineProducts choose_products(const EngineOptions& options, const RunnerOptions& runner,
                               DeviceKind device, ipc::GroupCaller& caller);

}  // namespace nvllm::runtime
