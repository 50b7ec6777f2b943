// Attention to pages on the GPU: as attention of few rows (attention_decode.cuh, attention_float.cuh), but to the
// pages that are listed for a sequence and KV head.
#include <bit>

#include "kernels/attention/sm80/attention_decode.cuh"
#include "kernels/attention/sm80/attention_float.cuh"
#include "kernels/attention/sm80/attention_lists.cuh"
#include "kernels/sparse/sm80/page_attention.h"

namespace nvllm::kernels::cuda {
namespace {

struct PageLists {
  const int* counts;
  const int* pages;
  int kv_heads, capacity, shift;

  explicit PageLists(const PageAttention& args)
      : counts(args.page_counts.as<int>()),
        pages(args.pages.as<int>()),
        kv_heads(static_cast<int>(args.kv_heads())),
        capacity(static_cast<int>(args.pages.shape[2])),
        shift(std::countr_zero(static_cast<unsigned>(args.page_tokens))) {}
};

template <typename T>
__device__ __forceinline__ ListedPart<T> listed_pages(const AttentionParams<T>& p,
                                                      const PageLists& lists, int sequence,
                                                      int kv_head) {
  const int group_heads = p.group_heads(kv_head), length = p.kv_length[sequence];
  const AttentionRows<T> rows{
      p, sequence, kv_head, sequence, group_heads, p.head_begin(kv_head), group_heads};
  const long long at = static_cast<long long>(sequence) * lists.kv_heads + kv_head;
  const TokenList list{lists.pages + at * lists.capacity, lists.counts[at], lists.shift};
  __builtin_assume(list.shift != TokenList::kRanges);
  return {rows, list, length, length};
}

__global__ void __launch_bounds__(plain::kWarps * 32)
    page_float_kernel(const AttentionParams<float> p, const PageLists lists) {
  const ListedPart<float> part = listed_pages(p, lists, blockIdx.z, blockIdx.y);
  const int packed_row = blockIdx.x * plain::kWarps + threadIdx.y;
  if (packed_row >= part.packed_rows) return;
  plain::Row row = plain::start_row(part, packed_row);
  plain::add_tokens(part, packed_row, row);
  plain::write_row(part, packed_row, row);
}

template <typename T, int D>
__global__ void __launch_bounds__(decode::kWarps<D> * 32)
    page_kernel(const AttentionParams<T> p, const PageLists lists) {
  decode::attend<T, D>(listed_pages(p, lists, blockIdx.z, blockIdx.y));
}

void page_float(const PageAttention& args, cudaStream_t stream) {
  const AttentionParams<float> p(args.shared());
  const dim3 blocks((p.most_group_heads() + plain::kWarps - 1) / plain::kWarps, p.kv_heads(),
                    static_cast<unsigned>(args.q.shape[0]));
  page_float_kernel<<<blocks, dim3(32, plain::kWarps), 0, stream>>>(p, PageLists(args));
  nvllm::cuda::check(cudaGetLastError(), "launching page_attention");
}

template <typename T>
void on_tensor_cores(const PageAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.shared());
  const auto launch = [&]<int D>(std::integral_constant<int, D>) {
    decode::launch<D>(page_kernel<T, D>, p, 1, args.q.shape[0],
                      args.pages.shape[2] * args.page_tokens, stream, PageLists(args));
  };
  if (p.head_dim <= 64) return launch(std::integral_constant<int, 64>{});
  if (p.head_dim <= 128) return launch(std::integral_constant<int, 128>{});
  launch(std::integral_constant<int, 256>{});
}

}  // namespace

void page_attention(const PageAttention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (args.q.dtype) {
    case DType::f32: return page_float(args, native);
    case DType::bf16: return on_tensor_cores<Bf16>(args, native);
    default: return on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
