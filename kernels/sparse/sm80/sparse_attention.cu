// Sparse attention on the GPU: attention to listed tokens, of a prompt's rows (SparseAttention) and
// of decode rows (PageAttention).
//
// Both reuse the kernels of dense attention with a ListedPart (token_lists.cuh) instead of
// AttentionPart. With bfloat16 and float16, a prompt's rows run in the prefill loop
// (kernels/attention/sm80/prefill.cuh): a block has 64 rows of a head; on Hopper
// ../sm90/sparse_attention.cu is used. Decode rows run in the split-KV decode kernel
// (kernels/attention/sm80/decode.cuh). float32 has plain kernels (float32_rows.cuh). Each kernel
// exists for a cache of the rows' type and for one of E4m3 (kernels/attention/sm80/e4m3_rows.cuh).
#include <bit>

#include "kernels/attention/sm80/decode.cuh"
#include "kernels/attention/sm80/float32_rows.cuh"
#include "kernels/attention/sm80/prefill.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/sm80/token_lists.cuh"

namespace nvllm::kernels::cuda {

namespace prefill {
namespace {

static_assert(kSparseTile % kRows == 0);

template <typename T, int D>
__global__ void __launch_bounds__(kWarps * 32)
    sparse_kernel(const AttentionParams<T> p, const SparseLists lists) {
  extern __shared__ __align__(128) unsigned char shared[];
  // The last rows have the most tokens, so they start first. The heads of a KV head are adjacent in
  // the grid.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const AttentionRows<T> part = rows_of_head(p, lists, blockIdx.x, block * kRows, kRows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned queries = shared_address(shared);
  Rows<T, D> rows(queries, warp * 16, lane, p.score_scale(part.kv_head));
  bool started = false;
#pragma unroll 1
  for (int i = 0; i < lists.count; ++i) {
    add_tokens<T, D>(listed(part, lists, list_of(part, lists, i)), 0, queries, started, rows);
  }
  write_rows<T, D>(part, warp * 16, rows);
}

template <typename T>
void launch(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.attention_args());
  const dim3 blocks(p.heads, blocks_for(args.q.shape[0], kRows));
  with_padded_head(p.head_dim, [&]<int D>() {
    const auto kernel = sparse_kernel<T, D>;
    allow_shared_memory(kernel, kSharedBytes<D>, "preparing sparse_attention");
    kernel<<<blocks, kWarps * 32, kSharedBytes<D>, stream>>>(p, SparseLists(args));
    nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
  });
}

}  // namespace
}  // namespace prefill

namespace {

constexpr int kTileRows = static_cast<int>(kSparseTile);

template <typename T>
__global__ void __launch_bounds__(plain::kWarps * 32)
    sparse_float32_kernel(const AttentionParams<T> p, const SparseLists lists) {
  const int q_row = blockIdx.y * plain::kWarps + threadIdx.y;
  if (q_row >= lists.rows) return;
  const int first = q_row / kTileRows * kTileRows;
  const AttentionRows<T> rows = rows_of_head(p, lists, blockIdx.x, first, kTileRows);
  plain::Row row = plain::start_row(rows, q_row - first);
#pragma unroll 1
  for (int i = 0; i < lists.count; ++i) {
    plain::add_tokens(listed(rows, lists, list_of(rows, lists, i)), q_row - first, row);
  }
  plain::write_row(rows, q_row - first, row);
}

template <typename T>
void in_float32(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.attention_args());
  const dim3 blocks(p.heads, blocks_for(args.q.shape[0], plain::kWarps));
  sparse_float32_kernel<T><<<blocks, dim3(32, plain::kWarps), 0, stream>>>(p, SparseLists(args));
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

template <typename T>
void on_tensor_cores(const SparseAttention& args, cudaStream_t stream) {
  if (sparse_attention_sm90<T>(args, stream)) return;
  prefill::launch<T>(args, stream);
}

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

template <typename T>
__global__ void __launch_bounds__(plain::kWarps * 32)
    page_float32_kernel(const AttentionParams<T> p, const PageLists lists) {
  const ListedPart<T> part = listed_pages(p, lists, blockIdx.z, blockIdx.y);
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

template <typename T>
void in_float32(const PageAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.attention_args());
  const dim3 blocks(blocks_for(p.max_group_heads(), plain::kWarps), p.kv_heads(),
                    static_cast<unsigned>(args.q.shape[0]));
  page_float32_kernel<T><<<blocks, dim3(32, plain::kWarps), 0, stream>>>(p, PageLists(args));
  nvllm::cuda::check(cudaGetLastError(), "launching page_attention");
}

template <typename T>
void on_tensor_cores(const PageAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.attention_args());
  with_padded_head(p.head_dim, [&]<int D>() {
    decode::launch<D>(page_kernel<T, D>, p, 1, args.q.shape[0],
                      args.pages.shape[2] * args.page_tokens, stream, PageLists(args));
  });
}

// By the type of q and of the cache.
template <typename Args>
void launch(const Args& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  const bool of_e4m3 = args.kv.keys.dtype == DType::u8;
  switch (args.q.dtype) {
    case DType::f32:
      return of_e4m3 ? in_float32<E4m3Cache<float>>(args, native) : in_float32<float>(args, native);
    case DType::bf16:
      return of_e4m3 ? on_tensor_cores<E4m3Cache<Bf16>>(args, native)
                     : on_tensor_cores<Bf16>(args, native);
    default:
      return of_e4m3 ? on_tensor_cores<E4m3Cache<F16>>(args, native)
                     : on_tensor_cores<F16>(args, native);
  }
}

}  // namespace

void sparse_attention(const SparseAttention& args, Stream& stream) {
  launch(args, stream);
}

void page_attention(const PageAttention& args, Stream& stream) {
  launch(args, stream);
}

}  // namespace nvllm::kernels::cuda
