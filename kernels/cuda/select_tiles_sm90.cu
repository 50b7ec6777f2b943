// Scores of strided rows and tokens on Hopper (select_tiles.cu says what they are): a product of matrices of
// depth 8 head_dim. Blocks stay and take one tile of 128 strided rows and 256 strided tokens after the other.
// A producer warpgroup copies queries and keys, 64 elements deep, into a ring of stages, which two consumer
// warpgroups multiply, each with 64 of the rows. While those take logarithms, the next tile's first stages arrive.
#include "kernels/cuda/attention_maps_sm90.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/select_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace nvllm::kernels::cuda {
namespace strided {
namespace {

constexpr int kRows = 128, kTokens = 256;  // strided, of a tile
constexpr int kConsumers = 2, kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
constexpr int kGroupRows = kRows / kConsumers;
constexpr int kStages = 4;
constexpr int kRowBytes = kDepth * 2;
constexpr int kRowsBytes = kRows * kRowBytes, kTokensBytes = kTokens * kRowBytes;
constexpr int kStageBytes = kRowsBytes + kTokensBytes;
constexpr int kAlignment = 1024, kBarrierBytes = 128;
constexpr int kSharedBytes = kStages * kStageBytes + kBarrierBytes + kAlignment;
constexpr int kTogether = 4;  // tiles of rows that are worked on together

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Place {
  int head, row, token;  // the first strided ones
};

// The tiles of a block, in an order in which those of all blocks at a time share rows and tokens: parts of the
// heads of a KV head and kTogether tiles of rows, in a part a tile of tokens after the other. Both roles walk
// through them.
template <typename T>
class Walk {
 public:
  __device__ __forceinline__ explicit Walk(const TileParams<T>& p)
      : p_(p), left_(static_cast<int>(blockIdx.x)) {
    enter_kv_head();
  }

  // False when there are no more.
  __device__ __forceinline__ bool next(Place& place) {
    for (; next_head_ <= p_.heads && head_ < p_.heads; left_ += static_cast<int>(gridDim.x)) {
      while (left_ >= rows_ * heads_ * token_tiles_) {
        left_ -= rows_ * heads_ * token_tiles_;
        if (!next_part()) return false;
      }
      const int in_row = left_ % (rows_ * heads_);
      place.head = head_ + in_row % heads_;
      place.row = row_ + in_row / heads_ * kRows;
      place.token = left_ / (rows_ * heads_) * kTokens;
      if (place.token < seen_to(place.row)) {
        left_ += static_cast<int>(gridDim.x);
        return true;
      }
    }
    return false;
  }

 private:
  // Strided tokens that a tile of rows sees.
  __device__ __forceinline__ int seen_to(int row) const {
    return p_.seen(min(row + kRows, p_.strides()) - 1);
  }
  __device__ __forceinline__ void enter_kv_head() {
    next_head_ = min(p_.heads, head_ + p_.group - (p_.first_head + head_) % p_.group);
    heads_ = next_head_ - head_;
    row_ = 0;
    enter_rows();
  }
  __device__ __forceinline__ void enter_rows() {
    rows_ = min(kTogether, (p_.strides() - row_ + kRows - 1) / kRows);
    token_tiles_ = (seen_to(row_ + (rows_ - 1) * kRows) + kTokens - 1) / kTokens;
  }
  __device__ __forceinline__ bool next_part() {
    row_ += kTogether * kRows;
    if (row_ < p_.strides()) {
      enter_rows();
      return true;
    }
    head_ = next_head_;
    if (head_ >= p_.heads) return false;
    enter_kv_head();
    return true;
  }

  const TileParams<T>& p_;
  int left_;  // tiles from the part's first to the block's next one
  int head_ = 0, next_head_ = 0, heads_ = 0, row_ = 0, rows_ = 0, token_tiles_ = 0;
};

struct Shared {
  unsigned base;

  __device__ __forceinline__ explicit Shared(const void* memory)
      : base((shared_address(memory) + kAlignment - 1) & ~(kAlignment - 1)) {}
  __device__ __forceinline__ unsigned rows(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ unsigned tokens(int stage) const { return rows(stage) + kRowsBytes; }
  __device__ __forceinline__ Barrier full(int stage) const { return {rows(kStages) + stage * 8}; }
  __device__ __forceinline__ Barrier empty(int stage) const { return full(kStages + stage); }
};

// Which stage of the ring is next, and the parity of its barriers' phase.
struct Turn {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// What a thread of the producers copies: a chunk of 8 elements of every 16th row and token of a stage.
template <typename T>
class Copies {
 public:
  __device__ __forceinline__ explicit Copies(const TileParams<T>& p)
      : p_(p),
        row_(static_cast<int>(threadIdx.x) % kGroupThreads / kChunks),
        chunk_(static_cast<int>(threadIdx.x) % kChunks) {}

  // Finds the keys: strided tokens lie in one block each.
  __device__ __forceinline__ void begin(const Place& place) {
    query_ = kStep * (place.row + row_) + kStep - 1;
    token_ = kStep * (place.token + row_);
    queries_ = p_.q + query_ * p_.q_row + place.head * p_.head_dim + chunk_ * 8;
#pragma unroll
    for (int n = 0; n < kTokens / kApart; ++n) {
      const int token = token_ + n * kApart * kStep;
      keys_[n] = token < p_.tokens
                     ? static_cast<unsigned>((p_.key(token, place.head) - p_.keys) / 8) + chunk_
                     : 0;
    }
  }

  // Elements [d, d + kDepth) of the rows' and tokens' t-th ones.
  __device__ __forceinline__ void copy(int t, int d, unsigned rows, unsigned tokens) const {
    const bool inside = d + chunk_ * 8 < p_.head_dim;
#pragma unroll
    for (int n = 0; n < kRows / kApart; ++n) {
      const int after = n * kApart * kStep - t;
      const bool valid = inside && query_ + after < p_.rows;
      copy_chunk(chunk_at<kDepth>(rows, row_ + n * kApart, chunk_),
                 valid ? queries_ + after * p_.q_row + d : p_.q, valid);
    }
    const T* const keys = p_.keys + t * p_.token_stride + d;
#pragma unroll
    for (int n = 0; n < kTokens / kApart; ++n) {
      const bool valid = inside && token_ + n * kApart * kStep + t < p_.tokens;
      copy_chunk(chunk_at<kDepth>(tokens, row_ + n * kApart, chunk_),
                 valid ? keys + static_cast<long long>(keys_[n]) * 8 : p_.keys, valid);
    }
  }

 private:
  static constexpr int kChunks = kDepth / 8;
  static constexpr int kApart = kGroupThreads / kChunks;

  const TileParams<T>& p_;
  int row_, chunk_;
  int query_ = 0, token_ = 0;
  const T* queries_ = nullptr;
  unsigned keys_[kTokens / kApart] = {};  // in chunks of 8 elements
};

// The producer warpgroup. Stages are told to be full when the copies of two more are on their way.
template <typename T>
__device__ __forceinline__ void produce(const TileParams<T>& p, const Shared& shared) {
  constexpr int kLag = 2;
  Turn turn, done;
  Walk<T> walk(p);
  Copies<T> copies(p);
  const auto tell = [&] {
    fence_shared_writes();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.full(done.stage).arrive();
    done.advance();
  };
  int on_their_way = 0;
  for (Place place; walk.next(place);) {
    copies.begin(place);
    for (int t = 0; t < kStep; ++t) {
      for (int d = 0; d < p.padded_dim; d += kDepth) {
        shared.empty(turn.stage).wait(turn.parity ^ 1);
        copies.copy(t, d, shared.rows(turn.stage), shared.tokens(turn.stage));
        commit_copies();
        turn.advance();
        if (on_their_way < kLag) {
          ++on_their_way;
        } else {
          wait_for_copies<kLag>();
          tell();
        }
      }
    }
  }
  wait_for_copies<0>();
  for (; on_their_way > 0; --on_their_way) tell();
}

// Of four values, one after the other, the one that is added up over the four lanes of a row: a lane gets that
// of its number.
__device__ __forceinline__ float add_quads(const float (&value)[4], int lane) {
  const bool high = lane & 2, odd = lane & 1;
  const float first =
      (high ? value[2] : value[0]) + __shfl_xor_sync(~0u, high ? value[0] : value[2], 2);
  const float second =
      (high ? value[3] : value[1]) + __shfl_xor_sync(~0u, high ? value[1] : value[3], 2);
  return (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
}

constexpr int kScores = kTokens / 2;  // of a thread, of two rows: wgmma.cuh says which

// Scores become log-sum-exps of tiles of 16 tokens, of a row's parts in four lanes. One reference does for all
// 256 tokens: a tile that is zero beside it is so beside all of the row.
template <int kHalf>
__device__ __forceinline__ void sum_tiles(const float (&scores)[kScores], float scale, int seen,
                                          int lane, float (&sums)[kTokens / kTile / 4]) {
  constexpr int kTiles = kTokens / kTile;
  const int own = lane % 4;
  const auto at = [&](int j, int i) {
    return j * 8 + 2 * own + i < seen ? scores[4 * j + 2 * kHalf + i] : -INFINITY;
  };
  float highest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) highest = fmaxf(highest, fmaxf(at(j, 0), at(j, 1)));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
  const float reference = reference_of(highest) * scale;
#pragma unroll
  for (int m = 0; m < kTiles / 4; ++m) {  // lane l gets tiles 4 l to 4 l + 3
    float sum[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = 2 * (4 * n + m);
      sum[n] =
          (power_of_2(at(j, 0) * scale - reference) + power_of_2(at(j, 1) * scale - reference)) +
          (power_of_2(at(j + 1, 0) * scale - reference) +
           power_of_2(at(j + 1, 1) * scale - reference));
    }
    sums[m] = reference + __log2f(add_quads(sum, lane));
  }
}

template <typename T, int kHalf>
__device__ __forceinline__ void store_row(const TileParams<T>& p, const Place& place, int row,
                                          const float (&scores)[kScores], bool masked, int lane) {
  constexpr int kOwn = kTokens / kTile / 4;
  static_assert(kOwn == 4);
  const int i = place.row + row + 8 * kHalf;
  float sums[kOwn];
  if (masked) {
    const int seen = i < p.strides() ? p.seen(i) - place.token : 0;
    sum_tiles<kHalf>(scores, p.scale, seen, lane, sums);
  } else {
    sum_tiles<kHalf>(scores, p.scale, kTokens, lane, sums);
  }
  if (i >= p.strides()) return;
  const int tile = place.token / kTile + lane % 4 * kOwn;
  float* to = p.sums_of(place.head, i) + tile;
  if (p.token_tiles % kOwn == 0) {
    if (tile < p.token_tiles) {
      *reinterpret_cast<float4*>(to) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
    if (tile + m < p.token_tiles) to[m] = sums[m];
  }
}

// A consumer warpgroup.
template <typename T>
__device__ __forceinline__ void consume(const TileParams<T>& p, const Shared& shared, int group,
                                        int thread) {
  const int lane = thread % 32;
  const int steps = kStep * (p.padded_dim / kDepth);
  const auto free_stage = [&](int stage) {
    __syncwarp();
    if (lane == 0) shared.empty(stage).arrive();
  };
  Turn turn;
  Walk<T> walk(p);
  float scores[kScores];
  for (Place place; walk.next(place);) {
    hold(scores);
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      shared.full(turn.stage).wait(turn.parity);
      const unsigned rows = shared.rows(turn.stage) + group * kGroupRows * kRowBytes;
      const unsigned tokens = shared.tokens(turn.stage);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        wgmma<T>(scores, wgmma_factor(rows + k * 32, 16, 1024),
                 wgmma_factor(tokens + k * 32, 16, 1024), step > 0 || k > 0);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        free_stage(before);
      }
      before = turn.stage;
      turn.advance();
    }
    wgmma_wait<0>();
    hold(scores);
    free_stage(before);
    const int row = group * kGroupRows + thread / 32 * 16 + lane / 4;
    const int first = place.row + group * kGroupRows;
    const bool masked = first >= p.strides() || place.token + kTokens > p.seen(first);
    store_row<T, 0>(p, place, row, scores, masked, lane);
    store_row<T, 1>(p, place, row, scores, masked, lane);
  }
}

#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    score_tiles_kernel_sm90(const __grid_constant__ TileParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full(stage).init(kGroupThreads / 32);
      shared.empty(stage).init(kConsumers * kGroupThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<72>();
    produce(p, shared);
  } else {
    more_registers<216>();
    consume(p, shared, group, static_cast<int>(threadIdx.x) % kGroupThreads);
  }
#endif
}

}  // namespace
}  // namespace strided

template <typename T>
bool score_tiles_sm90(const TileParams<T>& p, cudaStream_t stream) {
  const bool together = p.table == nullptr || p.block_size % kStep == 0;
  if (!together || !(p.scale > 0) || !sm90::is_hopper()) return false;
  const auto kernel = strided::score_tiles_kernel_sm90<T>;
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          strided::kSharedBytes),
                     "preparing select_tiles");
  const int blocks = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  kernel<<<blocks, strided::kThreads, strided::kSharedBytes, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching select_tiles");
  return true;
}

template bool score_tiles_sm90<Bf16>(const TileParams<Bf16>& p, cudaStream_t stream);
template bool score_tiles_sm90<F16>(const TileParams<F16>& p, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
