// What to call GPUs so that no two GPUs of any machines have the same name.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

// The names of the GPUs of these values for CUDA_VISIBLE_DEVICES (indices, UUIDs or their
// beginnings, "MIG-..."; visible_gpus() of device/topology.h gives such) on a machine whose GPUs
// have these UUIDs: their UUIDs, or "MIG-...". None for what cannot be told.
std::vector<std::string> names_of_gpus(const std::vector<std::string>& values,
                                       const std::vector<std::string>& uuids);

}  // namespace nvllm::launcher
