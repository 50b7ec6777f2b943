#include "runtime/options.h"

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

std::string invariance_refusal(const EngineOptions& options) {
  const Invariance wanted = options.invariance;
  if (!is_invariant(wanted)) return "";
  const std::string what = str("--invariant ", name_of(wanted), ": ");
  if (options.prefill_attention != PrefillAttention::full) {
    return what +
           "--prefill-attention chooses tokens by the chunk that a row is in; pass "
           "--prefill-attention full, or --invariant off";
  }
  if (options.decode_attention != DecodeAttention::full) {
    return what +
           "--decode-attention quest attends to other tokens than prefill does; pass "
           "--decode-attention full, or --invariant off";
  }
  if (options.host_attention != 0.0) {
    return what +
           "--kv-host-attention combines the host's results with the device's; pass "
           "--kv-host-attention off, or --invariant off";
  }
  return "";
}

void check_invariance(const EngineOptions& options) {
  if (const std::string why = invariance_refusal(options); !why.empty()) fail(why);
}

void check_kv_cache_dtype(const EngineOptions& options, std::int64_t head_dim) {
  constexpr std::int64_t kMultiple = 16;
  if (options.kv_cache_dtype == KvCacheDtype::automatic) return;
  if (head_dim % kMultiple != 0) {
    fail("--kv-cache-dtype fp8: the model's head_dim is ", head_dim, ", which is no multiple of ",
         kMultiple, "; pass --kv-cache-dtype auto");
  }
}

// Both modes process the layers of a whole model one after the other.
void check_stages(const EngineOptions& options, int stages) {
  if (stages == 1) return;
  const auto refuse = [&](const char* option, const char* fix) {
    fail(option, ": not with pipeline stages, and --pp is ", stages, "; pass ", fix, ", or --pp 1");
  };
  if (options.kv_offload != KvOffload::off) refuse("--kv-offload", "--kv-offload off");
  if (options.prefill_attention != PrefillAttention::full) {
    refuse("--prefill-attention", "--prefill-attention full");
  }
  if (options.decode_attention != DecodeAttention::full) {
    refuse("--decode-attention quest", "--decode-attention full");
  }
}

std::string host_attention_refusal(const EngineOptions& options) {
  if (options.host_attention == 0.0) return "";
  const std::string option = options.host_attention
                                 ? str("--kv-host-attention ", *options.host_attention)
                                 : "--kv-host-attention auto";
  if (options.decode_attention == DecodeAttention::quest) {
    return str(
        option,
        ": --decode-attention quest gathers what it chooses; pass --decode-attention full, or "
        "--kv-host-attention off");
  }
  if (options.kv_offload == KvOffload::automatic && options.max_seq_len == 0) return "";
  const KvMode mode = options.kv_mode();
  if (mode == KvMode::chunked) return "";
  return str(option, ": keys and values are ", name_of(mode),
             ", which the host's cores cannot attend to; pass --kv-offload chunked, or "
             "--kv-host-attention off");
}

void check_host_attention(const EngineOptions& options) {
  if (const std::string why = host_attention_refusal(options); !why.empty()) fail(why);
}

}  // namespace nvllm::runtime
