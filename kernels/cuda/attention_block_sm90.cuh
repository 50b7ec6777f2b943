// Attention of many query rows per sequence on Hopper: a block has 128 packed rows of a sequence and a KV head,
// 64 per consumer warpgroup, whose tensor cores work on tiles of 128 tokens that a producer warp has
// copied in bulk. A warpgroup takes the weights of one tile while its tensor cores still add up the tile
// before; the two warpgroups take turns, so that one's weights are taken under the other's products.
//
// The last tile of tokens is the first to be worked on: it alone, and the few before it that a block's rows
// end in, need masks.
#pragma once

#include "kernels/cuda/attention_rows_sm90.cuh"
#include "kernels/cuda/attention_tiles_sm90.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barriers of some warps, by number; 0 is __syncthreads().
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
inline constexpr int kAllConsumers = 1;                      // the number of their barrier
inline constexpr int kFirstGroup = 2;                        // of each warpgroup alone
inline constexpr int kFirstTurn = kFirstGroup + kConsumers;  // its turn has come

// A consumer warpgroup, which works on one piece after the other: some packed rows with the tiles of tokens
// that they see.
template <typename T, int D>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Shared<D>& shared, int group, int thread)
      : shared_(shared), group_(group), thread_(thread) {
    if (group == 1) arrive_at(kFirstTurn, kBoth);  // the first turn is group 0's
  }

  __device__ __forceinline__ int lane() const { return thread_ % 32; }

  // The warpgroup copies the queries of a piece whose rows begin at block_row.
  template <typename Part>
  __device__ __forceinline__ void fetch_queries(const Part& part, int block_row) const {
    sync_threads(kFirstGroup + group_, kGroupThreads);  // products with those before are done
    copy_queries<T, D>(part, shared_.queries(), group_ * kGroupRows,
                       block_row + group_ * kGroupRows, thread_);
    fence_shared_writes();
    sync_threads(kFirstGroup + group_, kGroupThreads);
  }

  // The queries are there. queries_done() is called when they are needed no more.
  template <typename Part, typename QueriesDone>
  __device__ __forceinline__ void work(const Part& part, const Boxes& boxes, int block_row,
                                       int tokens, const QueriesDone& queries_done) {
    const int group_row = block_row + group_ * kGroupRows, row = group_row + thread_ / 32 * 16;
    const int tiles = count_tiles(tokens);
    const unsigned queries = shared_.queries() + group_ * kGroupRows * kRowBytes;
    Rows<T, D> rows;
#pragma unroll
    for (float& value : rows.out) value = 0;
    const float scale = part.p.scale * kLog2E;
    const int visible[2] = {part.visible(row + lane() / 4), part.visible(row + lane() / 4 + 8)};
    const int least = part.visible(group_row);
    const auto mask = [&](int first) {
      if (first + kTokens > least) {
        const int within[2] = {visible[0] - first, visible[1] - first};
        rows.mask(within, lane());
      }
    };
    const int own_turn = kFirstTurn + group_, other_turn = kFirstTurn + 1 - group_;

    if (tiles > 0) {
      const Turn turn(done_);
      const int first = (tiles - 1) * kTokens;
      shared_.keys_full(turn.stage).wait(turn.parity);
      rows.multiply_keys(queries, shared_.keys(turn.stage));
      wgmma_wait<0>();
      hold(rows.scores);
      release(shared_.keys_empty(turn.stage));
      mask(first);
      rows.find_highest(scale);
      rows.template weigh<0, kTokens / 8>(scale);
      rows.pack_weights();
      shared_.values_full(turn.stage).wait(turn.parity);
      clear_missing(part, boxes, first, tokens, turn.stage);
    }
    for (int i = 1; i < tiles; ++i) {
      const Turn turn(done_ + i), before(done_ + i - 1);
      shared_.keys_full(turn.stage).wait(turn.parity);
      // The warpgroups take turns in enqueueing products.
      sync_threads(own_turn, kBoth);
      rows.multiply_keys(queries, shared_.keys(turn.stage));
      rows.multiply_values(shared_.values(before.stage), i == 1);
      arrive_at(other_turn, kBoth);
      wgmma_wait<1>();
      hold(rows.scores);
      release(shared_.keys_empty(turn.stage));
      mask((tiles - 1 - i) * kTokens);
      rows.find_highest(scale);
      rows.template weigh<0, kEarly>(scale);
      // By now the sum with the weights before is about done. What is waited for here is a loop, which the assembler
      // moves neither that wait nor the weights across: they and the products overlap.
      shared_.values_full(turn.stage).wait(turn.parity);
      wgmma_wait<0>();
      hold(rows.out);
      release(shared_.values_empty(before.stage));
      rows.template weigh<kEarly, kTokens / 8>(scale);
      rows.fade_out();
      rows.pack_weights();
    }
    queries_done();
    if (tiles > 0) {
      const Turn last(done_ + tiles - 1);
      rows.multiply_values(shared_.values(last.stage), tiles == 1);
      wgmma_wait<0>();
      hold(rows.out);
      release(shared_.values_empty(last.stage));
    }
    done_ += tiles;
    rows.write(part, row, lane());
  }

  __device__ __forceinline__ void release(const Barrier& empty) const {
    __syncwarp();
    if (lane() == 0) empty.arrive();
  }

 private:
  static constexpr int kEarly = 8;  // pieces of 8 columns whose weights are taken under the products before
  static constexpr int kBoth = kConsumers * kGroupThreads;

  // Values of the last tile that nobody has copied.
  template <typename Part>
  __device__ __forceinline__ void clear_missing(const Part& part, const Boxes& boxes, int first,
                                                int tokens, int stage) const {
    const int count = (min(kTokens, tokens - first) + boxes.tokens - 1) / boxes.tokens;
    const int filled = min(count * boxes.tokens, part.tokens - first);
    if (filled >= kTokens) return;
    clear_rows<D>(shared_.values(stage), filled, group_ * kGroupThreads + thread_);
    fence_shared_writes();
    sync_threads(kAllConsumers, kBoth);
  }

  const Shared<D> shared_;
  const int group_, thread_;
  int done_ = 0;  // tiles of earlier pieces
};

// What a block does that has one piece, whose rows are those from block_row on.
template <typename T, int D, typename Part>
__device__ __forceinline__ void attend(const Part& part, int block_row, const CUtensorMap& keys,
                                       const CUtensorMap& values, const Boxes& boxes,
                                       const void* memory) {
  const Shared<D> shared(memory);
  const int tokens = seen_by(part, min(block_row + kRows, part.packed_rows));
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<24>();
    if (thread < 32) {
      produce<T, D>(part, shared, {keys, values, keys, values}, boxes, tokens, 0, thread);
    }
  } else {
    more_registers<240>();
    Consumer<T, D> consumer(shared, group, thread);
    consumer.fetch_queries(part, block_row);
    consumer.work(part, boxes, block_row, tokens, [] {});
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
