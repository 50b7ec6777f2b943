// The heads of a model in a GGUF file, and in which order their rows lie there.
#pragma once

#include <cstdint>
#include <string>

#include "model/checkpoint/gguf.h"

namespace nvllm::model {

struct GgufHeads {
  bool permuted = false;  // rows of q and k lie in adjacent rotary pairs
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  // Of linear attention; 0: the model has none.
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;  // of a head
  // The first value head of every key head lies before the second one of any.
  bool tiled = false;
};
GgufHeads gguf_heads(const GgufMetadata& metadata);

// Sets the order in which the file has the tensor's rows or columns, and that it holds a decay
// instead of its logarithm. `module`: "attn_qkv", of a layer. An Error names a shape that heads do
// not fit.
void set_stored_order(StoredTensor& tensor, std::string_view module, const GgufHeads& heads,
                      const std::string& file);

}  // namespace nvllm::model
