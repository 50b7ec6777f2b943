// GEMV: up to 16 rows times a weight of 16-bit floats, bound by reading the weight.
//
// A block computes kTiles tiles of 8 outputs for all rows; its warps split the inputs. A lane loads
// 16 bytes, 8 inputs, of one output's weights; 4 adjacent lanes form a `slice`, 32 inputs. The
// tensor cores multiply: since the order of inputs within an mma is arbitrary as long as it is the
// same for both operands, the words that a lane loads are directly its part of an operand (rows of
// x are the rows of operand A, outputs the columns of B), without shuffles or shared memory:
//
//   lane 4 g + t, words 0 and 1 of its 16 bytes: the first mma's k = 2t, 2t+1, 2t+8, 2t+9;
//                 words 2 and 3: the second mma's
//
// In a `round` a warp has kSlices slices of each tile in flight before it multiplies. Together the
// blocks on a multiprocessor have about 64 KB in flight, as memory latency times bandwidth
// requires. The first round's weights are loaded before the kernel waits for the previous one in
// the stream (see GemmWeight). The warps' sums are added in shared memory in ascending order, so
// results are reproducible.
#pragma once

#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/mma.cuh"
#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/pointwise/sm80/activation.cuh"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kSliceInputs = 32;
inline constexpr int kTileOutputs = 8;

inline constexpr std::int64_t kGemvMaxRows = 16;

// Whether the GEMV of 16-bit floats can compute it once its prologue has run.
inline bool fits_gemv(const GemmShape& shape) {
  const GemmFusion& fusion = shape.fusion;
  if (is_quantized(shape.format) || shape.type == DType::f32) return false;
  if (shape.m > kGemvMaxRows || shape.inputs == 0) return false;
  if (fusion.epilogue == Epilogue::gated_activation && fusion.activation != Activation::silu)
    return false;
  return shape.vectors.weight && shape.vectors.x;
}

// --- pieces --------------------------------------------------------------------------------------

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

__device__ __forceinline__ void wait_for_async_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// A gated output, from the sums of gate and up, rounded as the separate GEMM and activation would.
template <typename T>
__device__ __forceinline__ void store_gated(const GemmParams<T>& p, int row, int output, float gate,
                                            float through) {
  if (p.bias != nullptr)
    gate += widen(p.bias[output]), through += widen(p.bias[p.outputs + output]);
  const float open = activate<T, Activation::silu>(widen(narrow<T>(gate)));
  static_cast<T*>(p.out)[row * p.out_stride + output] =
      narrow<T>(__fmul_rn(open, widen(narrow<T>(through))));
}

// --- x with its norm, in shared memory -----------------------------------------------------------

// Bytes of a row of x in shared memory: slices of adjacent rows lie in different banks.
__host__ __device__ constexpr int normed_row_bytes(int inputs) {
  return (inputs * 2 + 127) / 128 * 128 + 64;
}

__host__ __device__ constexpr int norm_slots(int inputs) {
  return rms_norm_slots((rms_norm_vectors(inputs, 2) + 31) / 32);
}

__host__ __device__ constexpr int normed_shared_bytes(int rows, int inputs) {
  return rows * (normed_row_bytes(inputs) + norm_slots(inputs) * 4) + (inputs * 2 + 15) / 16 * 16;
}

// x's rows and their norms, computed by all threads of the block; bits as in
// kernels/pointwise/sm80/rmsnorm.cuh. Shared memory holds the rows, the norm's weights, then the
// sums.
template <typename T>
struct NormedRows {
  char* rows;
  Vector<T>* weight;
  float* sums;
  int row_bytes, slots, vectors;

  __device__ NormedRows(char* shared, const GemmParams<T>& p)
      : rows(shared),
        weight(reinterpret_cast<Vector<T>*>(shared + p.rows * normed_row_bytes(p.inputs))),
        sums(reinterpret_cast<float*>(weight + p.inputs / 8)),
        row_bytes(normed_row_bytes(p.inputs)),
        slots(norm_slots(p.inputs)),
        vectors(p.inputs / 8) {}

  // Constants are loaded before the previous kernel has ended.
  __device__ void begin(const GemmParams<T>& p) const {
    for (int v = threadIdx.x; v < vectors; v += blockDim.x) {
      copy_async(weight + v, p.norm_weight + v * 8);
    }
  }

  __device__ Vector<T>* at(int row, int vector) const {
    return reinterpret_cast<Vector<T>*>(rows + row * row_bytes) + vector;
  }

  __device__ void finish(const GemmParams<T>& p) const {
    constexpr int kAtOnce = 4;  // chunks that a warp has in flight
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int chunks = p.rows * slots;
    for (int first = threadIdx.x / 32; first < chunks; first += kAtOnce * warps) {
      Vector<T> x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int chunk = first + i * warps, row = chunk / slots;
        const int vector = chunk % slots * 32 + lane;
        x[i] = {};
        if (chunk < chunks && vector < vectors) {
          x[i] = load_vector(p.x + row * p.x_stride + vector * 8);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int chunk = first + i * warps, vector = chunk % slots * 32 + lane;
        if (chunk >= chunks) break;
        if (vector < vectors) *at(chunk / slots, vector) = x[i];
        const float sum = rms_norm_chunk(x[i]);
        if (lane == 0) sums[chunk] = sum;
      }
    }
    wait_for_async_copies();
    __syncthreads();
    for (int i = threadIdx.x; i < p.rows * vectors; i += blockDim.x) {
      const int row = i / vectors, v = i % vectors;
      const float squares = rms_norm_add_chunks(sums + row * slots, slots);
      const float scale = rms_norm_scale(squares, p.inverse_inputs, p.epsilon);
      *at(row, v) = rms_norm_apply(*at(row, v), scale, weight[v]);
    }
    __syncthreads();
  }
};

// --- x with its norm, in registers ---------------------------------------------------------------

// For a warp that holds its part of all rows at once: a lane has vectors of one row; the sums of
// squares, one per slice, are combined in shared memory. Bits as in
// kernels/pointwise/sm80/rmsnorm.cuh: a chunk is 8 slices.
template <typename T, int kSlices, int kWarps>
struct NormedSlices {
  static constexpr int kAll = kSlices * kWarps, kChunks = kAll / 8;
  static_assert(kAll % 32 == 0, "chunks are added four at a time");
  static constexpr int kRow = kAll + 4;  // rows begin in different banks

  // `squares`: 8 * kRow floats, at a multiple of 16 bytes. All threads of the block call it.
  static __device__ __forceinline__ void apply(const GemmParams<T>& p, float* squares,
                                               Vector<T> (&x)[kSlices],
                                               const Vector<T> (&weight)[kSlices]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, of_four = lane % 4;
    float* const row = squares + lane / 4 * kRow;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const float sum = add_over_four(rms_norm_vector(x[slice]));
      if (of_four == 0) row[warp * kSlices + slice] = sum;
    }
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 4) {
      const float4* const from = reinterpret_cast<const float4*>(row + (chunk + of_four) * 8);
      all = __fadd_rn(all, add_over_four(__fadd_rn(add_four(from[0]), add_four(from[1]))));
    }
    const float scale = rms_norm_scale(all, p.inverse_inputs, p.epsilon);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      x[slice] = rms_norm_apply(x[slice], scale, weight[slice]);
    }
  }

 private:
  static __device__ __forceinline__ float add_four(float4 x) {
    return __fadd_rn(__fadd_rn(x.x, x.y), __fadd_rn(x.z, x.w));
  }
  static __device__ __forceinline__ float add_over_four(float x) {
    x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
  }
};

// --- results -------------------------------------------------------------------------------------

// Stores a warp's sums of its tiles in shared memory.
template <int kHalves, int kTiles>
__device__ __forceinline__ void put_sums(const float (&d)[kTiles][4],
                                         float (&sums)[kHalves * 8][kTiles * kTileOutputs]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float* to = &sums[half * 8 + lane / 4][tile * kTileOutputs + lane % 4 * 2];
      *reinterpret_cast<float2*>(to) = make_float2(d[tile][2 * half], d[tile][2 * half + 1]);
    }
  }
}

// The row of a thread's first element of the result, and its residual.
struct OwnOutput {
  int row;
  float residual;
};

// Adds up the sums of all warps, and stores results. All threads of the block call it.
template <bool kGated, int kWarps, typename T, int kRows, int kOutputs>
__device__ __forceinline__ void add_and_store(const GemmParams<T>& p,
                                              const float (&sums)[kWarps][kRows][kOutputs],
                                              int share, const OwnOutput& own) {
  const int first_output = blockIdx.x * share;
  const int outputs = min(share, p.outputs - first_output);
  const auto sum_of = [&](int row, int column) {
    float sum = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) sum += sums[other][row][column];
    return sum;
  };
  constexpr int kColumns = kGated ? kOutputs / 2 : kOutputs;
  for (int i = threadIdx.x; i < p.rows * kColumns; i += kWarps * 32) {
    const int row = i / kColumns, column = i % kColumns;
    if (column >= outputs) continue;
    const float sum = sum_of(row, column);
    const int output = first_output + column;
    if constexpr (kGated) {
      store_gated(p, row, output, sum, sum_of(row, share + column));
      continue;
    }
    store_output(p, row, output, sum, row == own.row ? own.residual : residual_of(p, row, output));
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// How x is prepared.
enum class Prepare : unsigned char { nothing, norm_in_shared, norm_in_registers };

// kMaxRows: 8 or 16. kBlocks: resident blocks per multiprocessor. `share`: the outputs of a block,
// at most kTiles tiles; kGated: p.outputs and `share` count gate rows; the block also computes as
// many up rows. In registers norms take a single round of up to 8 rows. trigger_early: see
// launch.cuh.
template <typename T, Prepare kPrepare, bool kGated, int kMaxRows, int kTiles, int kSlices,
          int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    gemv_kernel(const GemmParams<T> p, int share, bool trigger_early) {
  constexpr int kOutputs = kTiles * kTileOutputs;
  constexpr int kHalves = (kMaxRows + 7) / 8;
  constexpr bool kNorm = kPrepare == Prepare::norm_in_shared;
  constexpr bool kNormInRegisters = kPrepare == Prepare::norm_in_registers;
  static_assert(!kNormInRegisters || kMaxRows <= 8);
  __shared__ float sums[kWarps][kHalves * 8][kOutputs];
  extern __shared__ __align__(128) char shared[];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4,
            within = lane % 4 * 8;  // of the tile's outputs; of the slice's inputs
  const int first_output = blockIdx.x * share;
  const int outputs = min(share, p.outputs - first_output);

  // This lane's first weights of the first tile. Those of the other tiles follow at tile_stride,
  // except for up rows, which begin in the middle of a tile and p.outputs further.
  const T* const weight =
      p.weight + static_cast<long long>(first_output + group) * p.inputs + within;
  const long long tile_stride = static_cast<long long>(kTileOutputs) * p.inputs;
  const long long to_gated = static_cast<long long>(p.outputs - share) * p.inputs;
  const int inputs = p.inputs - within;
  Vector<T> w[kSlices][kTiles];
  const auto load = [&](int slice, int input) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int output = tile * kTileOutputs + group;
      const bool is_up = kGated && output >= share;
      w[slice][tile] = load_weights(weight + tile * tile_stride + (is_up ? to_gated : 0) + input,
                                    input < inputs && (is_up ? output - share : output) < outputs);
    }
  };
  constexpr int kStep = kSlices * kSliceInputs;
  int begin = warp * kStep;
  // The condition matters: without it the compiler moves loads past the wait below.
  if (begin < p.inputs) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) load(slice, begin + slice * kSliceInputs);
  }

  const NormedRows<T> normed(shared, p);
  if constexpr (kNorm) normed.begin(p);
  [[maybe_unused]] Vector<T> prepared[kSlices], norm_weight[kSlices];
  if constexpr (kNormInRegisters) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int input = begin + slice * kSliceInputs;
      norm_weight[slice] = {};
      if (input < inputs) norm_weight[slice] = load_vector(p.norm_weight + within + input);
    }
  }
  pdl_begin(trigger_early);
  // The residual loads overlap the multiplication.
  const int own_row = threadIdx.x / kOutputs, own_column = threadIdx.x % kOutputs;
  float residual = 0;
  if (!kGated && own_row < p.rows && own_column < outputs) {
    residual = residual_of(p, own_row, first_output + own_column);
  }
  if constexpr (kNorm) normed.finish(p);

  // Missing rows repeat the last one; their sums are not used.
  const T* x[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = min(half * 8 + group, p.rows - 1);
    x[half] =
        (kNorm ? reinterpret_cast<const T*>(normed.at(row, 0)) : p.x + row * p.x_stride) + within;
  }
  if constexpr (kNormInRegisters) {
    __shared__ __align__(16) float squares[8 * NormedSlices<T, kSlices, kWarps>::kRow];
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int input = begin + slice * kSliceInputs;
      prepared[slice] = {};
      if (input < inputs) prepared[slice] = load_vector(x[0] + input);
    }
    NormedSlices<T, kSlices, kWarps>::apply(p, squares, prepared, norm_weight);
  }
  float d[kTiles][4] = {};
  while (begin < p.inputs) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int input = begin + slice * kSliceInputs;
      Vector<T> a[2] = {};
      if constexpr (kNormInRegisters) {
        a[0] = prepared[slice];
      } else if (input < inputs) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) a[half] = load_vector(x[half] + input);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Vector<T>& b = w[slice][tile];
        multiply_add<T>(d[tile], a[0].word[0], a[1].word[0], a[0].word[1], a[1].word[1], b.word[0],
                        b.word[1]);
        multiply_add<T>(d[tile], a[0].word[2], a[1].word[2], a[0].word[3], a[1].word[3], b.word[2],
                        b.word[3]);
      }
    }
    begin += kWarps * kStep;
    if (begin < p.inputs) {
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) load(slice, begin + slice * kSliceInputs);
    }
  }

  put_sums<kHalves>(d, sums[warp]);
  __syncthreads();
  const OwnOutput own{own_row, residual};
  add_and_store<kGated, kWarps>(p, sums, share, own);
}

}  // namespace nvllm::kernels::cuda
