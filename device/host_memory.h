// The host's memory: how much this process can still allocate, and allocation.
#pragma once

#include <cstddef>
#include <string>

#include "device/backend.h"

namespace nvllm {

// Returns the machine's memory, or what its control group (version 1 or 2) allows this process if
// that is less. Page cache counts as available. `root` is "/" except in tests.
DeviceMemory host_memory(const std::string& root = "/");

// Linux overcommits memory and later kills a process that uses it. This throws an Error instead,
// with the requested size, its purpose, and the available memory. `held` is what the caller already
// holds, whether touched or not.
void require_host_memory(std::size_t bytes, std::size_t held, const std::string& purpose);

// Allocates uninitialised heap memory, aligned to 256 bytes (to huge pages for large sizes), and
// adds it to the ledger, which must outlive the Buffer. `held` as above.
Buffer allocate_host(Ledger& ledger, MemoryKind kind, std::size_t bytes, const std::string& purpose,
                     std::size_t held);

}  // namespace nvllm
