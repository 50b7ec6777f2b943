#include "runtime/sparse_options.h"

#include "base/error.h"
#include "base/text.h"

namespace nvllm::runtime {
namespace {

const char* name_of(PrefillAttention prefill) {
  switch (prefill) {
    case PrefillAttention::full: return "full";
    case PrefillAttention::minference: return "minference";
    case PrefillAttention::xattention: return "xattention";
    case PrefillAttention::automatic: return "auto";
  }
  return "";
}

}  // namespace

std::string sparse_refusal(const EngineOptions& options) {
  const KvMode mode = options.kv_mode();
  const bool on_device = mode == KvMode::paged || mode == KvMode::contiguous;
  const bool chooses = options.prefill_attention == PrefillAttention::minference ||
                       options.prefill_attention == PrefillAttention::xattention;
  if (chooses && !on_device) {
    return str("--prefill-attention ", name_of(options.prefill_attention),
               " is not available with --kv-offload ", name_of(mode),
               "; pass --prefill-attention full or --kv-offload off");
  }
  if (options.decode_attention == DecodeAttention::full) return "";
  if (mode == KvMode::layerwise) {
    return str("--decode-attention quest is not available with --kv-offload ", name_of(mode),
               "; pass --decode-attention full, or --kv-offload off or chunked");
  }
  if (mode == KvMode::paged && options.block_size % kQuestPageTokens != 0) {
    return str("--decode-attention quest: --block-size is ", options.block_size,
               "; it must be a multiple of ", kQuestPageTokens);
  }
  return "";
}

void check_sparse_attention(const EngineOptions& options) {
  if (const std::string why = sparse_refusal(options); !why.empty()) fail(why);
}

}  // namespace nvllm::runtime
