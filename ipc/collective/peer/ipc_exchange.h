// What ranks exchange before they open each other's GPU memory through CUDA IPC: handles, and
// errors, so that either all of them proceed or none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Runs the function; returns "" or the error text.
template <typename Function>
std::string error_of(Function function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    cudaGetLastError();  // clears the error, which the next call would report otherwise
    return error.what();
  }
}

// Exchanges the errors of all ranks (empty: none). Returns the first one, with its rank.
std::string first_error(Member& member, std::string mine);

// Exchanges handles; ranks with an error have none.
std::vector<std::optional<cudaIpcMemHandle_t>> exchange_handles(Member& member,
                                                                const cudaIpcMemHandle_t& mine,
                                                                const std::string& error);

// Opens the memory of this rank; close it with cudaIpcCloseMemHandle().
void* open_memory(int rank, const cudaIpcMemHandle_t& handle);

}  // namespace nvllm::ipc
