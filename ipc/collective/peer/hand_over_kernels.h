// Launchers of the two kernels of a hand-over (hand_over.h), for one piece each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ipc/collective/peer/hand_over.h"

namespace nvllm::ipc::peer {

// bytes: of the piece, at most kLinkSlotBytes; tensor_bytes: of the tensor to which it belongs.
void launch_send_piece(const LinkMemory& link, const void* data, std::size_t bytes,
                       std::size_t tensor_bytes, cudaStream_t stream);
void launch_receive_piece(const LinkMemory& link, void* data, std::size_t bytes,
                          std::size_t tensor_bytes, cudaStream_t stream);

}  // namespace nvllm::ipc::peer
