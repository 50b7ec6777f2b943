// The memory that policies ask for holds all of their parts, whatever the sizes: parts that are
// small beside the alignment would not show a sum that is wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "device/backend.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {
namespace {

TEST_CASE("quest's memory holds its parts, however many sequences and heads there are") {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const std::int64_t sequences : {1, 16, 500}) {
    for (const std::int64_t heads : {1, 8}) {
      QuestLimits limits;
      limits.blocks = 3, limits.sequences = sequences, limits.tokens = 4000;
      limits.shape.layers = 2;
      limits.shape.block_size = 32;
      limits.shape.kv_heads = heads;
      limits.shape.head_dim = 64;
      limits.shape.dtype = DType::f32;
      CAPTURE(sequences);
      CAPTURE(heads);
      CHECK_NOTHROW(Quest(*backend, limits));
    }
  }
}

TEST_CASE("prompt policies' memory holds their parts, however long prompts are") {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const std::int64_t tokens : {100, 5000, 40000}) {
    for (const std::int64_t heads : {1, 14}) {
      const PromptLimits limits{.rows = std::min<std::int64_t>(tokens, 2048),
                                .tokens = tokens,
                                .heads = heads,
                                .key_bytes = 512};
      CAPTURE(tokens);
      CAPTURE(heads);
      CHECK_NOTHROW(XAttention::create(*backend, limits));
      CHECK_NOTHROW(MInference::create(*backend, limits));
    }
  }
}

}  // namespace
}  // namespace nvllm::kvcache
