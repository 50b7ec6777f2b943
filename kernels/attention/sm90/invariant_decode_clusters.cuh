// Invariant decode attention on Hopper (invariant_decode.cu) by clusters of blocks, for few
// sequences, which would otherwise leave most multiprocessors idle: the work of a block's warps.
//
// The prefill kernel (consumer.cuh) processes tiles of 128 tokens from the last to the first, and
// accumulates the weighted values over all of them in one chain. No chain may be split here,
// either: the blocks of a cluster split the tokens only for the scores, which are independent, and
// then the columns of the values. A cluster processes a `round` of up to kRoundTiles tiles at a
// time:
//
//   1. Every worker warp of the cluster computes the scores of 16 tokens, and sends them to all
//      blocks.
//   2. Each block's workers turn all of them into weights, tile by tile, by the rules of Rows
//      (softmax_rows.cuh): the reference of a row is the maximum exponent of its first tile, and is
//      raised when a tile's weights are too large.
//   3. One more warp multiplies the block's columns of the values by the weights, tile by tile,
//      while the workers already process the next round. Exchanged data is double-buffered, for
//      even and odd rounds.
//
// Each warp issues its own bulk copies; data that the previous kernel has not just written is
// copied before that kernel has ended.
#pragma once

#include <algorithm>

#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/attention/sm90/softmax_rows.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda::invariant_decode::clusters {

inline constexpr int kRows = 8, kWorkers = 8, kThreads = (kWorkers + 1) * 32;
inline constexpr int kTileTokens = sm90::kTokens<128>, kStepTokens = 16,
                     kTileSteps = kTileTokens / kStepTokens;
inline constexpr int kRoundTiles = 8;
inline constexpr int kRoundSteps = kRoundTiles * kTileSteps;
inline constexpr int kStepBytes = 32 * 16;    // of scores
inline constexpr int kKeyStages = 2;          // steps that a worker copies ahead
inline constexpr int kValueBytes = 48 << 10;  // of a block's values in flight

// The layout of a block's shared memory, in bytes. Boxes have 16 tokens: whole keys, and the
// block's columns of values. Exchanged data is double-buffered, for even and odd rounds.
template <int D, int kBlocks>
struct Layout {
  static constexpr int kColumns = D / kBlocks;  // of the block
  static_assert(kColumns >= 16 && kColumns <= sm90::kHalf);
  static constexpr int kWorkerSteps = kRoundSteps / (kBlocks * kWorkers);  // of a round
  static constexpr int kKeyBox = kStepTokens * D * 2, kValueBox = kStepTokens * kColumns * 2;
  static constexpr int kValueTile = kTileSteps * kValueBox;
  static constexpr int kValueStages = std::min(8, kValueBytes / kValueTile);
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + kWorkers * kKeyStages * kKeyBox;
  static constexpr int kScores = kValues + kValueStages * kValueTile;   // [kRoundSteps][32] float4
  static constexpr int kWeights = kScores + 2 * kRoundSteps * 32 * 16;  // [kRoundSteps][32] uint2
  static constexpr int kSums = kWeights + 2 * kRoundSteps * 32 * 8;     // [kRoundTiles][32] float
  static constexpr int kFactors = kSums + 2 * kRoundTiles * 32 * 4;  // [kRoundTiles][kRows] float
  static constexpr int kReferences = kFactors + 2 * kRoundTiles * kRows * 4;  // [32] float
  static constexpr int kRaised = kReferences + 2 * 32 * 4;                    // [kRoundTiles] int
  static constexpr int kBarriers = kRaised + 2 * kRoundTiles * 4;
  static constexpr int kBytes = kBarriers + (kWorkers * kKeyStages + kValueStages + 6) * 8;
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ float max_over_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// State that all warps of a block share. Tiles are numbered in processing order.
template <typename T, int D, int kBlocks>
struct Work {
  using Here = Layout<D, kBlocks>;

  const AttentionPart<T>& part;
  unsigned char* memory;
  unsigned base;
  int tiles, rounds;

  __device__ __forceinline__ Work(const AttentionPart<T>& part, unsigned char* memory)
      : part(part),
        memory(memory),
        base(shared_address(memory)),
        tiles((part.tokens + kTileTokens - 1) / kTileTokens),
        rounds((tiles + kRoundTiles - 1) / kRoundTiles) {}

  __device__ __forceinline__ int first_token(int tile) const {
    return (tiles - 1 - tile) * kTileTokens;
  }
  __device__ __forceinline__ int tiles_of(int round) const {
    return min(kRoundTiles, tiles - round * kRoundTiles);
  }
  template <typename Value>
  __device__ __forceinline__ Value* at(int offset, int each, int round) const {
    return reinterpret_cast<Value*>(memory + offset) + round % 2 * each;
  }
  __device__ __forceinline__ float4* scores(int round, int step) const {
    return at<float4>(Here::kScores, kRoundSteps * 32, round) + step * 32;
  }
  __device__ __forceinline__ uint2* weights(int round, int step) const {
    return at<uint2>(Here::kWeights, kRoundSteps * 32, round) + step * 32;
  }
  __device__ __forceinline__ float* sums(int round, int tile) const {
    return at<float>(Here::kSums, kRoundTiles * 32, round) + tile * 32;
  }
  __device__ __forceinline__ float* factors(int round, int tile) const {
    return at<float>(Here::kFactors, kRoundTiles * kRows, round) + tile * kRows;
  }
  __device__ __forceinline__ float* references(int round) const {
    return at<float>(Here::kReferences, 32, round);
  }
  __device__ __forceinline__ int* raised(int round) const {
    return at<int>(Here::kRaised, kRoundTiles, round);
  }

  __device__ __forceinline__ Barrier barrier(int number) const {
    return {base + Here::kBarriers + number * 8};
  }
  __device__ __forceinline__ Barrier keys_arrived(int worker, int stage) const {
    return barrier(worker * kKeyStages + stage);
  }
  __device__ __forceinline__ Barrier values_arrived(int stage) const {
    return barrier(kWorkers * kKeyStages + stage);
  }
  __device__ __forceinline__ Barrier scores_arrived(int round) const {
    return barrier(kWorkers * kKeyStages + Here::kValueStages + round % 2);
  }
  __device__ __forceinline__ Barrier weights_made(int round) const {
    return barrier(kWorkers * kKeyStages + Here::kValueStages + 2 + round % 2);
  }
  __device__ __forceinline__ Barrier weights_used(int round) const {
    return barrier(kWorkers * kKeyStages + Here::kValueStages + 4 + round % 2);
  }
  // The barriers of a place are used every other round.
  __device__ __forceinline__ static unsigned parity(int round) { return round / 2 & 1; }

  // Announces the scores of a round that other blocks send, once the previous ones in the same
  // buffer have arrived. The block's own are complete when each of its workers has arrived.
  __device__ __forceinline__ void expect_scores(int round) const {
    if (round >= rounds) return;
    const int all = tiles_of(round),
              own = (all - static_cast<int>(blockIdx.x) + kBlocks - 1) / kBlocks;
    scores_arrived(round).arrive_and_expect((all - own) * kTileSteps * kStepBytes);
  }

  // By one thread, before all others start.
  __device__ __forceinline__ void start() const {
    for (int i = 0; i < kWorkers * kKeyStages + Here::kValueStages; ++i) barrier(i).init(1);
    for (int round = 0; round < 2; ++round) {
      scores_arrived(round).init(1 + kWorkers);
      weights_made(round).init(kWorkers);
      weights_used(round).init(1);
    }
    fence_barrier_init();
    expect_scores(0);
    expect_scores(1);
  }

  // The cache block of a token, and its index there. The token may lie past the sequence.
  __device__ __forceinline__ int block_of(int token) const {
    const auto& p = part.p;
    if (p.block_table == nullptr) return part.sequence;
    if (token < 0 || token >= part.tokens) return 0;
    const int block = p.block_shift >= 0 ? token >> p.block_shift : token / p.block_size;
    return p.block_table[static_cast<long long>(part.sequence) * p.table_width + block];
  }
  __device__ __forceinline__ int within_block(int token) const {
    const auto& p = part.p;
    if (p.block_table == nullptr) return token;
    return p.block_shift >= 0 ? token & (p.block_size - 1) : token % p.block_size;
  }
};

// Steps 1 and 2. A lane has row lane / 4, and two of each 8 tokens.
template <typename T, int D, int kBlocks>
class Worker {
 public:
  using Here = Layout<D, kBlocks>;

  __device__ __forceinline__ Worker(const Work<T, D, kBlocks>& work, const CUtensorMap& keys)
      : work_(work),
        part_(work.part),
        keys_(keys),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        scale_(part_.p.scale * kLog2E),
        blocks_(work.block_of(token_of(lane_))) {}

  __device__ __forceinline__ void run(bool history_is_visible) {
#pragma unroll
    for (int i = 0; i < kKeyStages; ++i) {
      if (!history_is_visible || !has_new_token(i)) copy(i, i);
    }
    if (history_is_visible) {
      pdl_begin();
#pragma unroll
      for (int i = 0; i < kKeyStages; ++i) {
        if (has_new_token(i)) copy(i, i);
      }
    }
    load_queries();
    wait_for_cluster();  // all blocks have their barriers
    for (int round = 0; round < work_.rounds; ++round) {
      send_scores(round);
      __syncwarp();
      if (lane_ == 0) work_.scores_arrived(round).arrive();
      work_.scores_arrived(round).wait(work_.parity(round));
      if (threadIdx.x == 0) work_.expect_scores(round + 2);
      if (round >= 2) work_.weights_used(round).wait(work_.parity(round) ^ 1);
      make_weights(round);
      __syncwarp();
      if (lane_ == 0) work_.weights_made(round).arrive();
    }
  }

 private:
  // The i-th step of this worker: its number in its round, its tile, and its first token. Past the
  // last tile tokens are negative.
  __device__ __forceinline__ int step_of(int i) const {
    return (static_cast<int>(blockIdx.x) + i % Here::kWorkerSteps * kBlocks) * kWorkers + warp_;
  }
  __device__ __forceinline__ int tile_of(int i) const {
    return i / Here::kWorkerSteps * kRoundTiles + step_of(i) / kTileSteps;
  }
  __device__ __forceinline__ int token_of(int i) const {
    return work_.first_token(tile_of(i)) + step_of(i) % kTileSteps * kStepTokens;
  }
  __device__ __forceinline__ bool exists(int token) const {
    return token >= 0 && token < part_.tokens;
  }
  __device__ __forceinline__ bool has_new_token(int i) const {
    const int last = part_.tokens - 1 - token_of(i);
    return last >= 0 && last < kStepTokens;
  }

  // Steps are asked for in order, but for the first ones.
  __device__ __forceinline__ void copy(int i, int stage) {
    if (i > 0 && i % 32 == 0) blocks_ = work_.block_of(token_of(i + lane_));
    const int block = __shfl_sync(~0u, blocks_, i % 32), token = token_of(i);
    if (lane_ > 0 || !exists(token)) return;
    const Barrier arrived = work_.keys_arrived(warp_, stage);
    arrived.arrive_and_expect(Here::kKeyBox);
    copy_box(keys_at(stage), keys_, 0, work_.within_block(token), 0, part_.kv_head, block, arrived,
             evict_first_);
  }
  __device__ __forceinline__ unsigned keys_at(int stage) const {
    return work_.base + Here::kKeys + (warp_ * kKeyStages + stage) * Here::kKeyBox;
  }

  __device__ __forceinline__ void load_queries() {
    const int row = lane_ / 4;
    const bool valid = row < part_.packed_rows;
    const T* const from = valid ? part_.query(row) + 2 * (lane_ % 4) : part_.p.q;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* const word = reinterpret_cast<const unsigned*>(from + step * 16 + half * 8);
        queries_[step].word[2 * half] = valid ? *word : 0;
        queries_[step].word[2 * half + 1] = 0;
      }
    }
  }

  // --- 1. scores ---

  __device__ __forceinline__ void send_scores(int round) {
#pragma unroll
    for (int i = 0; i < Here::kWorkerSteps; ++i) {
      const int number = round * Here::kWorkerSteps + i, stage = number % kKeyStages;
      const int token = token_of(number);
      if (tile_of(number) >= work_.tiles) return;  // nor are there later ones
      if (exists(token)) {
        work_.keys_arrived(warp_, stage).wait(parities_ >> stage & 1);
        parities_ ^= 1u << stage;
      }
      work_.scores(round, step_of(number))[lane_] = scores_of(keys_at(stage), token);
      send(round, step_of(number));
      copy(number + kKeyStages, stage);
    }
  }

  // Copies the scores of a step to the same place in the other blocks.
  __device__ __forceinline__ void send(int round, int step) const {
    fence_shared_writes();
    __syncwarp();
    if (lane_ >= kBlocks || lane_ == static_cast<int>(blockIdx.x)) return;
    const unsigned from = shared_address(work_.scores(round, step));
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(address_in(from, lane_)),
        "r"(from), "r"(kStepBytes), "r"(address_in(work_.scores_arrived(round).address, lane_))
        : "memory");
  }

  __device__ __forceinline__ float4 scores_of(unsigned keys, int token) const {
    float sum[2][4] = {};
    const int row = lane_ / 16 * 8 + lane_ % 8;
    if (token < part_.tokens) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        const int chunk = step * 2 + lane_ / 8 % 2;
        const unsigned at = keys + (chunk / 8 * kStepTokens + row) * sm90::kRowBytes +
                            ((chunk & 7) ^ (row & 7)) * 16;
        const Quad k = load_matrices<false>(at);
        multiply_add<T>(sum[0], queries_[step], k.word[0], k.word[1]);
        multiply_add<T>(sum[1], queries_[step], k.word[2], k.word[3]);
      }
    }
    const int own = token + lane_ % 4 * 2;
    const auto masked = [&](float score, int at) {
      return own + at < part_.tokens ? score : -INFINITY;
    };
    return make_float4(masked(sum[0][0], 0), masked(sum[0][1], 1), masked(sum[1][0], 8),
                       masked(sum[1][1], 9));
  }

  // --- 2. weights ---

  __device__ __forceinline__ void sync_workers() const {
    sync_threads(1, kWorkers * 32);
  }

  __device__ __forceinline__ void make_weights(int round) {
    const int count = work_.tiles_of(round);
    if (round == 0) reference_ = fmaxf(-INFINITY, max_of(0, 0) * scale_);
    for (int tile = warp_; tile < count; tile += kWorkers) {
      if (lane_ % 4 == 0) work_.factors(round, tile)[lane_ / 4] = 1;
      exponentiate(round, tile, round == 0 && tile == 0);
    }
    sync_workers();
    for (int tile = 0; tile < count; ++tile) {
      const int lanes = work_.raised(round)[tile];
      if (lanes != 0) raise(round, tile, lanes, count);
    }
    if (warp_ == 0) work_.references(round)[lane_] = reference_;
  }

  // The maximum score of the lane's row in a tile.
  __device__ __forceinline__ float max_of(int round, int tile) const {
    float row_max = -INFINITY;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const float4 s = work_.scores(round, tile * kTileSteps + step)[lane_];
      row_max = fmaxf(row_max, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
    }
    return max_over_four(row_max);
  }

  // A warp computes the weights of a tile and their sums, and reports the rows that need another
  // reference. final_reference: none does.
  __device__ __forceinline__ void exponentiate(int round, int tile, bool final_reference) const {
    const float reference = reference_of(reference_);
    float even = 0, odd = 0;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const float4 s = work_.scores(round, tile * kTileSteps + step)[lane_];
      const float a = power_of_2(fmaf(s.x, scale_, -reference));
      const float b = power_of_2(fmaf(s.y, scale_, -reference));
      const float c = power_of_2(fmaf(s.z, scale_, -reference));
      const float d = power_of_2(fmaf(s.w, scale_, -reference));
      even = step == 0 ? a : even + a;
      odd = step == 0 ? b : odd + b;
      even += c, odd += d;
      work_.weights(round, tile * kTileSteps + step)[lane_] =
          make_uint2(pack<T>(a, b), pack<T>(c, d));
    }
    work_.sums(round, tile)[lane_] = even + odd;
    const bool too_large =
        !final_reference && sm90::any_of_four(!(even + odd <= sm90::kMaxWeight<T>));
    const unsigned lanes = __ballot_sync(~0u, too_large);
    if (lane_ == 0) work_.raised(round)[tile] = static_cast<int>(lanes);
  }

  // The rows of these lanes take the maximum exponent so far as their reference from this tile on.
  __device__ __forceinline__ void raise(int round, int tile, int lanes, int count) {
    const float before = reference_;
    if (lanes >> lane_ & 1)
      reference_ = fmaxf(before, max_of(round, tile) * scale_);
    else
      max_of(round, tile);  // all lanes of a row take part
    sync_workers();
    for (int other = tile + warp_; other < count; other += kWorkers) {
      if (other == tile && lane_ % 4 == 0)
        work_.factors(round, tile)[lane_ / 4] = power_of_2(before - reference_of(reference_));
      exponentiate(round, other, other == tile);
    }
    sync_workers();
  }

  const Work<T, D, kBlocks>& work_;
  const AttentionPart<T>& part_;
  const CUtensorMap& keys_;
  const int warp_, lane_;
  const float scale_;
  const EvictFirst evict_first_;  // the L2 cache: no other block reads them
  int blocks_;                    // of step lane + a multiple of 32
  unsigned parities_ = 0;         // of the stages' barriers, a bit each
  Quad queries_[D / 16];
  float reference_ = -INFINITY;
};

// Step 3. A lane has row lane / 4, and two of each 8 columns.
template <typename T, int D, int kBlocks>
class ValueWarp {
 public:
  using Here = Layout<D, kBlocks>;

  __device__ __forceinline__ ValueWarp(const Work<T, D, kBlocks>& work, const CUtensorMap& values)
      : work_(work), part_(work.part), values_(values), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run(bool history_is_visible) {
    if (!history_is_visible) copy(0, find_block(0));
#pragma unroll
    for (int tile = 1; tile < Here::kValueStages; ++tile) copy(tile, find_block(tile));
    if (history_is_visible) {  // the first tile has the new token
      const int block = find_block(0);
      pdl_begin();
      copy(0, block);
    }
    next_block_ = find_block(Here::kValueStages);
    for (int round = 0; round < work_.rounds; ++round) {
      work_.weights_made(round).wait(work_.parity(round));
      for (int tile = 0; tile < work_.tiles_of(round); ++tile) add_tile(round, tile);
      __syncwarp();
      if (lane_ == 0) work_.weights_used(round).arrive();
    }
    write();
    wait_for_cluster();
  }

 private:
  // Lanes 0 to 7: the cache block of the lane's 16 tokens of a tile.
  __device__ __forceinline__ int find_block(int tile) const {
    return work_.block_of(work_.first_token(tile) + lane_ % kTileSteps * kStepTokens);
  }
  __device__ __forceinline__ unsigned values_at(int stage) const {
    return work_.base + Here::kValues + stage * Here::kValueTile;
  }
  __device__ __forceinline__ void copy(int tile, int block) const {
    if (tile >= work_.tiles) return;
    const int stage = tile % Here::kValueStages;
    const Barrier arrived = work_.values_arrived(stage);
    const int tokens = part_.tokens - work_.first_token(tile);
    const int boxes = min(kTileSteps, (tokens + kStepTokens - 1) / kStepTokens);
    if (lane_ == 0) arrived.arrive_and_expect(boxes * Here::kValueBox);
    __syncwarp();
    if (lane_ >= boxes) return;
    const int token = work_.first_token(tile) + lane_ * kStepTokens;
    copy_box(values_at(stage) + lane_ * Here::kValueBox, values_, 0, work_.within_block(token),
             static_cast<int>(blockIdx.x), part_.kv_head, block, arrived, evict_first_);
  }

  // The address of a chunk of 8 columns in a box, as bulk copies swizzle its rows.
  static __device__ __forceinline__ unsigned chunk_of(unsigned box, int token, int chunk) {
    constexpr int kChunks = Here::kColumns / 8, kSame = 8 / kChunks;  // rows of the same swizzle
    return box + token * (kChunks * 16) + (chunk ^ (token / kSame % kChunks)) * 16;
  }

  __device__ __forceinline__ void add_tile(int round, int tile) {
    const int number = round * kRoundTiles + tile, stage = number % Here::kValueStages;
    work_.values_arrived(stage).wait(number / Here::kValueStages & 1);
    const int tokens = min(kTileTokens, part_.tokens - work_.first_token(number));
    if (tokens % kStepTokens != 0) clear(values_at(stage), tokens);
    const float factor = work_.factors(round, tile)[lane_ / 4];
#pragma unroll
    for (auto& out : out_) out[0] *= factor, out[1] *= factor;
    sum_ = __fmul_rn(sum_, factor) + work_.sums(round, tile)[lane_];
    const int row = lane_ % 16, half = lane_ / 16;
    const auto add_step = [&](int step) {
      const uint2 w = work_.weights(round, tile * kTileSteps + step)[lane_];
      const Quad weights{{w.x, 0, w.y, 0}};
#pragma unroll
      for (int columns = 0; columns < Here::kColumns / 16; ++columns) {
        const unsigned box = values_at(stage) + step * Here::kValueBox;
        const Quad v = load_matrices<true>(chunk_of(box, row, columns * 2 + half));
        multiply_add<T>(out_[2 * columns], weights, v.word[0], v.word[1]);
        multiply_add<T>(out_[2 * columns + 1], weights, v.word[2], v.word[3]);
      }
    };
    if (tokens == kTileTokens) {
#pragma unroll
      for (int step = 0; step < kTileSteps; ++step) add_step(step);
    } else {
      for (int step = 0; step * kStepTokens < tokens; ++step) add_step(step);
    }
    __syncwarp();
    copy(number + Here::kValueStages, next_block_);
    next_block_ = find_block(number + Here::kValueStages + 1);
  }

  // Zeroes the values past the last token, which may be anything, in the box that contains it.
  __device__ __forceinline__ void clear(unsigned values, int tokens) const {
    constexpr int kChunks = Here::kColumns / 8;
    const unsigned box = values + tokens / kStepTokens * Here::kValueBox;
    for (int i = tokens % kStepTokens * kChunks + lane_; i < kStepTokens * kChunks; i += 32) {
      const unsigned chunk = chunk_of(box, i / kChunks, i % kChunks);
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(chunk), "r"(0) : "memory");
    }
    __syncwarp();
  }

  __device__ __forceinline__ void write() {
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    const int row = lane_ / 4;
    if (row >= part_.packed_rows) return;
    float reference = work_.rounds == 0 ? -INFINITY : work_.references(work_.rounds - 1)[lane_];
    const long long index = part_.index(row);
    part_.p.add_sink(index, reference, sum_);
    const float factor = sum_ == 0 ? 0.0f : 1 / sum_;
    const int column = static_cast<int>(blockIdx.x) * Here::kColumns + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < Here::kColumns / 8; ++i)
      part_.p.store(index * D + column + i * 8, out_[i][0] * factor, out_[i][1] * factor);
    if (part_.p.lse != nullptr && column == 0) part_.p.lse[index] = log_sum_exp(reference, sum_);
  }

  const Work<T, D, kBlocks>& work_;
  const AttentionPart<T>& part_;
  const CUtensorMap& values_;
  const int lane_;
  const EvictFirst evict_first_;
  int next_block_ = 0;
  float sum_ = 0;
  float out_[Here::kColumns / 8][4] = {};
};

#endif

}  // namespace nvllm::kernels::cuda::invariant_decode::clusters
