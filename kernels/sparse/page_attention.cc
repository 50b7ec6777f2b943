#include "kernels/sparse/page_attention.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/sparse/cpu/page_attention.h"
#ifdef NVLLM_CUDA
#include "kernels/sparse/sm80/page_attention.h"
#endif

namespace nvllm::kernels {

Attention PageAttention::shared() const {
  Attention args;
  args.out = out;
  args.q = q;
  args.kv = kv;
  args.kv_length = kv_length;
  args.lse = lse;
  args.group = group;
  args.first_head = first_head;
  args.scale = scale;
  args.max_query_rows = 1;
  return args;
}

void check_page_attention(const PageAttention& args) {
  constexpr Arguments check("page_attention");
  check_attention_rows(args.shared(), "page_attention");
  const std::int64_t sequences = args.q.shape[0], kv_heads = args.kv_heads();
  check.require(args.kv_length, "kv_length", DType::i32, {sequences});
  check.require_dense(args.kv_length, "kv_length");
  const TensorView& table = args.kv.block_table;
  const std::int64_t held = table.data != nullptr ? table.shape[0] : args.kv.blocks();
  if (held < sequences) {
    fail("page_attention: q is ", args.q.describe(), ", but the cache is of ", held, " sequences");
  }
  const std::int64_t page = args.page_tokens;
  if (page < 8 || (page & (page - 1)) != 0) {
    fail("page_attention: page_tokens is ", page, "; it must be a power of two, at least 8");
  }
  check.require(args.page_counts, "page_counts", DType::i32, {sequences, kv_heads});
  check.require_dense(args.page_counts, "page_counts");
  if (args.pages.rank != 3) {
    fail("page_attention: pages is ", args.pages.describe(), "; it must have 3 dimensions");
  }
  check.require(args.pages, "pages", DType::i32, {sequences, kv_heads, args.pages.shape[2]});
  check.require_dense(args.pages, "pages");
}

void page_attention(const PageAttention& args, Stream& stream) {
  check_page_attention(args);
  if (args.q.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::page_attention(args, stream);
#endif
  cpu::page_attention(args, stream);
}

void page_attention_reference(const PageAttention& args) {
  check_page_attention(args);
  const Attention shared = args.shared();
  for (std::int64_t s = 0; s < args.q.shape[0]; ++s) {
    const std::int64_t length = args.kv_length.as<std::int32_t>()[s];
    for (std::int64_t head = 0; head < args.q.shape[1]; ++head) {
      const std::int64_t list = s * args.kv_heads() + (args.first_head + head) / args.group;
      const auto* pages = args.pages.as<std::int32_t>() + list * args.pages.shape[2];
      std::vector<std::int32_t> tokens;
      for (int i = 0; i < args.page_counts.as<std::int32_t>()[list]; ++i) {
        const std::int64_t begin = pages[i] * args.page_tokens;
        for (std::int64_t t = begin; t < std::min(length, begin + args.page_tokens); ++t) {
          tokens.push_back(static_cast<std::int32_t>(t));
        }
      }
      attend_reference(shared, s, s, head, tokens);
    }
  }
}

}  // namespace nvllm::kernels
