// The heads of a model in a GGUF file, and the order of their rows.
#pragma once

#include <cstdint>
#include <string>

#include "model/checkpoint/gguf.h"

namespace nvllm::model {

struct GgufHeads {
  bool permuted = false;  // rows of q and k are stored as adjacent rotary pairs
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  // For linear attention; 0: the model has none.
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;  // per head
  // Value heads are ordered by their index within the key head, then by key head.
  bool tiled = false;
};
GgufHeads gguf_heads(const GgufMetadata& metadata);

// Sets the tensor's row or column permutation in the file, and whether it holds a decay instead of
// its logarithm. `module`: "attn_qkv", within a layer. Throws an Error for a shape that does not
// fit the heads.
void set_stored_order(StoredTensor& tensor, std::string_view module, const GgufHeads& heads,
                      const std::string& file);

}  // namespace nvllm::model
