// Globally unique names of GPUs.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

// The names of the GPUs with these values for CUDA_VISIBLE_DEVICES (indices, UUIDs or their
// prefixes, "MIG-..."; as given by visible_gpus() of device/topology.h) on a machine whose GPUs
// have these UUIDs: their UUIDs, or "MIG-...". Unknown ones are omitted.
std::vector<std::string> names_of_gpus(const std::vector<std::string>& values,
                                       const std::vector<std::string>& uuids);

}  // namespace nvllm::launcher
