#include "ipc/collective/peer/ipc_exchange.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "device/cuda/stream.h"

namespace nvllm::ipc {

std::string first_error(Member& member, std::string mine) {
  mine.resize(std::min(mine.size(), Member::kExchangeBytes));
  const auto all =
      member.exchange(std::as_bytes(std::span(mine)), "its part of opening peer memory");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string text(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    return str("rank ", rank, ": ", text);
  }
  return "";
}

std::vector<std::optional<cudaIpcMemHandle_t>> exchange_handles(Member& member,
                                                                const cudaIpcMemHandle_t& mine,
                                                                const std::string& error) {
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  const auto all = member.exchange(error.empty() ? bytes : bytes.first(0), "its CUDA IPC handle");
  std::vector<std::optional<cudaIpcMemHandle_t>> handles(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(mine)) continue;
    std::memcpy(&handles[rank].emplace(), all[rank].data(), sizeof(mine));
  }
  return handles;
}

void* open_memory(int rank, const cudaIpcMemHandle_t& handle) {
  void* opened = nullptr;
  cuda::check(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
              str("opening the memory of rank ", rank));
  return opened;
}

}  // namespace nvllm::ipc
