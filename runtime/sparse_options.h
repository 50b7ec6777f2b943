// When sparse attention is used, and what it asks of other options.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine_options.h"

namespace nvllm::runtime {

inline constexpr std::int64_t kQuestPageTokens = 16;

// Prompts shorter than this attend to everything: so little that choosing costs more than it saves.
inline constexpr std::int64_t kLeastSparseTokens = 1024;
// From here on `auto` chooses XAttention. It is faster below, too (four times at 32K: the benchmark prompt_policy),
// but there attention to everything is less than half of a prompt's time, and leaves nothing out.
inline constexpr std::int64_t kAutomaticSparseTokens = 65536;

// Why a policy that the options ask for cannot be served with the others, in one line; empty: it can. Nothing is
// ever replaced by another policy.
std::string sparse_refusal(const EngineOptions& options);
// The same as an Error.
void check_sparse_attention(const EngineOptions& options);

}  // namespace nvllm::runtime
