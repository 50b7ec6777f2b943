// Which modes of the cache let the host's cores attend.
#pragma once

#include <string>

#include "runtime/engine_options.h"

namespace nvllm::runtime {

// Why what the options ask for cannot be, in one line; empty: it can, or depends on what `--kv-offload auto`
// comes to. It is never left out in silence.
std::string host_attention_refusal(const EngineOptions& options);
// The same as an Error.
void check_host_attention(const EngineOptions& options);

}  // namespace nvllm::runtime
