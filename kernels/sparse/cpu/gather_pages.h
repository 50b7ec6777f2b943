#pragma once

#include "kernels/sparse/gather_pages.h"

namespace nvllm::kernels::cpu {

// kernels::gather_pages of checked arguments on a stream of the CPU backend.
void gather_pages(const GatherPages& args, Stream& stream);

// One sequence and KV head, now.
void gather_head(const GatherPages& args, std::int64_t sequence, std::int64_t kv_head);

}  // namespace nvllm::kernels::cpu
