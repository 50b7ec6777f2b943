// The host's memory: how much of it this process can still have, and how to allocate it.
#pragma once

#include <cstddef>
#include <string>

#include "device/backend.h"

namespace nvllm {

// Returns what the machine has, or what its control group (version 1 or 2) allows this process if
// that is less. Memory that only caches files counts as available. `root` is "/" but in tests.
DeviceMemory host_memory(const std::string& root = "/");

// Linux hands out more memory than it has and later kills who uses it. This throws an Error
// instead, which says how much was asked for, why, and what there is. `held` is what the caller
// already holds, whether it was touched or not.
void require_host_memory(std::size_t bytes, std::size_t held, const std::string& purpose);

// Allocates uninitialised memory from the heap, aligned to 256 bytes (to huge pages where that
// pays), entered in the ledger, which must outlive the Buffer. `held` as above.
Buffer allocate_host(Ledger& ledger, MemoryKind kind, std::size_t bytes, const std::string& purpose,
                     std::size_t held);

}  // namespace nvllm
