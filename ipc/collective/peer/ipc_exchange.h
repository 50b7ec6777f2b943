// What ranks exchange before they open each other's GPU memory through CUDA IPC: errors, so that
// all of them go on or none, and handles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Runs the function; "" or what went wrong.
template <typename Function>
std::string error_of(Function function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    cudaGetLastError();  // or the next call would report it
    return error.what();
  }
}

// Exchanges the errors of all ranks (empty: none). Returns the first one, with its rank.
std::string first_error(Member& member, std::string mine);

// Exchanges handles; of a rank that has an error there is none.
std::vector<std::optional<cudaIpcMemHandle_t>> exchange_handles(Member& member,
                                                                const cudaIpcMemHandle_t& mine,
                                                                const std::string& error);

// The memory of this rank, until cudaIpcCloseMemHandle().
void* open_memory(int rank, const cudaIpcMemHandle_t& handle);

}  // namespace nvllm::ipc
