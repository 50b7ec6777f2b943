#include "runtime/sparse_options.h"

#include "base/error.h"
#include "base/text.h"

namespace nvllm::runtime {

std::string sparse_refusal(const EngineOptions& options) {
  if (options.decode_attention == DecodeAttention::full) return "";
  if (options.kv_mode() == KvMode::paged && options.block_size % kQuestPageTokens != 0) {
    return str("--decode-attention quest: --block-size is ", options.block_size,
               "; it must be a multiple of ", kQuestPageTokens);
  }
  return "";
}

void check_sparse_attention(const EngineOptions& options) {
  if (const std::string why = sparse_refusal(options); !why.empty()) fail(why);
}

}  // namespace nvllm::runtime
