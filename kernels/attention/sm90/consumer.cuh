// The consumer warpgroups of attention on Hopper, which compute on the tiles that producer.cuh
// copies.
//
// Each of two consumer warpgroups has 64 packed rows and multiplies them with KV tiles by wgmma.
// The softmax of one tile overlaps the P V GEMM of the previous tile (intra-warpgroup pipelining),
// and the warpgroups alternate in issuing GEMMs (ping-pong), so that the softmax of one overlaps
// the GEMMs of the other. Tiles are processed from the last to the first: only tiles in which some
// row's tokens or window end need a mask. Rows (softmax_rows.cuh) holds the registers and the
// softmax, Consumer the loop. prefill.cu and ../../sparse/sm90/sparse_attention.cu launch
// kernels of it.
#pragma once

#include "kernels/attention/sm90/producer.cuh"
#include "kernels/attention/sm90/softmax_rows.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kRegisters>
__device__ __forceinline__ void raise_register_limit() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_register_limit() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The tiles of tokens [begin, end) of a part, of which each row attends to a prefix or, with a
// window, a range. Without a window, begin is 0.
template <int D, typename Part>
struct ContextTiles {
  const Part& part;
  const Boxes& boxes;
  int begin, end;
  int stage = 0;  // of the first tile

  __device__ __forceinline__ int count() const {
    return count_tiles<D>(Part::kWindowed ? begin : 0, end);
  }
  // The first token of the i-th tile in processing order.
  __device__ __forceinline__ int first(int i) const {
    return (count_tiles<D>(end) - 1 - i) * kTokens<D>;
  }

  // What a thread needs to mask its scores: for rows `row` and row + 8 of a warpgroup whose rows
  // begin at group_row.
  struct Mask {
    int visible[2], min_visible;
    int row = 0, max_first_seen = 0;  // with a window
    __device__ __forceinline__ Mask(const ContextTiles& tiles, int group_row, int row)
        : visible{tiles.part.visible(row), tiles.part.visible(row + 8)},
          min_visible(tiles.part.visible(group_row)) {
      if constexpr (!Part::kWindowed) return;
      this->row = row;
      max_first_seen = tiles.part.first_seen(group_row + kGroupRows - 1);
    }
  };
  template <typename Rows>
  __device__ __forceinline__ void mask(const Mask& mask, int i, Rows& rows, int lane) const {
    if constexpr (Part::kWindowed) mask_before(mask, i, rows, lane);
    if (first(i) + kTokens<D> <= mask.min_visible) return;
    const int within[2] = {mask.visible[0] - first(i), mask.visible[1] - first(i)};
    rows.mask(within, lane);
  }

  // Called after each wait for keys or values.
  __device__ __forceinline__ void arrived() const {}
  // Zeroes the rows of the first tile's values that no copy has written.
  template <typename T>
  __device__ __forceinline__ void zero_missing_values(const Shared<T, D>& shared,
                                                      int thread) const {
    if constexpr (kIsE4m3<T>) return;  // the producer has
    const int count = boxes.filled_by(min(kTokens<D>, end - first(0)));
    const int filled = min(count * boxes.tokens, part.tokens - first(0));
    if (filled >= kTokens<D>) return;
    clear(shared.values(stage), filled, kTokens<D>, thread);
  }
  // Zeroes the rows of the i-th tile's values that precede the windows of all rows.
  __device__ __forceinline__ void zero_unseen_values(int i, unsigned values, int thread) const {
    if constexpr (!Part::kWindowed) return;
    if (first(i) < begin) clear(values, 0, begin - first(i), thread);
  }

 private:
  template <typename Rows>
  __device__ __forceinline__ void mask_before(const Mask& mask, int i, Rows& rows, int lane) const {
    if (first(i) >= mask.max_first_seen) return;
    const int before[2] = {part.first_seen(mask.row) - first(i),
                           part.first_seen(mask.row + 8) - first(i)};
    rows.mask_before(before, lane);
  }
  __device__ __forceinline__ static void clear(unsigned values, int from, int to, int thread) {
    clear_rows<D>(values, from, to, thread);
    fence_shared_writes();
    sync_threads(kAllConsumers, kConsumers * kGroupThreads);
  }
};

// A consumer warpgroup. It processes work tiles in sequence: packed rows and the KV tiles that they
// attend to.
template <typename T, int D>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Shared<T, D>& shared, int group, int thread)
      : shared_(shared), group_(group), thread_(thread) {
    if (group == 1) arrive_at(kFirstOrder, kBoth);  // group 0 is first
  }

  // KV tiles of the previous work tiles.
  __device__ __forceinline__ int done() const { return done_; }

  // The warpgroup copies the queries of a work tile whose rows begin at block_row.
  __device__ __forceinline__ void copy_own_queries(const AttentionRows<T>& part,
                                                   int block_row) const {
    sync_threads(kFirstGroup + group_,
                 kGroupThreads);  // GEMMs with the previous queries are done
    const int first = group_ * kGroupRows;
    if constexpr (kIsE4m3<T>) {
      copy_scaled_queries<T, D>(part, shared_, first, block_row + first, thread_);
    } else {
      copy_queries<T, D>(part, shared_.queries(), first, block_row + first, thread_);
    }
    fence_shared_writes();
    sync_threads(kFirstGroup + group_, kGroupThreads);
  }

  // Runs a work tile whose queries have arrived. queries_done() is called when they are no longer
  // needed. Tiles: as ContextTiles.
  template <typename Tiles, typename QueriesDone>
  __device__ __forceinline__ void attend(const AttentionRows<T>& part, const Tiles& tiles,
                                         int block_row, const QueriesDone& queries_done) {
    const int group_row = block_row + group_ * kGroupRows, row = group_row + thread_ / 32 * 16;
    const int count = tiles.count();
    const unsigned queries = shared_.queries() + group_ * kGroupRows * kRowBytes;
    Rows<T, D> rows;
    rows.clear_out();
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = part.p.score_scale(part.kv_head) * kLog2E;
      if constexpr (kIsE4m3<T>) scale[i] *= query_factor(row - block_row + lane() / 4 + 8 * i);
    }
    const typename Tiles::Mask mask(tiles, group_row, row + lane() / 4);
    const auto wait_for = [&](const Barrier& full, const PipelineState<T, D>& state) {
      full.wait(state.parity);
      tiles.arrived();
    };
    const int own_order = kFirstOrder + group_, other_order = kFirstOrder + 1 - group_;

    if (count > 0) {
      const PipelineState<T, D> state(done_);
      wait_for(shared_.keys_full(state.stage), state);
      rows.multiply_keys(queries, shared_.keys(state.stage));
      wgmma_wait<0>();
      hold(rows.scores);
      release(shared_.keys_empty(state.stage));
      if (count == 1) queries_done();
      tiles.mask(mask, 0, rows, lane());
      rows.rescale_and_exponentiate(scale);
      rows.pack_weights();
      rows.add_row_sums();
      wait_for(shared_.values_full(state.stage), state);
      tiles.zero_missing_values(shared_, group_ * kGroupThreads + thread_);
      tiles.zero_unseen_values(0, shared_.values(state.stage), group_ * kGroupThreads + thread_);
    }
    for (int i = 1; i < count; ++i) {
      const PipelineState<T, D> state(done_ + i), before(done_ + i - 1);
      wait_for(shared_.keys_full(state.stage), state);
      // The warpgroups alternate in issuing GEMMs.
      sync_threads(own_order, kBoth);
      rows.multiply_keys(queries, shared_.keys(state.stage));
      rows.multiply_values(shared_.values(before.stage), i == 1);
      arrive_at(other_order, kBoth);
      wgmma_wait<1>();
      hold(rows.scores);
      tiles.mask(mask, i, rows, lane());
      rows.template exponentiate<0, kOverlapped>(scale, rows.reference);
      // The previous GEMM is nearly done by now. The barrier wait is a loop, across which the
      // assembler moves neither the exponentials nor the next wait; this keeps the softmax and the
      // GEMM overlapped.
      wait_for(shared_.values_full(state.stage), state);
      tiles.zero_unseen_values(i, shared_.values(state.stage), group_ * kGroupThreads + thread_);
      wgmma_wait<0>();
      rows.hold_out();
      release(shared_.values_empty(before.stage));
      rows.template exponentiate<kOverlapped, kTokens<D> / 8>(scale, rows.reference);
      rows.pack_weights();
      if (any_of_threads(kFirstGroup + group_, kGroupThreads, rows.needs_rescale())) {
        rows.multiply_keys(queries, shared_.keys(state.stage));  // the scores were overwritten
        wgmma_wait<0>();
        hold(rows.scores);
        tiles.mask(mask, i, rows, lane());
        rows.rescale_and_exponentiate(scale);
        rows.pack_weights();
      }
      rows.add_row_sums();
      release(shared_.keys_empty(state.stage));
      if (i == count - 1) queries_done();  // the next queries arrive during the last GEMM
    }
    if (count == 0) queries_done();
    if (count > 0) {
      const PipelineState<T, D> last(done_ + count - 1);
      rows.multiply_values(shared_.values(last.stage), count == 1);
      wgmma_wait<0>();
      rows.hold_out();
      release(shared_.values_empty(last.stage));
    }
    done_ += count;
    rows.write(part, row, lane());
  }

  // Releases what the warps of all consumers have read.
  __device__ __forceinline__ void release(const Barrier& empty) const {
    __syncwarp();
    if (lane() == 0) empty.arrive();
  }

 private:
  // Groups of 8 columns whose weights are computed while the previous GEMM still runs.
  static constexpr int kOverlapped = kTokens<D> / 16;
  static constexpr int kBoth = kConsumers * kGroupThreads;

  // QueryScale::inverse of a row of the block.
  __device__ __forceinline__ float query_factor(int row) const {
    float factor;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(factor)
                 : "r"(shared_.query_factor(row))
                 : "memory");
    return factor;
  }
  __device__ __forceinline__ int lane() const {
    return thread_ % 32;
  }

  const Shared<T, D> shared_;
  const int group_, thread_;
  int done_ = 0;
};

// A consumer warpgroup with one work tile.
template <typename T, int D, typename Tiles>
__device__ __forceinline__ void consume(const AttentionRows<T>& part, const Shared<T, D>& shared,
                                        const Tiles& tiles, int block_row, int group, int thread) {
  Consumer<T, D> consumer(shared, group, thread);
  consumer.copy_own_queries(part, block_row);
  consumer.attend(part, tiles, block_row, [] {});
}

// The work of a block with one work tile, whose rows are those from block_row on.
template <typename T, int D, typename Part>
__device__ __forceinline__ void attend(const Part& part, int block_row, const CUtensorMap& keys,
                                       const CUtensorMap& values, const Boxes& boxes,
                                       const void* memory) {
  const Shared<T, D> shared(memory);
  const int begin = Part::kWindowed ? part.first_seen(block_row) : 0;
  const int end = visible_tokens(part, min(block_row + kRows, part.packed_rows));
  if (threadIdx.x == 0) start_barriers(shared, kTileArrivals<T>, kTileArrivals<T>);
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    lower_register_limit<kIsE4m3<T> ? 72 : 40>();
    produce<T, D>(part, shared, {keys, values, keys, values}, boxes, begin, end, 0, thread);
  } else {
    raise_register_limit<kIsE4m3<T> ? 216 : 232>();
    consume<T, D>(part, shared, ContextTiles<D, Part>{part, boxes, begin, end}, block_row, group,
                  thread);
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
