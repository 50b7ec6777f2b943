// The gated delta rule on the GPU, for everything that is not computed in chunks
// (chunk_delta_rule.cuh): token by token as on the CPU, so that a row's bits do not depend on how
// its sequence is split into steps. Columns of a head's state are independent until the norm: four
// warps hold 32 of them in registers from a sequence's first row to its last; eight lanes share a
// column's rows. Values that are independent of the state are computed a chunk of tokens ahead.
//
// If few heads are active, the columns of a head are split over a cluster of blocks, which exchange
// the sums of squares that the norm needs; otherwise one block has them all.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/linear_attention/backends.h"
#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/sm80/chunk_delta_rule.cuh"
#include "kernels/linear_attention/sm80/sequences.cuh"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kColumnLanes = 4, kRowLanes = 32 / kColumnLanes;
constexpr int kTileColumns = 32;  // of four warps: two for each lane
constexpr int kTileWarps = kTileColumns / (2 * kColumnLanes);
constexpr int kMaxTiles = kMaxStateDim / kTileColumns;
constexpr int kBlockTiles = 4;  // per block without a cluster

template <typename T>
struct Params {
  T* out;
  const T* qkv;
  const T* z;
  const float* ba;
  const float* a_log;
  const float* dt_bias;
  const float* norm;
  float* state;
  Sequences sequences;
  long long qkv_stride, z_stride;
  int key_heads, value_heads, group, dk, dv, tiles;
  int max_rows;  // sequences with more are computed in chunks
  float inverse_root_dk, inverse_dv, epsilon;
};

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

// A chunk of tokens. kRows: of the state, at least dk; rows from dk on are zero.
template <int kRows, int kTiles>
struct Chunk {
  static constexpr int kTokens = 2048 / kRows;
  static constexpr int kColumns = kTiles * kTileColumns;

  float q[kTokens][kRows], k[kTokens][kRows];  // normed, q also scaled
  float v[kTokens][kColumns], out[kTokens][kColumns];
  float beta[kTokens], decay[kTokens], qk[kTokens];  // qk: q times k
  float squares[2][kMaxTiles][kTokens];              // of results, by tile of the head
};

// A block's tiles of one head in one sequence.
template <typename T, int kRows, int kTiles>
class Head {
 public:
  using Shared = Chunk<kRows, kTiles>;
  static constexpr int kTokens = Shared::kTokens;
  static constexpr int kWarps = kTiles * kTileWarps;
  static constexpr int kWarpTokens = (kTokens + kWarps - 1) / kWarps;  // prepared per warp
  static constexpr int kLaneRows = kRows / kRowLanes;

  __device__ __forceinline__ Head(const Params<T>& p, Shared& shared, int sequence, int head,
                                  int first_tile)
      : p_(p),
        shared_(shared),
        head_(head),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        first_tile_(first_tile),
        column_(warp_ * 2 * kColumnLanes + lane_ % kColumnLanes * 2) {
    const long long slot = p.sequences.slots[sequence];
    state_ = p.state + (slot * p.value_heads + head) * p.dk * p.dv;
  }

  __device__ __forceinline__ void run(long long begin, long long end, bool starts) {
    load_state(starts);
    Raw raw;
    load(raw, begin, end);
    if (kTiles == 1) sync_tiles();  // all blocks of the cluster have started
    for (long long row = begin; row < end; row += kTokens) {
      __syncthreads();  // the previous chunk has been read
      prepare(raw);
      __syncthreads();
      const int count = static_cast<int>(end - row < kTokens ? end - row : kTokens);
      Gates gates;
      load(gates, row, count);
      load(raw, row + kTokens, end);
      for (int token = 0; token < count; ++token) step(token);
      __syncthreads();
      norm_and_gate(gates, row, count);
      buffer_ ^= 1;
    }
    store_state();
  }

 private:
  // The tokens of a chunk that this warp prepares; lanes have every 32nd element.
  struct Raw {
    T q[kWarpTokens][kRows / 32], k[kWarpTokens][kRows / 32], v[kWarpTokens][kTiles];
    float b[kWarpTokens], a[kWarpTokens];
  };
  struct Gates {
    T z[kWarpTokens][kTiles];
  };

  __device__ __forceinline__ int token_of(int i) const { return warp_ + i * kWarps; }
  __device__ __forceinline__ int column_of(int tile) const {
    return (first_tile_ + tile) * kTileColumns + lane_;
  }
  __device__ __forceinline__ int state_row(int i) const {
    return i / 4 * 4 * kRowLanes + lane_ / kColumnLanes * 4 + i % 4;
  }

  __device__ __forceinline__ void load(Raw& raw, long long row, long long end) const {
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const long long at = row + token_of(i);
      const bool inside = token_of(i) < kTokens && at < end;
      const T* const q = p_.qkv + at * p_.qkv_stride + head_ / p_.group * p_.dk;
      const T* const k = q + p_.key_heads * p_.dk;
      const T* const v = p_.qkv + at * p_.qkv_stride + 2 * p_.key_heads * p_.dk + head_ * p_.dv;
#pragma unroll
      for (int n = 0; n < kRows / 32; ++n) {
        const int element = lane_ + n * 32;
        const bool there = inside && element < p_.dk;
        raw.q[i][n] = there ? q[element] : narrow<T>(0.0f);
        raw.k[i][n] = there ? k[element] : narrow<T>(0.0f);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int column = column_of(tile);
        raw.v[i][tile] = inside && column < p_.dv ? v[column] : narrow<T>(0.0f);
      }
      const float* const ba = p_.ba + at * 2 * p_.value_heads + head_;
      raw.b[i] = inside ? ba[0] : 0.0f;
      raw.a[i] = inside ? ba[p_.value_heads] : 0.0f;
    }
  }

  __device__ __forceinline__ void load(Gates& gates, long long row, int count) const {
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const T* const z = p_.z + (row + token_of(i)) * p_.z_stride + head_ * p_.dv;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const bool there = token_of(i) < count && column_of(tile) < p_.dv;
        gates.z[i][tile] = there ? z[column_of(tile)] : narrow<T>(0.0f);
      }
    }
  }

  __device__ __forceinline__ void prepare(const Raw& raw) {
    const float a_scale = -expf(p_.a_log[head_]), dt_bias = p_.dt_bias[head_];
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int token = token_of(i);
      if (token >= kTokens) continue;
      float q_squares = 0, k_squares = 0, qk = 0;
#pragma unroll
      for (int n = 0; n < kRows / 32; ++n) {
        const float q = widen(raw.q[i][n]), k = widen(raw.k[i][n]);
        q_squares = fmaf(q, q, q_squares), k_squares = fmaf(k, k, k_squares), qk = fmaf(q, k, qk);
      }
      constexpr float kEpsilon = 1e-6f;
      const float q_scale = rsqrtf(sum_of_warp(q_squares) + kEpsilon) * p_.inverse_root_dk;
      const float k_scale = rsqrtf(sum_of_warp(k_squares) + kEpsilon);
      qk = sum_of_warp(qk) * q_scale * k_scale;
#pragma unroll
      for (int n = 0; n < kRows / 32; ++n) {
        shared_.q[token][lane_ + n * 32] = widen(raw.q[i][n]) * q_scale;
        shared_.k[token][lane_ + n * 32] = widen(raw.k[i][n]) * k_scale;
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        shared_.v[token][tile * kTileColumns + lane_] = widen(raw.v[i][tile]);
      }
      if (lane_ != 0) continue;
      shared_.beta[token] = 1.0f / (1.0f + expf(-raw.b[i]));
      shared_.decay[token] = expf(a_scale * softplus(raw.a[i] + dt_bias));
      shared_.qk[token] = qk;
    }
  }

  // With S the previous state: d = beta (v - decay Sᵀk), S = decay S + k dᵀ and, for the new state,
  // Sᵀq = decay Sᵀq + d (q k).
  __device__ __forceinline__ void step(int token) {
    float2 of_k{}, of_q{};
#pragma unroll
    for (int i = 0; i < kLaneRows; i += 4) {
      const float4 k = *reinterpret_cast<const float4*>(&shared_.k[token][state_row(i)]);
      const float4 q = *reinterpret_cast<const float4*>(&shared_.q[token][state_row(i)]);
      add_scaled_rows(of_k, k, i), add_scaled_rows(of_q, q, i);
    }
#pragma unroll
    for (int lanes = kColumnLanes; lanes < 32; lanes *= 2) {
      of_k.x += __shfl_xor_sync(~0u, of_k.x, lanes);
      of_k.y += __shfl_xor_sync(~0u, of_k.y, lanes);
      of_q.x += __shfl_xor_sync(~0u, of_q.x, lanes);
      of_q.y += __shfl_xor_sync(~0u, of_q.y, lanes);
    }
    const float beta = shared_.beta[token], decay = shared_.decay[token], qk = shared_.qk[token];
    const float2 v = *reinterpret_cast<const float2*>(&shared_.v[token][column_]);
    const float2 d = {beta * fmaf(-decay, of_k.x, v.x), beta * fmaf(-decay, of_k.y, v.y)};
#pragma unroll
    for (int i = 0; i < kLaneRows; i += 4) {
      const float4 k = *reinterpret_cast<const float4*>(&shared_.k[token][state_row(i)]);
      change(i, k.x, d, decay), change(i + 1, k.y, d, decay);
      change(i + 2, k.z, d, decay), change(i + 3, k.w, d, decay);
    }
    if (lane_ >= kColumnLanes) return;
    *reinterpret_cast<float2*>(&shared_.out[token][column_]) = {fmaf(decay, of_q.x, d.x * qk),
                                                                fmaf(decay, of_q.y, d.y * qk)};
  }

  __device__ __forceinline__ void add_scaled_rows(float2& sum, const float4& x, int i) const {
    sum.x = fmaf(x.x, s_[i].x, sum.x), sum.y = fmaf(x.x, s_[i].y, sum.y);
    sum.x = fmaf(x.y, s_[i + 1].x, sum.x), sum.y = fmaf(x.y, s_[i + 1].y, sum.y);
    sum.x = fmaf(x.z, s_[i + 2].x, sum.x), sum.y = fmaf(x.z, s_[i + 2].y, sum.y);
    sum.x = fmaf(x.w, s_[i + 3].x, sum.x), sum.y = fmaf(x.w, s_[i + 3].y, sum.y);
  }
  __device__ __forceinline__ void change(int i, float k, const float2& d, float decay) {
    s_[i].x = fmaf(k, d.x, decay * s_[i].x), s_[i].y = fmaf(k, d.y, decay * s_[i].y);
  }

  __device__ __forceinline__ void norm_and_gate(const Gates& gates, long long row, int count) {
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      if (token_of(i) >= count) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float x = shared_.out[token_of(i)][tile * kTileColumns + lane_];
        share_squares(first_tile_ + tile, token_of(i), sum_of_warp(x * x));
      }
    }
    sync_tiles();
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int token = token_of(i);
      if (token >= count) continue;
      float squares = 0;
      for (int tile = 0; tile < p_.tiles; ++tile) {
        squares += shared_.squares[buffer_][tile][token];
      }
      const float scale = rsqrtf(fmaf(squares, p_.inverse_dv, p_.epsilon));
      T* const out = p_.out + ((row + token) * p_.value_heads + head_) * p_.dv;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int column = column_of(tile);
        if (column >= p_.dv) continue;
        const float x = shared_.out[token][tile * kTileColumns + lane_];
        const float gate = activate<T, Activation::silu>(widen(gates.z[i][tile]));
        out[column] = narrow<T>(x * scale * p_.norm[column] * gate);
      }
    }
  }

  // Exchanges the sums with all blocks of the cluster.
  __device__ __forceinline__ void share_squares(int tile, int token, float sum) {
    float* const here = &shared_.squares[buffer_][tile][token];
#if __CUDA_ARCH__ >= 900
    if (kTiles == 1) {
      if (lane_ < p_.tiles) *address_in_block(here, lane_) = sum;
      return;
    }
#endif
    if (lane_ == 0) *here = sum;
  }
  __device__ __forceinline__ void sync_tiles() const {
#if __CUDA_ARCH__ >= 900
    if (kTiles == 1) return sync_cluster();
#endif
    __syncwarp();  // a warp reads only its own tokens
  }

  __device__ __forceinline__ float2* state_at(int i) const {
    return reinterpret_cast<float2*>(state_ + static_cast<long long>(state_row(i)) * p_.dv +
                                     first_tile_ * kTileColumns + column_);
  }
  __device__ __forceinline__ bool in_state(int i) const {
    return state_row(i) < p_.dk && first_tile_ * kTileColumns + column_ < p_.dv;
  }
  __device__ __forceinline__ void load_state(bool starts) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      s_[i] = !starts && in_state(i) ? *state_at(i) : float2{};
    }
  }
  __device__ __forceinline__ void store_state() const {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (in_state(i)) *state_at(i) = s_[i];
    }
  }

  const Params<T>& p_;
  Shared& shared_;
  const int head_, warp_, lane_, first_tile_, column_;  // column_: the lane's first, in the block
  float* state_;
  float2 s_[kLaneRows];
  int buffer_ = 0;  // of the sums of squares
};

// Zeroes the results of padding rows.
template <typename T, int kTiles>
__device__ __forceinline__ void clear(const Params<T>& p, int head, int first_tile, long long begin,
                                      long long end) {
  const int column = first_tile * kTileColumns + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kTiles * kTileColumns || column >= p.dv) return;
  for (long long row = begin; row < end; ++row) {
    p.out[(row * p.value_heads + head) * p.dv + column] = narrow<T>(0.0f);
  }
}

// Grid: a head's tiles, heads, sequences. kTiles == 1: the tiles of a head are a cluster.
template <typename T, int kRows, int kTiles>
__global__ void __launch_bounds__(kTiles* kTileWarps * 32)
    gated_delta_rule_kernel(const Params<T> p) {
  __shared__ alignas(16) Chunk<kRows, kTiles> shared;
  pdl_begin();
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int first_tile = static_cast<int>(blockIdx.x) * kTiles;
  const long long begin = p.sequences.begin(sequence), end = p.sequences.begin(sequence + 1);
  if (begin == end) return;
  if (p.sequences.slots[sequence] < 0) {
    return clear<T, kTiles>(p, head, first_tile, begin, end);
  }
  if (end - begin > p.max_rows) return;
  Head<T, kRows, kTiles>(p, shared, sequence, head, first_tile)
      .run(begin, end, p.sequences.starts(sequence));
}

bool runs_in_chunks(const GatedDeltaRule& args) {
  constexpr int kMaxShared = 163 * 1024;  // of A100, H100 and later data center GPUs
  return args.chunks.data != nullptr && args.out.shape[0] >= kMinChunkedRows &&
         has_delta_chunks(DeviceKind::cuda, args.out.dtype, args.dk(), args.dv()) &&
         args.qkv.aligned(16) && args.z.aligned(4) && args.z.stride[0] % 2 == 0 &&
         args.out.aligned(4) && args.norm.aligned(8) &&
         nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= kMaxShared;
}

ChunkParams chunk_params(const GatedDeltaRule& args) {
  const std::int64_t rows = args.out.shape[0];
  auto* const plan = args.chunks.as<unsigned char>();
  return {.out = args.out.as<Bf16>(),
          .qkv = args.qkv.as<const Bf16>(),
          .z = args.z.as<const Bf16>(),
          .ba = args.ba.as<const float>(),
          .a_log = args.a_log.as<const float>(),
          .dt_bias = args.dt_bias.as<const float>(),
          .norm = args.norm.as<const float>(),
          .state = args.state.as<float>(),
          .sequences = sequences_of(args.rows),
          .plan = reinterpret_cast<ChunkPlan*>(plan),
          .factors =
              reinterpret_cast<ChunkFactors*>(plan + delta_plan_bytes(rows, args.rows.sequences())),
          .qkv_stride = args.qkv.shape[1],
          .z_stride = args.z.stride[0],
          .key_heads = static_cast<int>(args.key_heads),
          .value_heads = static_cast<int>(args.value_heads()),
          .group = static_cast<int>(args.value_heads() / args.key_heads),
          .epsilon = args.epsilon};
}

template <typename T>
Params<T> params(const GatedDeltaRule& args, bool chunks) {
  return {
      .out = args.out.as<T>(),
      .qkv = args.qkv.as<const T>(),
      .z = args.z.as<const T>(),
      .ba = args.ba.as<const float>(),
      .a_log = args.a_log.as<const float>(),
      .dt_bias = args.dt_bias.as<const float>(),
      .norm = args.norm.as<const float>(),
      .state = args.state.as<float>(),
      .sequences = sequences_of(args.rows),
      .qkv_stride = args.qkv.shape[1],
      .z_stride = args.z.stride[0],
      .key_heads = static_cast<int>(args.key_heads),
      .value_heads = static_cast<int>(args.value_heads()),
      .group = static_cast<int>(args.value_heads() / args.key_heads),
      .dk = static_cast<int>(args.dk()),
      .dv = static_cast<int>(args.dv()),
      .tiles = static_cast<int>(divide_up(args.dv(), kTileColumns)),
      .max_rows = chunks ? static_cast<int>(kMinChunkedRows) - 1 : std::numeric_limits<int>::max(),
      .inverse_root_dk = 1.0f / std::sqrt(static_cast<float>(args.dk())),
      .inverse_dv = 1.0f / static_cast<float>(args.dv()),
      .epsilon = args.epsilon};
}

template <typename T, int kRows>
void launch(const GatedDeltaRule& args, bool chunks, Stream& stream) {
  const Params<T> p = params<T>(args, chunks);
  if (!args.state.aligned(sizeof(float2))) {
    fail("gated_delta_rule: state is not at a multiple of ", sizeof(float2), " bytes");
  }
  // One block per head loads its q and k once; with few heads most of the GPU would be idle.
  constexpr std::int64_t kFewHeads = 512;
  const bool few = p.value_heads * args.rows.sequences() < kFewHeads;
  const bool cluster = (few || p.tiles > kBlockTiles) && has_clusters();
  if (!cluster && p.tiles > kBlockTiles) {
    fail("gated_delta_rule: dv is ", args.dv(), ", more than ", kBlockTiles * kTileColumns,
         "; a GPU of compute capability 9.0 runs it, or --device cpu");
  }
  const int tiles = cluster ? 1 : kBlockTiles;
  const dim3 grid(cluster ? p.tiles : 1, p.value_heads,
                  static_cast<unsigned>(args.rows.sequences()));
  const auto kernel = cluster ? gated_delta_rule_kernel<T, kRows, 1>
                              : gated_delta_rule_kernel<T, kRows, kBlockTiles>;
  launch_with_pdl("launching gated_delta_rule", kernel,
                  {.grid = grid,
                   .block = static_cast<unsigned>(tiles * kTileWarps * 32),
                   .cluster = cluster ? static_cast<unsigned>(p.tiles) : 1},
                  nvllm::cuda::native(stream), p);
}

}  // namespace

void gated_delta_rule(const GatedDeltaRule& args, Stream& stream) {
  const bool chunks = runs_in_chunks(args);
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr int kUsualDim = 128;
    args.dk() <= kUsualDim ? launch<T, kUsualDim>(args, chunks, stream)
                           : launch<T, kMaxStateDim>(args, chunks, stream);
  });
  if (!chunks) return;
  const ChunkParams p = chunk_params(args);
  launch_chunk_factors(p, chunk_bounds(args), nvllm::cuda::native(stream));
  launch_chunk_states(p, chunk_bounds(args), nvllm::cuda::native(stream));
}

}  // namespace nvllm::kernels::cuda
