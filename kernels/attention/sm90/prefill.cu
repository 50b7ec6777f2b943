// Attention of many query rows per sequence on Hopper: blocks work on pieces of 128 packed rows of a sequence and a
// KV head (attention_block_sm90.cuh), one or several each.
#include <algorithm>
#include <cstdint>

#include "kernels/attention/sm90/consumer.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

// Pieces have numbers: those with the longest way come first, but only among as many KV heads as the GPU's L2 holds
// the keys and values of.
struct Order {
  int row_blocks;  // of a KV head, at most
  int rows;        // packed ones, of each
  int kv_heads;
  int heads_at_once;
  bool queries_in_bulk;  // a piece's queries are a box
  // A block with several pieces copies the queries and tiles of the next one while the last one ends, but which
  // block has how much to do is only made even by many blocks with little each. So the first blocks take four
  // pieces that follow one another, some more two, all others one.
  int with_four, with_two;
  // Or there are only as many blocks as run at a time: each takes its next pieces from both ends alternately.
  bool in_turns;

  __host__ __device__ int pieces() const { return row_blocks * kv_heads; }
};

struct PrefillMaps {
  CUtensorMap queries, keys, values, key_runs, value_runs;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Piece {
  int sequence = -1;  // -1: it has no rows
  int kv_head, block_row;
  int first_row, packed_rows, tokens, first_visible;  // AttentionPart's; no rows beyond the piece

  template <typename T>
  __device__ __forceinline__ AttentionPart<T> part(const AttentionParams<T>& p) const {
    return {p, sequence, kv_head, first_row, packed_rows, tokens, first_visible};
  }

  __device__ __forceinline__ void store(unsigned to) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(sequence), "r"(kv_head),
                 "r"(block_row), "r"(first_row)
                 : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(packed_rows),
                 "r"(tokens), "r"(first_visible), "r"(0)
                 : "memory");
  }
  __device__ __forceinline__ static Piece load(unsigned from) {
    Piece piece;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.sequence), "=r"(piece.kv_head), "=r"(piece.block_row),
                   "=r"(piece.first_row)
                 : "r"(from)
                 : "memory");
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(piece.packed_rows), "=r"(piece.tokens)
                 : "r"(from + 16)
                 : "memory");
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(piece.first_visible) : "r"(from + 24) : "memory");
    return piece;
  }
};

// All lanes of a warp call it together.
template <typename T>
__device__ __forceinline__ Piece find_piece(const AttentionParams<T>& p, const Order& order,
                                            int number) {
  const int together = order.row_blocks * order.heads_at_once;
  const int first_head = number / together * order.heads_at_once;
  const int heads = min(order.heads_at_once, order.kv_heads - first_head);
  const int rest = number % together;
  Piece piece;
  piece.kv_head = first_head + rest % heads;
  const RowBlock block = find_row_block(p, piece.kv_head, rest / heads, order.rows);
  piece.sequence = block.sequence;
  if (block.sequence < 0) return piece;
  const AttentionPart<T> part(p, block.sequence, piece.kv_head);
  piece.block_row = block.first_row;
  piece.first_row = part.first_row;
  piece.packed_rows = min(part.packed_rows, block.first_row + order.rows);
  piece.tokens = part.tokens;
  piece.first_visible = part.first_visible;
  return piece;
}

// The number of this block's i-th piece; -1: there are no more.
__device__ __forceinline__ int number_of(const Order& order, int i) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  if (order.in_turns) {
    const int number = i * blocks + (i % 2 == 0 ? block : blocks - 1 - block);
    return i * blocks < order.pieces() ? number : -1;
  }
  const int four = min(block, order.with_four), two = min(block - four, order.with_two);
  const int count = block < order.with_four ? 4 : block < order.with_four + order.with_two ? 2 : 1;
  return i < count ? block + 3 * four + two + i : -1;
}

// A warp tells consumers of their next piece, or that there are no more, and copies its queries if it can.
template <typename T, int D>
__device__ __forceinline__ void give_piece(const Piece& piece, const AttentionParams<T>& p,
                                           const Order& order, const CUtensorMap& queries,
                                           const Shared<D>& shared, int lane) {
  const bool bulk = piece.sequence >= 0 && order.queries_in_bulk;
  const Barrier full = shared.queries_full();
  if (lane == 0) {
    piece.store(shared.piece());
    bulk ? full.arrive_and_expect(order.rows * D * 2) : full.arrive();
  }
  __syncwarp();
  if (bulk && lane < kHalves<D>) {
    const int group = p.group_heads(piece.kv_head);
    copy_box(shared.queries() + lane * kRows * kRowBytes, queries, lane * kHalf,
             p.head_begin(piece.kv_head), piece.first_row + piece.block_row / group, full);
  }
}

// The producer warpgroup; its first warp copies queries.
template <typename T, int D>
__device__ __forceinline__ void produce_pieces(const AttentionParams<T>& p, const Order& order,
                                               const PrefillMaps& maps, const Boxes& boxes,
                                               const Shared<D>& shared, int thread) {
  if (thread >= boxes.warps() * 32) return;
  const CacheMaps cache{maps.keys, maps.values, maps.key_runs, maps.value_runs};
  int tiles = 0, pieces = 0;
  for (int i = 0;; ++i) {
    const int number = number_of(order, i);
    Piece piece;
    if (number >= 0 && number < order.pieces()) piece = find_piece(p, order, number);
    if (number >= 0 && piece.sequence < 0) continue;
    if (thread < 32) {
      shared.queries_empty().wait((pieces++ & 1) ^ 1);
      give_piece<T, D>(piece, p, order, maps.queries, shared, thread);
    }
    if (number < 0) return;
    const AttentionPart<T> part = piece.part(p);
    const int tokens = seen_by(part, part.packed_rows);
    produce<T, D>(part, shared, cache, boxes, tokens, tiles, thread);
    tiles += count_tiles(tokens);
  }
}

template <typename T, int D>
__device__ __forceinline__ void consume_pieces(const AttentionParams<T>& p, const Order& order,
                                               const Boxes& boxes, const Shared<D>& shared,
                                               int group, int thread) {
  Consumer<T, D> consumer(shared, group, thread);
  for (int pieces = 0;; ++pieces) {
    shared.queries_full().wait(pieces & 1);
    const Piece piece = Piece::load(shared.piece());
    if (piece.sequence < 0) return;
    const AttentionPart<T> part = piece.part(p);
    if (!order.queries_in_bulk) consumer.copy_own_queries(part, piece.block_row);
    const PrefixTiles<AttentionPart<T>> tiles{part, boxes, seen_by(part, part.packed_rows),
                                              Turn(consumer.done()).stage};
    consumer.work(part, tiles, piece.block_row, [&] { consumer.release(shared.queries_empty()); });
  }
}

#endif

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel_sm90(const AttentionParams<T> p, const Order order,
                        const __grid_constant__ PrefillMaps maps, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared<D> shared(memory);
  if (threadIdx.x == 0) {
    start_barriers(shared, 1, 1);
    if (order.queries_in_bulk) prefetch(maps.queries);
    if (boxes.bulk) {
      prefetch(maps.keys);
      prefetch(maps.values);
    }
  }
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<72>();
    produce_pieces<T, D>(p, order, maps, boxes, shared, thread);
  } else {
    more_registers<216>();
    consume_pieces<T, D>(p, order, boxes, shared, group, thread);
  }
#endif
}

// So much of the L2 is for the keys and values of the KV heads that blocks work on.
constexpr double kL2Bytes = 32 << 20;

// Whether no piece has a much longer way than most, as far as the host knows.
bool are_even(const Attention& args) {
  const std::int64_t sequences = args.kv_length.shape[0];
  return sequences == 1 || (args.max_query_rows * sequences <= 2 * args.q.shape[0] &&
                            args.max_kv_length <= 2 * args.max_query_rows);
}

// `at_once` blocks run at a time.
template <typename T>
Order order_of(const Attention& args, const AttentionParams<T>& p, int at_once) {
  Order order{};
  order.queries_in_bulk = queries_are_boxes(args);
  order.rows = order.queries_in_bulk ? static_cast<int>(kRows / args.group * args.group) : kRows;
  order.row_blocks = static_cast<int>(p.most_row_blocks(args.q.shape[0], order.rows));
  order.kv_heads = p.kv_heads();
  const double head_bytes = 4.0 * p.head_dim * static_cast<double>(args.max_kv_length);
  order.heads_at_once = 1;
  while (order.heads_at_once < order.kv_heads &&
         (order.heads_at_once + 1) * head_bytes <= kL2Bytes) {
    ++order.heads_at_once;
  }
  const int pieces = order.pieces();
  order.in_turns = p.sequences == 1 && pieces <= 4 * at_once;
  if (!order.in_turns && are_even(args)) {
    order.with_four = pieces * 3 / 4 / (4 * at_once) * at_once;
    order.with_two = (pieces - 4 * order.with_four) * 3 / 4 / (2 * at_once) * at_once;
  }
  return order;
}

template <int D, typename T>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const int at_once = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const Order order = order_of(args, p, at_once);
  if (order.pieces() == 0) return;
  Boxes boxes = boxes_for(args.kv);
  boxes.runs = blocks_make_tiles(args.kv, boxes);
  PrefillMaps maps{};
  if (order.queries_in_bulk) maps.queries = describe_queries<T, D>(args, order.rows);
  if (boxes.bulk) {
    maps.keys = describe<T, D>(args.kv.keys, boxes.tokens);
    maps.values = describe<T, D>(args.kv.values, boxes.tokens);
  }
  if (boxes.runs) {
    maps.key_runs = describe<T, D>(args.kv.keys, boxes.tokens, kTokens / boxes.tokens);
    maps.value_runs = describe<T, D>(args.kv.values, boxes.tokens, kTokens / boxes.tokens);
  }
  const auto kernel = prefill_kernel_sm90<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing attention");
  const int blocks = order.in_turns ? std::min(order.pieces(), at_once)
                                    : order.pieces() - 3 * order.with_four - order.with_two;
  kernel<<<blocks, kThreads, kSharedBytes<D>, stream>>>(p, order, maps, boxes);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

}  // namespace
}  // namespace sm90

template <typename T>
bool attention_prefill_sm90(const Attention& args, cudaStream_t stream) {
  if (!sm90::serves(args)) return false;
  args.q.shape[2] == 64 ? sm90::launch<64, T>(args, stream) : sm90::launch<128, T>(args, stream);
  return true;
}

template bool attention_prefill_sm90<Bf16>(const Attention& args, cudaStream_t stream);
template bool attention_prefill_sm90<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
