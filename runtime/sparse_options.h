// When sparse attention is used, and what it asks of other options.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine_options.h"

namespace nvllm::runtime {

inline constexpr std::int64_t kQuestPageTokens = 16;

// Prompts shorter than this attend to everything: so little that choosing costs more than it saves.
inline constexpr std::int64_t kLeastSparseTokens = 1024;
// From here on `auto` chooses XAttention. Dense attention is so fast that at 32K the choice does not pay (see
// the benchmark select_tiles); it does for certain where the kept tiles are a few percent of a prompt of twice
// that.
inline constexpr std::int64_t kAutomaticSparseTokens = 65536;

// Why a policy that the options ask for cannot be served with the others, in one line; empty: it can. Nothing is
// ever replaced by another policy.
std::string sparse_refusal(const EngineOptions& options);
// The same as an Error.
void check_sparse_attention(const EngineOptions& options);

}  // namespace nvllm::runtime
