// Decode attention on Hopper with the bits of prefill's kernel (Attention::invariant): one row of
// each sequence, up to 8 packed rows, bfloat16 or float16, head_dim 64 or 128. For few sequences,
// where prefill's kernel leaves most multiprocessors idle.
//
// Prefill's kernel (consumer.cuh) takes tiles of 128 tokens, the last one first, and sums the
// weighted values over all of them in one chain. So here, too, no chain is cut: the blocks of a
// cluster share the tokens only of the scores, which do not depend on each other, and then the
// columns of the values. A cluster takes a `batch` of up to kBatchTiles tiles at a time:
//
//   1. Every warp of the cluster computes the scores of some 16 tokens, and sends them to all
//      blocks.
//   2. Each block makes weights of all of them, tile by tile, by the rules of Rows
//      (softmax_rows.cuh): the reference of a row is the maximum exponent of its first tile, and is
//      raised where a tile's weights are too large.
//   3. A warp has 8 columns of the values and multiplies them by the weights, tile by tile.
#include <algorithm>

#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/attention/sm90/softmax_rows.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"

namespace nvllm::kernels::cuda {
namespace invariant_decode {
namespace {

constexpr int kRows = 8, kWarps = 8, kThreads = kWarps * 32;
constexpr int kTileTokens = sm90::kTokens, kStepTokens = 16, kTileSteps = kTileTokens / kStepTokens;
constexpr int kBatchTiles = 8;
constexpr int kBatchSteps = kBatchTiles * kTileSteps;
constexpr int kKeyStages = 3;          // steps that a warp copies ahead
constexpr int kValueBytes = 64 << 10;  // of a block's values on their way
constexpr int kColumnBytes = 16;       // of 8 columns of a token's value

// The layout of a block's shared memory, in bytes.
template <int D, int kBlocks>
struct Layout {
  static constexpr int kWarpsWithValues = D / 8 / kBlocks;
  static_assert(kWarpsWithValues >= 1 && kWarpsWithValues <= kWarps);
  static constexpr int kValueTile = kTileTokens * kColumnBytes;
  static constexpr int kValueStages = std::min(8, kValueBytes / kValueTile / kWarpsWithValues);
  static constexpr int kKeyStep = kStepTokens * D * 2;
  static constexpr int kScores = 0;                                   // [kBatchSteps][32] float4
  static constexpr int kWeights = kScores + kBatchSteps * 32 * 16;    // [kBatchSteps][32] uint2
  static constexpr int kSums = kWeights + kBatchSteps * 32 * 8;       // [kBatchTiles][32] float
  static constexpr int kFactors = kSums + kBatchTiles * 32 * 4;       // [kBatchTiles][kRows] float
  static constexpr int kRaised = kFactors + kBatchTiles * kRows * 4;  // [kBatchTiles] int
  static constexpr int kKeys = (kRaised + kBatchTiles * 4 + 127) / 128 * 128;
  static constexpr int kValues = kKeys + kWarps * kKeyStages * kKeyStep;
  static constexpr int kBytes = kValues + kWarpsWithValues * kValueStages * kValueTile;
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ float max_over_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// A lane has row lane / 4, and of each 8 tokens or columns two.
template <typename T, int D, int kBlocks>
class Block {
 public:
  using Here = Layout<D, kBlocks>;

  __device__ __forceinline__ Block(const AttentionParams<T>& p, unsigned char* memory)
      : part_(p, blockIdx.z, blockIdx.y),
        memory_(memory),
        base_(shared_address(memory)),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        scale_(p.scale * kLog2E),
        tiles_((part_.tokens + kTileTokens - 1) / kTileTokens) {}

  __device__ __forceinline__ void run() {
    if (part_.packed_rows == 0) return;  // all blocks of the cluster return here
    arrive_at_cluster();                 // waited for before anything is sent
    load_queries();
    const bool has_values = warp_ < Here::kWarpsWithValues;
    if (has_values) {
#pragma unroll
      for (int stage = 0; stage < Here::kValueStages - 1; ++stage) copy_values(stage);
    }
    for (int first = 0; first < tiles_; first += kBatchTiles) {
      const int count = min(kBatchTiles, tiles_ - first);
      send_scores(first, count);
      sync_cluster();
      make_weights(first == 0, count);
      arrive_at_cluster();  // the scores may be overwritten
      if (has_values) add_values(first, count);
      __syncthreads();  // so may the weights
    }
    wait_for_cluster();
    if (has_values) write();
  }

 private:
  __device__ __forceinline__ float4* scores(int step) const {
    return reinterpret_cast<float4*>(memory_ + Here::kScores) + step * 32;
  }
  __device__ __forceinline__ uint2* weights(int step) const {
    return reinterpret_cast<uint2*>(memory_ + Here::kWeights) + step * 32;
  }
  __device__ __forceinline__ float* sums(int tile) const {
    return reinterpret_cast<float*>(memory_ + Here::kSums) + tile * 32;
  }
  __device__ __forceinline__ float* factors(int tile) const {
    return reinterpret_cast<float*>(memory_ + Here::kFactors) + tile * kRows;
  }
  __device__ __forceinline__ int* raised() const {
    return reinterpret_cast<int*>(memory_ + Here::kRaised);
  }
  // The first token of the i-th tile in the order of work.
  __device__ __forceinline__ int first_token(int i) const {
    return (tiles_ - 1 - i) * kTileTokens;
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

  __device__ __forceinline__ void copy_keys(unsigned to, int token) const {
    constexpr int kChunks = D / 8;
    const long long mine = part_.kv_offset(min(token + lane_ % kStepTokens, part_.tokens - 1));
#pragma unroll
    for (int i = 0; i < kStepTokens * kChunks / 32; ++i) {
      const int row = (i * 32 + lane_) / kChunks, chunk = lane_ % kChunks;
      const long long offset = __shfl_sync(~0u, mine, row) + chunk * 8;
      copy_chunk(chunk_at<D>(to, row, chunk), part_.p.keys + offset, token + row < part_.tokens);
    }
  }

  // Of the tiles from the `first`-th on, to all blocks.
  __device__ __forceinline__ void send_scores(int first, int count) {
    const int steps = count * kTileSteps, stride = kBlocks * kWarps;
    const int begin = static_cast<int>(blockIdx.x) * kWarps + warp_;
    const unsigned ring = base_ + Here::kKeys + warp_ * kKeyStages * Here::kKeyStep;
    const auto token_of = [&](int step) {
      return first_token(first + step / kTileSteps) + step % kTileSteps * kStepTokens;
    };
    const auto copy = [&](int step, int stage) {
      if (step < steps && token_of(step) < part_.tokens)
        copy_keys(ring + stage * Here::kKeyStep, token_of(step));
      commit_copies();
    };
#pragma unroll
    for (int stage = 0; stage < kKeyStages; ++stage) copy(begin + stage * stride, stage);
    wait_for_cluster();  // all blocks are there, and have used the scores before
    int stage = 0;
    for (int step = begin; step < steps; step += stride) {
      wait_for_copies<kKeyStages - 1>();
      __syncwarp();
      const float4 four = scores_of(ring + stage * Here::kKeyStep, token_of(step));
      const unsigned to = shared_address(scores(step) + lane_);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        asm volatile(
            "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(to, block)),
            "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
            : "memory");
      }
      __syncwarp();
      copy(step + kKeyStages * stride, stage);
      if (++stage == kKeyStages) stage = 0;
    }
  }

  __device__ __forceinline__ float4 scores_of(unsigned keys, int token) const {
    float sum[2][4] = {};
    const int row = lane_ / 16 * 8 + lane_ % 8;
    if (token < part_.tokens) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        const Quad k = load_matrices<false>(chunk_at<D>(keys, row, step * 2 + lane_ / 8 % 2));
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

  __device__ __forceinline__ void make_weights(bool first, int count) {
    if (first) reference_ = fmaxf(-INFINITY, max_of(0) * scale_);
    for (int tile = warp_; tile < count; tile += kWarps) {
      if (lane_ % 4 == 0) factors(tile)[lane_ / 4] = 1;
      exponentiate(tile, first && tile == 0);
    }
    __syncthreads();
    for (int tile = 0; tile < count; ++tile) {
      const int rows = raised()[tile];
      if (rows == 0) continue;
      raise(tile, rows, count);
    }
  }

  // The maximum score of the lane's row in a tile.
  __device__ __forceinline__ float max_of(int tile) const {
    float row_max = -INFINITY;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const float4 s = scores(tile * kTileSteps + step)[lane_];
      row_max = fmaxf(row_max, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
    }
    return max_over_four(row_max);
  }

  // A warp makes the weights of a tile, their sums, and says which rows need another reference.
  // settled: none does.
  __device__ __forceinline__ void exponentiate(int tile, bool settled) const {
    const float reference = reference_of(reference_);
    float even = 0, odd = 0;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const float4 s = scores(tile * kTileSteps + step)[lane_];
      const float a = power_of_2(fmaf(s.x, scale_, -reference));
      const float b = power_of_2(fmaf(s.y, scale_, -reference));
      const float c = power_of_2(fmaf(s.z, scale_, -reference));
      const float d = power_of_2(fmaf(s.w, scale_, -reference));
      even = step == 0 ? a : even + a;
      odd = step == 0 ? b : odd + b;
      even += c, odd += d;
      weights(tile * kTileSteps + step)[lane_] = make_uint2(pack<T>(a, b), pack<T>(c, d));
    }
    sums(tile)[lane_] = even + odd;
    const bool too_large = !settled && sm90::any_of_four(!(even + odd <= sm90::kMaxWeight<T>));
    const unsigned lanes = __ballot_sync(~0u, too_large);
    if (lane_ == 0) raised()[tile] = static_cast<int>(lanes);
  }

  // Rows (of these lanes) take the maximum exponent so far as their reference from this tile on.
  __device__ __forceinline__ void raise(int tile, int lanes, int count) {
    const float before = reference_;
    if (lanes >> lane_ & 1)
      reference_ = fmaxf(before, max_of(tile) * scale_);
    else
      max_of(tile);  // all lanes of a row take part
    __syncthreads();
    for (int other = tile + warp_; other < count; other += kWarps) {
      if (other == tile && lane_ % 4 == 0) {
        factors(tile)[lane_ / 4] = power_of_2(before - reference_of(reference_));
      }
      exponentiate(other, other == tile);
    }
    __syncthreads();
  }

  // --- 3. values ---

  __device__ __forceinline__ unsigned value_stage(int i) const {
    return base_ + Here::kValues +
           (warp_ * Here::kValueStages + i % Here::kValueStages) * Here::kValueTile;
  }

  __device__ __forceinline__ void copy_values(int i) const {
    if (i < tiles_) {
      const int column = (static_cast<int>(blockIdx.x) * Here::kWarpsWithValues + warp_) * 8;
      const unsigned to = value_stage(i) + lane_ * kColumnBytes;
#pragma unroll
      for (int part = 0; part < kTileTokens / 32; ++part) {
        const int token = first_token(i) + part * 32 + lane_;
        const bool valid = token < part_.tokens;
        const long long offset = part_.kv_offset(valid ? token : part_.tokens - 1) + column;
        copy_chunk(to + part * 32 * kColumnBytes, part_.p.values + offset, valid);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void add_values(int first, int count) {
    for (int tile = 0; tile < count; ++tile) {
      const int i = first + tile;
      copy_values(i + Here::kValueStages - 1);
      wait_for_copies<Here::kValueStages - 1>();
      __syncwarp();
      const float factor = factors(tile)[lane_ / 4];
      out_[0] *= factor, out_[1] *= factor;
      sum_ = __fmul_rn(sum_, factor) + sums(tile)[lane_];
      const unsigned values = value_stage(i) + lane_ * kColumnBytes;
#pragma unroll
      for (int step = 0; step < kTileSteps; step += 2) {
        const Quad v = load_matrices<true>(values + step * kStepTokens * kColumnBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 w = weights(tile * kTileSteps + step + half)[lane_];
          multiply_add<T>(out_, Quad{{w.x, 0, w.y, 0}}, v.word[2 * half], v.word[2 * half + 1]);
        }
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void write() {
    wait_for_copies<0>();
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    const int row = lane_ / 4;
    if (row >= part_.packed_rows) return;
    const long long index = part_.index(row);
    part_.p.add_sink(index, reference_, sum_);
    const float factor = sum_ == 0 ? 0.0f : 1 / sum_;
    const int column =
        (static_cast<int>(blockIdx.x) * Here::kWarpsWithValues + warp_) * 8 + lane_ % 4 * 2;
    part_.p.store(index * D + column, out_[0] * factor, out_[1] * factor);
    if (part_.p.lse != nullptr && column == 0) {
      part_.p.lse[index] = log_sum_exp(reference_, sum_);
    }
  }

  const AttentionPart<T> part_;
  unsigned char* const memory_;
  const unsigned base_;
  const int warp_, lane_;
  const float scale_;
  const int tiles_;
  Quad queries_[D / 16];
  float reference_ = -INFINITY, sum_ = 0;
  float out_[4] = {};
};

#endif

// grid: a cluster of kBlocks blocks for each KV head and sequence.
template <typename T, int D, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) invariant_decode_kernel(const AttentionParams<T> p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  begin_after_previous_kernel();
  Block<T, D, kBlocks>(p, memory).run();
#endif
}

template <typename T, int D, int kBlocks>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const auto kernel = invariant_decode_kernel<T, D, kBlocks>;
  constexpr int kBytes = Layout<D, kBlocks>::kBytes;
  allow_shared_memory(kernel, kBytes, "preparing attention");
  const LaunchShape shape{
      dim3(kBlocks, static_cast<unsigned>(p.kv_heads()), static_cast<unsigned>(p.sequences)),
      dim3(kThreads), static_cast<std::size_t>(kBytes), kBlocks};
  launch_early("launching attention", kernel, shape, stream, p);
}

// More sequences keep as many multiprocessors busy with prefill's kernel.
template <typename T, int D>
bool launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const long long units = static_cast<long long>(p.sequences) * p.kv_heads();
  const int processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  if (units * 8 <= processors) return launch<T, D, 8>(args, stream), true;
  if (units * 4 <= processors) return launch<T, D, 4>(args, stream), true;
  if (units * 2 <= processors) return launch<T, D, 2>(args, stream), true;
  return false;
}

template <typename T>
bool launch(const Attention& args, cudaStream_t stream) {
  return args.q.shape[2] == 64 ? launch<T, 64>(args, stream) : launch<T, 128>(args, stream);
}

}  // namespace
}  // namespace invariant_decode

bool attention_invariant_decode_sm90(const Attention& args, cudaStream_t stream) {
  const bool one_row = args.max_query_rows == 1 && args.visible.data == nullptr;
  if (!sm90::serves(args) || !one_row || args.window != 0 ||
      std::min(args.group, args.q.shape[1]) > invariant_decode::kRows ||
      args.kv.keys.dtype != args.q.dtype) {
    return false;
  }
  return args.q.dtype == DType::bf16 ? invariant_decode::launch<Bf16>(args, stream)
                                     : invariant_decode::launch<F16>(args, stream);
}

}  // namespace nvllm::kernels::cuda
