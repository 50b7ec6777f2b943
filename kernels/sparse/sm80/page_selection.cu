// Page selection of Quest on the GPU. Bounds: one warp per affected page, sequence and KV head.
// Selection: a few lanes compute the score of each page, then one block per sequence and KV head
// selects the top k (top_k.cuh). Shapes are those of page_selection.h.
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/page_selection.h"
#include "kernels/sparse/sm80/top_k.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * 32;

// N keys, or bounds of keys; of floats a vector.
template <int N>
struct Keys {
  float element[N];
};
template <int N, typename T>
__device__ __forceinline__ Keys<N> load_keys(const T* from) {
  Keys<N> keys;
  if constexpr (sizeof(T) == 1) {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const unsigned word = *reinterpret_cast<const unsigned*>(from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        keys.element[i + j] = widen(E4m3{static_cast<std::uint8_t>(word >> (8 * j))});
    }
  } else {
    static_assert(N == Vector<T>::kElements);
    const Floats<T> floats = widen(load_vector(from));
#pragma unroll
    for (int i = 0; i < N; ++i) keys.element[i] = floats.element[i];
  }
  return keys;
}
template <int N, typename T>
__device__ __forceinline__ void store_keys(T* to, const Keys<N>& keys) {
  if constexpr (sizeof(T) == 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = narrow<E4m3>(keys.element[i]);
  } else {
    Floats<T> floats;
#pragma unroll
    for (int i = 0; i < N; ++i) floats.element[i] = keys.element[i];
    store_vector(to, narrow(floats));
  }
}

template <typename T>
struct BoundParams {
  const T* keys;
  T* bounds;
  const int *query_start, *kv_length;
  const int* table;      // nullptr: sequence s has block s
  const int* block_map;  // nullptr: every block is its own
  long long block_stride, token_stride, head_stride;
  int table_width, block_size, page_tokens, max_pages, kv_heads, head_dim;
  long long items;

  explicit BoundParams(const UpdatePageBounds& args)
      : keys(args.kv.keys.as<T>()),
        bounds(args.bounds.as<T>()),
        query_start(args.query_start.as<int>()),
        kv_length(args.kv_length.as<int>()),
        table(args.kv.block_table.as<int>()),
        block_map(args.block_map.as<int>()),
        block_stride(args.kv.keys.stride[0]),
        token_stride(args.kv.keys.stride[1]),
        head_stride(args.kv.keys.stride[2]),
        table_width(static_cast<int>(args.kv.block_table.shape[1])),
        block_size(static_cast<int>(args.kv.block_size())),
        page_tokens(static_cast<int>(args.page_tokens)),
        max_pages(static_cast<int>(args.max_pages())),
        kv_heads(static_cast<int>(args.kv.kv_heads())),
        head_dim(static_cast<int>(args.kv.head_dim())),
        items(args.kv_length.shape[0] * args.max_pages() * args.kv.kv_heads()) {}
};

template <typename T>
__global__ void __launch_bounds__(kThreads) bound_pages_kernel(const BoundParams<T> p) {
  pdl_begin();
  constexpr int kElements = sizeof(T) == 1 ? 8 : Vector<T>::kElements;
  const long long item = static_cast<long long>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= p.items) return;
  const int head = static_cast<int>(item % p.kv_heads);
  const int nth = static_cast<int>(item / p.kv_heads % p.max_pages);
  const int sequence = static_cast<int>(item / p.kv_heads / p.max_pages);
  const int end = p.kv_length[sequence];
  const int begin = max(0, end - (p.query_start[sequence + 1] - p.query_start[sequence]));
  const int first = (begin / p.page_tokens + nth) * p.page_tokens;
  if (begin == end || first >= end) return;

  const int count = min(p.page_tokens, end - first);
  const int index = first / p.block_size, inside = first % p.block_size;
  long long table_block = sequence;
  if (p.table != nullptr)
    table_block = p.table[static_cast<long long>(sequence) * p.table_width + index];
  const long long block = p.block_map == nullptr ? table_block : p.block_map[table_block];
  const long long page = (table_block * p.block_size + inside) / p.page_tokens;
  const T* keys = p.keys + block * p.block_stride + inside * p.token_stride + head * p.head_stride;
  T* bounds = p.bounds + (page * p.kv_heads + head) * 2 * p.head_dim;
  for (int d = threadIdx.x % 32 * kElements; d < p.head_dim; d += 32 * kElements) {
    Keys<kElements> min_key = load_keys<kElements>(keys + d), max_key = min_key;
    for (int t = 1; t < count; ++t) {
      const Keys<kElements> key = load_keys<kElements>(keys + t * p.token_stride + d);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        min_key.element[i] = fminf(min_key.element[i], key.element[i]);
        max_key.element[i] = fmaxf(max_key.element[i], key.element[i]);
      }
    }
    store_keys(bounds + d, min_key);
    store_keys(bounds + p.head_dim + d, max_key);
  }
}

// Key: the type of bounds.
template <typename T, typename Key>
struct SelectParams {
  const T* q;
  const Key* bounds;
  const int *table, *kv_length;
  float* scores;
  int *pages, *counts;
  long long q_row;
  int table_width, block_size, page_tokens, max_pages, budget;
  int kv_heads, heads, group, first_head, head_dim;
  int lanes;  // per page: a power of two

  explicit SelectParams(const PageSelection& args)
      : q(args.q.as<T>()),
        bounds(args.bounds.as<Key>()),
        table(args.block_table.as<int>()),
        kv_length(args.kv_length.as<int>()),
        scores(args.workspace.as<float>()),
        pages(args.pages.as<int>()),
        counts(args.page_counts.as<int>()),
        q_row(args.q.stride[0]),
        table_width(static_cast<int>(args.block_table.shape[1])),
        block_size(static_cast<int>(args.block_size)),
        page_tokens(static_cast<int>(args.page_tokens)),
        max_pages(static_cast<int>(args.max_pages())),
        budget(static_cast<int>(args.budget)),
        kv_heads(static_cast<int>(args.bounds.shape[1])),
        heads(static_cast<int>(args.q.shape[1])),
        group(static_cast<int>(args.group)),
        first_head(static_cast<int>(args.first_head)),
        head_dim(static_cast<int>(args.q.shape[2])),
        lanes(1) {
    while (lanes < 32 && lanes * Vector<T>::kElements < head_dim) lanes *= 2;
  }
};

template <typename T, typename Key>
__device__ __forceinline__ float page_score(const SelectParams<T, Key>& p, int sequence,
                                            int kv_head, int page, int lane) {
  constexpr int kElements = Vector<T>::kElements;
  const int first = page * p.page_tokens, index = first / p.block_size;
  long long block = sequence;
  if (p.table != nullptr) block = p.table[static_cast<long long>(sequence) * p.table_width + index];
  const long long table_block = (block * p.block_size + first % p.block_size) / p.page_tokens;
  const Key* bounds = p.bounds + (table_block * p.kv_heads + kv_head) * 2 * p.head_dim;
  const int from = max(0, kv_head * p.group - p.first_head);
  const int to = min(p.heads, (kv_head + 1) * p.group - p.first_head);
  float max_score = -INFINITY;
  for (int head = from; head < to; ++head) {
    const T* q = p.q + sequence * p.q_row + head * p.head_dim;
    float sum = 0;
    for (int d = lane * kElements; d < p.head_dim; d += p.lanes * kElements) {
      const Floats<T> value = widen(load_vector(q + d));
      const Keys<kElements> min_key = load_keys<kElements>(bounds + d);
      const Keys<kElements> max_key = load_keys<kElements>(bounds + p.head_dim + d);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        sum += fmaxf(value.element[i] * min_key.element[i], value.element[i] * max_key.element[i]);
      }
    }
    for (int step = 1; step < p.lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    max_score = fmaxf(max_score, sum);
  }
  return max_score;
}

template <typename T, typename Key>
__global__ void __launch_bounds__(kThreads) score_pages_kernel(const SelectParams<T, Key> p) {
  pdl_begin();
  const int sequence = blockIdx.z, kv_head = blockIdx.y;
  const int pages = (p.kv_length[sequence] + p.page_tokens - 1) / p.page_tokens;
  const int per_block = kThreads / p.lanes;
  if (pages <= p.budget) return;  // all of them are selected
  const int page =
      static_cast<int>(blockIdx.x) * per_block + static_cast<int>(threadIdx.x) / p.lanes;
  const int lane = threadIdx.x % p.lanes;
  // Lanes without a page repeat the last one, since all lanes of a warp exchange their sums.
  const float score = page_score(p, sequence, kv_head, min(page, pages - 1), lane);
  if (lane != 0 || page >= pages) return;
  const long long at = static_cast<long long>(sequence) * p.kv_heads + kv_head;
  p.scores[at * p.max_pages + page] = page == 0 || page == pages - 1 ? INFINITY : score;
}

template <typename T, typename Key>
__global__ void __launch_bounds__(kTopKThreads) top_k_pages_kernel(const SelectParams<T, Key> p) {
  pdl_begin();
  __shared__ TopKShared shared;
  const long long at = blockIdx.x;
  const int pages = (p.kv_length[at / p.kv_heads] + p.page_tokens - 1) / p.page_tokens;
  int* kept = p.pages + at * p.budget;
  if (threadIdx.x == 0) p.counts[at] = min(pages, p.budget);
  if (pages <= p.budget) {
    for (int page = threadIdx.x; page < pages; page += kTopKThreads) kept[page] = page;
    return;
  }
  const float* scores = p.scores + at * p.max_pages;
  top_k(
      shared, pages, p.budget, [&](int page) { return order_key(scores[page]); },
      [&](int position, int page) { kept[position] = page; });
}

template <typename T, typename Key>
void enqueue_selection(const PageSelection& args, cudaStream_t stream) {
  const SelectParams<T, Key> p(args);
  const auto sequences = static_cast<unsigned>(args.q.shape[0]);
  const auto kv_heads = static_cast<unsigned>(p.kv_heads);
  if (p.max_pages > p.budget) {
    const dim3 grid(blocks_for(p.max_pages, kThreads / p.lanes), kv_heads, sequences);
    launch_with_pdl("launching page_selection", score_pages_kernel<T, Key>, grid, kThreads, stream,
                    p);
  }
  launch_with_pdl("launching page_selection", top_k_pages_kernel<T, Key>, sequences * kv_heads,
                  kTopKThreads, stream, p);
}

}  // namespace

void update_page_bounds(const UpdatePageBounds& args, Stream& stream) {
  with_key_type(args.kv.keys.dtype, [&]<typename T>(T) {
    const BoundParams<T> p(args);
    launch_with_pdl("launching update_page_bounds", bound_pages_kernel<T>,
                    blocks_for(p.items, kWarps), kThreads, nvllm::cuda::native(stream), p);
  });
}

void page_selection(const PageSelection& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  with_element_type(args.q.dtype, [&]<typename T>(T) {
    args.bounds.dtype == DType::u8 ? enqueue_selection<T, E4m3>(args, native)
                                   : enqueue_selection<T, T>(args, native);
  });
}

}  // namespace nvllm::kernels::cuda
