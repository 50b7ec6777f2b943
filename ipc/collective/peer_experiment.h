// Variants of the one-shot kernels, to be compared on GPUs. Not for use.
#pragma once

#include <cuda_runtime_api.h>

#include "ipc/collective/peer_links.h"
#include "kernels/rmsnorm.h"

namespace nvllm::ipc::peer {

struct Variant {
  const char* name;
  const char* kernel;  // which template instance
  int cluster = 1;     // blocks per row
  int pdl = 0;         // 0: off, 1: trigger after the wait, 2: before it
  int threads = 128;   // of plain blocks
};

bool launch_fused_variant(const Links& links, const kernels::RmsNorm& args, const Variant& variant,
                          cudaStream_t stream);
bool launch_plain_variant(const Links& links, void* data, std::int64_t elements,
                          const Variant& variant, cudaStream_t stream);

}  // namespace nvllm::ipc::peer
