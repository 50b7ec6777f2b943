// What the producer and the consumers of attention on Hopper do otherwise with a cache of E4m3: its
// tiles and the queries become float16 in shared memory.
#pragma once

#include <algorithm>

#include "kernels/attention/kv_view.h"
#include "kernels/attention/sm90/kv_pipeline.cuh"
#include "kernels/common/sm80/e4m3.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Produces the tiles of a work tile, as produce_boxes() of producer.cuh, by all threads of the
// warpgroup. Each copies pieces of 16 numbers into a ring, several tiles ahead, and stores the same
// pieces as float16 in the tiles, so that no thread waits for another. Rows of tokens beyond
// [begin, end) are zeros.
template <typename T, int D, typename Part>
class E4m3Producer {
 public:
  __device__ __forceinline__ E4m3Producer(const Part& part, const Shared<T, D>& shared, int begin,
                                          int end, int thread)
      : part_(part),
        shared_(shared),
        begin_(begin),
        end_(end),
        last_tile_(count_tiles<D>(end) - 1),
        lane_(thread % 32),
        first_row_(thread / 32 * kWarpTokens),
        own_piece_(shared.e4m3_tile(0) + thread * 16),
        own_chunk_((first_row_ + lane_ / 4) * kRowBytes + (lane_ % 4 * 2 ^ lane_ / 4) * 16),
        next_offset_(offset_in(0)) {}

  __device__ __forceinline__ void produce(int tiles_done) {
    // Tile 2 i is the keys of the i-th tile, tile 2 i + 1 its values.
    const int tiles = 2 * (last_tile_ + 1 - (Part::kWindowed ? begin_ / kTokens<D> : 0));
#pragma unroll 1
    for (int i = 1 - kRing; i < tiles; ++i) {
      if (i + kRing - 1 < tiles) copy(i + kRing - 1);
      commit_copies();  // without copies, too, so that groups can be counted
      if (i < 0) continue;
      wait_for_copies<kRing - 1>();
      store(i, PipelineState<T, D>(tiles_done + i / 2));
    }
  }

 private:
  static constexpr int kRing = kE4m3Stages<T, D>;
  static constexpr int kWarpTokens = kTokens<D> / kProducerWarps;
  // A warp copies 64 numbers of 8 tokens at once, which lie in different banks both in the ring and
  // in a tile. A thread reads some pieces before it stores the first of them.
  static constexpr int kPieces = kWarpTokens / 8 * kHalves<D>, kAtOnce = 4;

  // The row of piece `number`, from this lane's first one on, and its half of a head.
  static constexpr int row_of(int number) {
    return number / kHalves<D> * 8;
  }
  static constexpr int half_of(int number) {
    return number % kHalves<D>;
  }

  __device__ __forceinline__ unsigned piece(int tile, int number) const {
    return own_piece_ + tile % kRing * kE4m3TileBytes<D> + number * kGroupThreads * 16;
  }
  __device__ __forceinline__ int first_token(int tile) const {
    return (last_tile_ - tile / 2) * kTokens<D> + first_row_;
  }
  // The offset of this lane's token, one of the warp's. Beyond the last tile, of any token.
  __device__ __forceinline__ long long offset_in(int tile) const {
    const int token = min(first_token(tile) + lane_ % kWarpTokens, end_ - 1);
    return part_.kv_offset_at(max(token, Part::kWindowed ? begin_ : 0));
  }

  __device__ __forceinline__ void copy(int tile) {
    if (tile % 2 == 0) {  // values have the offsets of keys; the next ones are looked up early
      offset_ = next_offset_;
      next_offset_ = offset_in(tile + 2);
    }
    const int token = first_token(tile) + lane_ / 4;
    const E4m3* const from = (tile % 2 == 0 ? part_.p.keys : part_.p.values) + lane_ % 4 * 16;
#pragma unroll
    for (int number = 0; number < kPieces; ++number) {
      const long long offset = __shfl_sync(~0u, offset_, lane_ / 4 + row_of(number));
      const bool valid =
          row_of(number) < end_ - token && (!Part::kWindowed || row_of(number) >= begin_ - token);
      copy_chunk(piece(tile, number), from + offset + half_of(number) * kHalf, valid);
    }
  }

  __device__ __forceinline__ void store(int tile, const PipelineState<T, D>& state) const {
    const int values = tile % 2 * kStages<T, D>;
    const Barrier full = shared_.barrier(2 * values + state.stage);
    const Barrier empty = shared_.barrier(2 * values + kStages<T, D> + state.stage);
    const unsigned to = shared_.keys(values + state.stage);
    // No warp misses a phase: the next one needs the arrivals of all of them.
    empty.wait(state.parity ^ 1);
#pragma unroll
    for (int first = 0; first < kPieces; first += kAtOnce) {
      unsigned words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) load_words(piece(tile, first + i), words[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) store_piece(to, first + i, words[i]);
    }
    fence_shared_writes();
    __syncwarp();
    if (lane_ == 0) full.arrive();
  }

  // The two chunks of a piece differ in one bit of their addresses; those of other pieces lie at
  // fixed distances.
  __device__ __forceinline__ void store_piece(unsigned tile, int number,
                                              const unsigned (&words)[4]) const {
    const unsigned more = half_of(number) * kTokens<D> * kRowBytes + row_of(number) * kRowBytes;
    unsigned low[4], high[4];
    widen_e4m3_to_half(words[0], low[0], low[1]);
    widen_e4m3_to_half(words[1], low[2], low[3]);
    widen_e4m3_to_half(words[2], high[0], high[1]);
    widen_e4m3_to_half(words[3], high[2], high[3]);
    store_words(tile + own_chunk_ + more, low);
    store_words(tile + (own_chunk_ ^ 16) + more, high);
  }

  const Part& part_;
  const Shared<T, D> shared_;
  const int begin_, end_, last_tile_;
  const int lane_;
  const int first_row_;                 // of this warp, in a tile
  const unsigned own_piece_;            // address of this thread's first piece in the ring
  const unsigned own_chunk_;            // offset of its first chunk in a tile
  long long offset_ = 0, next_offset_;  // of this lane's tokens
};

// A warpgroup copies its 64 packed rows, with zeros for missing ones: as float16, and the inverses
// of their factors.
template <typename T, int D>
__device__ __forceinline__ void copy_scaled_queries(const AttentionRows<T>& part,
                                                    const Shared<T, D>& shared, int first,
                                                    int first_packed, int thread) {
  using Row = typename AttentionTypes<T>::Row;
  constexpr int kChunks = D / 8, kRowsAtOnce = kGroupThreads / kChunks;
  const int row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll 1
  for (int i = 0; i < kGroupRows; i += kRowsAtOnce) {
    Vector<Row> vector{};
    if (first_packed + row + i < part.packed_rows) {
      vector = load_vector(part.query(first_packed + row + i) + chunk * 8);
    }
    const Floats<Row> floats = widen(vector);
    float largest = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(floats.element[j]));
#pragma unroll
    for (int lanes = 1; lanes < kChunks; lanes *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const QueryScale scale(largest);
    Floats<F16> halves;
#pragma unroll
    for (int j = 0; j < 8; ++j) halves.element[j] = floats.element[j] * scale.factor;
    store_chunk<kRows>(shared.queries(), first + row + i, chunk, narrow(halves).word);
    if (chunk == 0) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared.query_factor(first + row + i)),
                   "f"(scale.inverse)
                   : "memory");
    }
  }
}

#endif

// Whether a cache of E4m3 can be copied in chunks of 16 bytes.
inline bool has_whole_chunks(const kernels::KvView& kv) {
  const auto is_whole = [](const TensorView& cache) {
    return cache.aligned(16) && std::all_of(cache.stride.begin(), cache.stride.begin() + 3,
                                            [](std::int64_t stride) { return stride % 16 == 0; });
  };
  return is_whole(kv.keys) && is_whole(kv.values);
}

}  // namespace nvllm::kernels::cuda::sm90
