// Attention of many query rows per sequence on Hopper: blocks work on pieces of 128 packed rows of a sequence and a
// KV head (attention_block_sm90.cuh), one or several each.
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/attention_block_sm90.cuh"
#include "kernels/cuda/attention_maps_sm90.cuh"
#include "kernels/cuda/attention_pieces_sm90.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

struct PrefillMaps {
  CUtensorMap queries, keys, values, key_runs, value_runs;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, int D, int kCluster>
__device__ __forceinline__ void produce_pieces(const AttentionParams<T>& p, const Order& order,
                                               const PrefillMaps& maps, const Boxes& boxes,
                                               const Shared<D>& shared, int lane) {
  if (lane == 0) {
    if (order.queries_in_bulk) prefetch(maps.queries);
    if (boxes.bulk) {
      prefetch(maps.keys);
      prefetch(maps.values);
    }
    if (boxes.runs) {
      prefetch(maps.key_runs);
      prefetch(maps.value_runs);
    }
  }
  const CacheMaps cache{maps.keys, maps.values, maps.key_runs, maps.value_runs};
  const Barrier full = shared.queries_full(), empty = shared.queries_empty();
  int done = 0, given = 0;
  for (int i = 0;; ++i) {
    const int number = number_of<kCluster>(order, i);
    Piece piece;
    if (number >= 0 && number < order.pieces()) piece = find_piece<kCluster>(p, order, number);
    if (number >= 0 && piece.sequence < 0) continue;
    empty.wait((given & 1) ^ 1);
    ++given;
    if (lane == 0) {
      piece.store(shared.piece());
      if (piece.sequence >= 0 && order.queries_in_bulk) {
        full.arrive_and_expect(order.rows * D * 2);
      } else {
        full.arrive();
      }
    }
    __syncwarp();
    if (piece.sequence < 0) return;
    const AttentionPart<T> part = piece.part(p);
    if (order.queries_in_bulk && lane < kHalves<D>) {
      copy_box(shared.queries() + lane * kRows * kRowBytes, maps.queries, lane * kHalf,
               part.head_begin, piece.first_row + piece.block_row / part.group_heads, full);
    }
    produce<T, D, kCluster>(part, shared, cache, boxes, piece.seen, done, lane);
    done += count_tiles(piece.seen);
  }
}

template <typename T, int D, int kCluster>
__device__ __forceinline__ void consume_pieces(const AttentionParams<T>& p, const Order& order,
                                               const Boxes& boxes, const Shared<D>& shared,
                                               int group, int thread) {
  Consumer<T, D, kCluster> consumer(shared, group, thread);
  for (int given = 0;; ++given) {
    shared.queries_full().wait(given & 1);
    const Piece piece = Piece::load(shared.piece());
    if (piece.sequence < 0) return;
    const AttentionPart<T> part = piece.part(p);
    int tokens = piece.seen;
    if constexpr (kCluster > 1) {
      const bool has_rows = piece.block_row < part.packed_rows;
      tokens = has_rows ? seen_by(part, part.packed_rows) : 0;
      consumer.skip(count_tiles(piece.seen) - count_tiles(tokens));
    }
    if (!order.queries_in_bulk) consumer.fetch_queries(part, piece.block_row);
    consumer.work(part, boxes, piece.block_row, tokens,
                  [&] { consumer.release(shared.queries_empty()); });
  }
}

#endif

template <typename T, int D, int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel_sm90(const AttentionParams<T> p, const Order order,
                        const __grid_constant__ PrefillMaps maps, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared<D> shared(memory);
  if (threadIdx.x == 0) shared.init_barriers(kCluster);
  kCluster == 1 ? __syncthreads() : sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<72>();
    if (thread < 32) produce_pieces<T, D, kCluster>(p, order, maps, boxes, shared, thread);
  } else {
    more_registers<216>();
    consume_pieces<T, D, kCluster>(p, order, boxes, shared, group, thread);
  }
  if constexpr (kCluster > 1) sync_cluster();  // nobody copies to a block that has left
#endif
}

int option(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

template <int D, int kCluster, typename T>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  Boxes boxes = boxes_for(args.kv, kTokens / kCluster);
  Order order{};
  order.kv_heads = p.kv_heads();
  order.queries_in_bulk = option("PRE8_BULKQ", 1) != 0 && queries_are_boxes(args);
  order.rows = order.queries_in_bulk ? static_cast<int>(kRows / args.group * args.group) : kRows;
  order.row_blocks = static_cast<int>(p.most_row_blocks(args.q.shape[0], order.rows * kCluster));
  const double head_bytes = 4.0 * D * static_cast<double>(args.max_kv_length);
  order.heads_at_once = std::clamp(
      static_cast<int>(option("PRE8_L2", 32) * 1048576.0 / head_bytes), 1, order.kv_heads);
  const int share = kTokens / kCluster;
  boxes.runs = option("PRE8_RUNS", 1) != 0 && blocks_make_tiles(args.kv, boxes, share);
  PrefillMaps maps{};
  if (order.queries_in_bulk) maps.queries = describe_queries<T, D>(args, order.rows);
  if (boxes.bulk) {
    maps.keys = describe<T, D>(args.kv.keys, boxes.tokens);
    maps.values = describe<T, D>(args.kv.values, boxes.tokens);
  }
  if (boxes.runs) {
    maps.key_runs = describe<T, D>(args.kv.keys, boxes.tokens, share / boxes.tokens);
    maps.value_runs = describe<T, D>(args.kv.values, boxes.tokens, share / boxes.tokens);
  }
  const auto kernel = prefill_kernel_sm90<T, D, kCluster>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing attention");
  static const int processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const int at_once = option("PRE8_BLOCKS", processors) / kCluster, pieces = order.pieces();
  const int mode = option("PRE8_MODE", 2);
  int clusters = pieces;
  if (mode == 1 || (mode == 3 && p.sequences == 1 && pieces <= 16 * at_once)) {
    order.in_turns = true;
    clusters = std::min(pieces, at_once);
  } else if (mode >= 2) {
    const int f = option("PRE8_SHARE", 75);
    order.with_four = pieces * f / 100 / (4 * at_once) * at_once;
    order.with_two = (pieces - 4 * order.with_four) * f / 100 / (2 * at_once) * at_once;
    clusters -= 3 * order.with_four + order.with_two;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters * kCluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes<D>;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, order, maps, boxes),
                     "launching attention");
}

// Blocks of a cluster copy less each, but a sequence's last ones may have no rows.
template <int D, typename T>
void launch(const Attention& args, cudaStream_t stream) {
  const std::int64_t packed = args.q.shape[0] * std::min(args.group, args.q.shape[1]);
  const bool many = packed >= args.kv_length.shape[0] * kRows * option("PRE8_CLUSTER", 1000000);
  if (many && boxes_for(args.kv, kTokens / 2).bulk) return launch<D, 2, T>(args, stream);
  launch<D, 1, T>(args, stream);
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
