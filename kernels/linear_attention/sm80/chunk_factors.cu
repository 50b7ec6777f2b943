// Computes the state-independent part of the chunked gated delta rule (chunk_delta_rule.cuh), for
// all chunks in parallel. A block has a chunk and a key head: the Gram matrices of k with k and of
// q with k are the same for all value heads that read it, and stay in registers. For each value
// head, the block scales them by decays, inverts I + L in float32 (halves of 32 x 32 by
// substitution, their coupling by GEMMs in TF32, 11 bits), and writes T and A as operands.
#include "base/math.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/linear_attention/sm80/chunk_delta_rule.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kHalf = kChunk / 2;
// row pitch of float32 matrices that puts a column in different banks
constexpr int kPitch = kChunk + 4;
constexpr int kPieces = kChunkDim / 8;

// --- the plan

constexpr int kPlanThreads = 256;

// One block. Sums are pairs: sequences in the upper half, chunks in the lower.
__global__ void __launch_bounds__(kPlanThreads) chunk_plan_kernel(const ChunkParams p) {
  pdl_begin();
  __shared__ unsigned long long of_warp[kPlanThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned long long before = 0;  // of sequences of earlier rounds
  for (int first = 0; first < p.sequences.count; first += kPlanThreads) {
    const int s = first + static_cast<int>(threadIdx.x);
    unsigned long long own = 0;
    if (s < p.sequences.count && p.in_chunks(s)) {
      const int rows = p.sequences.begin(s + 1) - p.sequences.begin(s);
      own = 1ull << 32 | static_cast<unsigned>((rows + kChunk - 1) / kChunk);
    }
    unsigned long long sum = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const unsigned long long other = __shfl_up_sync(~0u, sum, lanes);
      if (lane >= lanes) sum += other;
    }
    __syncthreads();  // of_warp is no longer read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    unsigned long long all = 0;
#pragma unroll
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w < warp) sum += of_warp[w];
      all += of_warp[w];
    }
    if (own != 0) {
      const unsigned long long earlier = before + sum - own;
      p.plan[1 + (earlier >> 32)] = {s, static_cast<int>(earlier)};
    }
    before += all;
  }
  if (threadIdx.x != 0) return;
  p.plan[0] = {static_cast<int>(before >> 32), static_cast<int>(before)};
  p.plan[1 + (before >> 32)] = {-1, static_cast<int>(before)};
}

// --- the factors

struct Shared {
  union {
    struct {
      Fragment k[kChunk * kPieces], q[kChunk * kPieces];  // rows, in pieces of 16 bytes
    };
    struct {
      // L, and in its upper right quarter the coupling of the halves.
      float lower[kChunk][kPitch];
      float inverse[kChunk][kPitch];
    };
  };
  float k_norm[kChunk], q_norm[kChunk];  // row factors; q's includes 1 / sqrt(dk)
  // The gates of kWarps value heads; log_decay is in base 2, and cumulative up to this token.
  float beta[kWarps][kChunk], log_decay[kWarps][kChunk];
};

// 2^x
__device__ __forceinline__ float exp2_of(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

__device__ __forceinline__ unsigned tf32(float x) {
  unsigned word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
  return word;
}

// sum += a b, 16 x 32 times 32 x 8, all float32 with row pitch kPitch.
__device__ __forceinline__ void multiply_add_tf32(float (&sum)[4], const float* a, const float* b,
                                                  int lane) {
#pragma unroll
  for (int k = 0; k < kHalf; k += 8) {
    const float* const of_a = a + lane / 4 * kPitch + k + lane % 4;
    const float* const of_b = b + (k + lane % 4) * kPitch + lane / 4;
    const unsigned a0 = tf32(of_a[0]), a1 = tf32(of_a[8 * kPitch]), a2 = tf32(of_a[4]),
                   a3 = tf32(of_a[8 * kPitch + 4]), b0 = tf32(of_b[0]), b1 = tf32(of_b[4 * kPitch]);
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

class Chunk {
 public:
  __device__ __forceinline__ Chunk(const ChunkParams& p, Shared& shared, long long row, int count)
      : p_(p),
        shared_(shared),
        row_(row),
        count_(count),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void load(int key_head) {
    for (int i = static_cast<int>(threadIdx.x); i < kChunk * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces, to = piece_of<kPieces>(row, piece);
      const bool inside = row < count_;
      const long long from = row_ + (inside ? row : 0);
      copy_chunk(shared_address_of(&shared_.k[to]), p_.k(from, key_head) + piece * 8, inside);
      copy_chunk(shared_address_of(&shared_.q[to]), p_.q(from, key_head) + piece * 8, inside);
    }
    commit_copies();
  }

  // This warp's 16 rows, times rows of k up to its own.
  __device__ __forceinline__ void multiply() {
    const unsigned k = shared_address_of(shared_.k), q = shared_address_of(shared_.q);
#pragma unroll
    for (int i = 0; i < kChunkDim / 16; ++i) {
      const Quad of_k = load_block<kPieces>(k, warp_ * 16, i, lane_);
      const Quad of_q = load_block<kPieces>(q, warp_ * 16, i, lane_);
#pragma unroll
      for (int block = 0; block < kChunkBlocks; ++block) {
        if (block > warp_) continue;
        const Quad b = load_block<kPieces>(k, block * 16, i, lane_);
        multiply_add_pair(kk_[2 * block], kk_[2 * block + 1], of_k, b);
        multiply_add_pair(qk_[2 * block], qk_[2 * block + 1], of_q, b);
      }
    }
  }

  // The norms of rows, two threads per row.
  __device__ __forceinline__ void norm() {
    const int row = static_cast<int>(threadIdx.x) / 2, first = static_cast<int>(threadIdx.x) % 2;
    float k_squares = 0, q_squares = 0;
#pragma unroll
    for (int piece = first; piece < kPieces; piece += 2) {
      const int at = piece_of<kPieces>(row, piece);
      add_squares(k_squares, shared_.k[at]), add_squares(q_squares, shared_.q[at]);
    }
    k_squares += __shfl_xor_sync(~0u, k_squares, 1);
    q_squares += __shfl_xor_sync(~0u, q_squares, 1);
    constexpr float kEpsilon = 1e-6f;
    const float root = rsqrtf(static_cast<float>(kChunkDim));
    shared_.k_norm[row] = rsqrtf(k_squares + kEpsilon);
    shared_.q_norm[row] = rsqrtf(q_squares + kEpsilon) * root;
  }

  // Beta and decays of this head and the following ones before `end`: one head per warp, two tokens
  // per lane.
  __device__ __forceinline__ void gate(int head, int end) {
    head += warp_;
    if (head >= end) return;
    constexpr float kLog2E = 1.4426950408889634f;
    const float a_scale = -expf(p_.a_log[head]) * kLog2E, dt_bias = p_.dt_bias[head];
    float log_decay[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * lane_ + i;
      const float* const ba = p_.ba + (row_ + token) * 2 * p_.value_heads + head;
      const bool inside = token < count_;
      shared_.beta[warp_][token] = inside ? 1.0f / (1.0f + expf(-ba[0])) : 0.0f;
      log_decay[i] = inside ? a_scale * softplus(ba[p_.value_heads] + dt_bias) : 0.0f;
    }
    float sum = log_decay[0] + log_decay[1];
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const float other = __shfl_up_sync(~0u, sum, lanes);
      if (lane_ >= lanes) sum += other;
    }
    shared_.log_decay[warp_][2 * lane_] = sum - log_decay[1];
    shared_.log_decay[warp_][2 * lane_ + 1] = sum;
  }

  // Writes L to shared memory, A and the factors of rows to `factors`. gates: index of the head's.
  __device__ __forceinline__ void scale(ChunkFactors& factors, int gates) {
    scale_rows(factors, gates);
    const int rows[2] = {warp_ * 16 + lane_ / 4, warp_ * 16 + lane_ / 4 + 8};
    float log_decay[2], of_k[2], of_q[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      log_decay[i] = shared_.log_decay[gates][rows[i]];
      of_k[i] = shared_.k_norm[rows[i]] * shared_.beta[gates][rows[i]];
      of_q[i] = shared_.q_norm[rows[i]];
    }
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      if (block > warp_) continue;
      float a[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = block * 16 + half * 8 + lane_ % 4 * 2;
        const auto of = [&](const float(&all)[kChunk]) {
          return *reinterpret_cast<const float2*>(&all[column]);
        };
        const float2 decays = of(shared_.log_decay[gates]), norms = of(shared_.k_norm);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool inside[2] = {column <= rows[i],
                                  column < rows[i]};  // the second: of column + 1
          const float low = inside[0] ? exp2_of(log_decay[i] - decays.x) * norms.x : 0.0f;
          const float high = inside[1] ? exp2_of(log_decay[i] - decays.y) * norms.y : 0.0f;
          const float(&qk)[4] = qk_[2 * block + half];
          const float(&kk)[4] = kk_[2 * block + half];
          a[half][2 * i] = qk[2 * i] * of_q[i] * low;
          a[half][2 * i + 1] = qk[2 * i + 1] * of_q[i] * high;
          *reinterpret_cast<float2*>(&shared_.lower[rows[i]][column]) = {
              kk[2 * i] * of_k[i] * low, kk[2 * i + 1] * of_k[i] * high};
        }
      }
      factors.a[lower_block(warp_, block)][lane_] = fragment_of(fragment_of(a[0], a[1]));
    }
  }

  // Inverts the halves of I + L on the diagonal, one warp each; a lane has a column.
  __device__ __forceinline__ void invert_half() {
    if (warp_ >= 2) return;
    const int first = warp_ * kHalf;
    float x[kHalf];
#pragma unroll
    for (int row = 0; row < kHalf; ++row) {
      const float* const lower = &shared_.lower[first + row][first];
      float sum[4] = {row == lane_ ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < row; i += 4) {
        const float4 factor = *reinterpret_cast<const float4*>(lower + i);
        sum[0] = fmaf(-factor.x, x[i], sum[0]);
        if (i + 1 < row) sum[1] = fmaf(-factor.y, x[i + 1], sum[1]);
        if (i + 2 < row) sum[2] = fmaf(-factor.z, x[i + 2], sum[2]);
        if (i + 3 < row) sum[3] = fmaf(-factor.w, x[i + 3], sum[3]);
      }
      x[row] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
#pragma unroll
    for (int row = 0; row < kHalf; ++row) shared_.inverse[first + row][first + lane_] = x[row];
  }

  // With I + L = [[X, 0], [Z, Y]]: its inverse has -Y^-1 Z X^-1 below the diagonal.
  __device__ __forceinline__ void couple_halves() {
    multiply_quarter(&shared_.lower[0][kHalf], &shared_.lower[kHalf][0], &shared_.inverse[0][0], 1);
    __syncthreads();
    multiply_quarter(&shared_.inverse[kHalf][0], &shared_.inverse[kHalf][kHalf],
                     &shared_.lower[0][kHalf], -1);
  }

  __device__ __forceinline__ void store(ChunkFactors& factors, int gates) const {
    const int row = warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      if (block > warp_) continue;
      float t[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = block * 16 + half * 8 + lane_ % 4 * 2;
        const float2 beta = *reinterpret_cast<const float2*>(&shared_.beta[gates][column]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 value =
              *reinterpret_cast<const float2*>(&shared_.inverse[row + i * 8][column]);
          t[half][2 * i] = value.x * beta.x, t[half][2 * i + 1] = value.y * beta.y;
        }
      }
      factors.t[lower_block(warp_, block)][lane_] = fragment_of(fragment_of(t[0], t[1]));
    }
  }

 private:
  __device__ __forceinline__ static void add_squares(float& sum, const Fragment& piece) {
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (const unsigned word : words) {
      const float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
      sum = fmaf(low, low, sum), sum = fmaf(high, high, sum);
    }
  }

  __device__ __forceinline__ void scale_rows(ChunkFactors& factors, int gates) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kChunk) return;
    const float log_decay = shared_.log_decay[gates][row];
    const float all = shared_.log_decay[gates][kChunk - 1];
    factors.k_scale[row] = exp2_of(log_decay) * shared_.k_norm[row];
    factors.q_scale[row] = exp2_of(log_decay) * shared_.q_norm[row];
    factors.d_scale[row] = exp2_of(all - log_decay) * shared_.k_norm[row];
    if (row < 4) factors.decay[row] = exp2_of(all);
  }

  // to = sign a b, all 32 x 32; a warp computes 16 rows and 16 columns.
  __device__ __forceinline__ void multiply_quarter(float* to, const float* a, const float* b,
                                                   float sign) const {
    const int row = warp_ / 2 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = warp_ % 2 * 16 + i * 8;
      float sum[4]{};
      multiply_add_tf32(sum, a + row * kPitch, b + column, lane_);
      float* const out = to + (row + lane_ / 4) * kPitch + column + lane_ % 4 * 2;
      out[0] = sign * sum[0], out[1] = sign * sum[1];
      out[8 * kPitch] = sign * sum[2], out[8 * kPitch + 1] = sign * sum[3];
    }
  }

  const ChunkParams& p_;
  Shared& shared_;
  const long long row_;
  const int count_, warp_, lane_;
  float kk_[kChunk / 8][4] = {}, qk_[kChunk / 8][4] = {};  // rows of k and q times rows of k
};

// Grid: chunks, key heads.
__global__ void __launch_bounds__(kThreads, 4) chunk_factors_kernel(const ChunkParams p) {
  __shared__ alignas(128) Shared shared;
  pdl_begin();
  const int chunk = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
  const ChunkPlan all = p.plan[0];
  if (chunk >= all.y) return;
  int of_plan = 1;  // the last sequence whose first chunk is not after this one
  for (int end = 1 + all.x; end - of_plan > 1;) {
    const int middle = (of_plan + end) / 2;
    (p.plan[middle].y <= chunk ? of_plan : end) = middle;
  }
  const ChunkPlan sequence = p.plan[of_plan];
  const int row = p.sequences.begin(sequence.x) + (chunk - sequence.y) * kChunk;
  const int left = p.sequences.begin(sequence.x + 1) - row;
  Chunk work(p, shared, row, left < kChunk ? left : kChunk);
  const int first = key_head * p.group;
  work.load(key_head);
  work.gate(first, first + p.group);
  wait_for_copies<0>();
  __syncthreads();
  work.multiply();
  work.norm();
  __syncthreads();  // rows are no longer read
  for (int i = 0; i < p.group; ++i) {
    const int gates = i % kWarps;
    if (i > 0 && gates == 0) {
      work.gate(first + i, first + p.group);
      __syncthreads();
    }
    ChunkFactors& factors = p.factors[static_cast<long long>(chunk) * p.value_heads + first + i];
    work.scale(factors, gates);
    __syncthreads();
    work.invert_half();
    __syncthreads();
    work.couple_halves();
    __syncthreads();
    work.store(factors, gates);
    if (gates == kWarps - 1) __syncthreads();  // more heads follow
  }
}

}  // namespace

void launch_chunk_factors(const ChunkParams& p, const ChunkBounds& bounds, cudaStream_t stream) {
  launch_with_pdl("launching chunk_plan", chunk_plan_kernel, 1, kPlanThreads, stream, p);
  launch_with_pdl("launching chunk_factors", chunk_factors_kernel,
                  dim3(static_cast<unsigned>(bounds.chunks), static_cast<unsigned>(p.key_heads)),
                  kThreads, stream, p);
}

}  // namespace nvllm::kernels::cuda
