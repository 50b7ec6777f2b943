// Segmented GEMV: up to 16 rows by all segments of a weight of 16-bit floats, and the sum over the
// segments, in one kernel (kernels::SegmentedGemm).
//
// A block computes kTiles tiles of 8 outputs for all rows; each of its warps computes those of one
// segment: all inputs of the segment, 16 at a time, in one accumulator, as invariant_gemv.cuh does
// for all inputs. (It also explains slices, batches and the exchange of words between lanes.) So
// the bits are those of one GEMM per segment, while chains are short and many warps share the
// weight. The warps' sums are added in shared memory in the order of the tree.
#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm80/invariant_gemv.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kMaxSegments = TreeSum::kMaxSources;
constexpr int kBatch = 2;  // slices that are waited for together

template <typename T>
struct Params {
  void* out;  // float with float_out, else T
  const T* x;
  const T* weight;
  const T* bias;  // nullptr: none
  long long x_stride;
  int rows, outputs, inputs, segments;  // inputs: of a segment
  bool float_out;
};

// A segment's part of the ring in shared memory: each lane's 16 bytes of a slice of every tile and
// of 8 rows of x, which it copies and reads back itself.
constexpr int slice_bytes(int tiles, int halves) {
  return (tiles + halves) * 512;
}
constexpr int ring_bytes(int tiles, int halves, int batches) {
  return batches * kBatch * slice_bytes(tiles, halves);
}

// The sum over all segments in aligned pairs; missing segments are left out.
__device__ __forceinline__ float add_tree(float (&sums)[kMaxSegments], int segments) {
#pragma unroll
  for (int step = 1; step < kMaxSegments; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < kMaxSegments; i += 2 * step) {
      if (i + step < segments) sums[i] = __fadd_rn(sums[i], sums[i + step]);
    }
  }
  return sums[0];
}

// The sums of this warp's segment: d[tile], in mma layout.
template <typename T, int kHalves, int kTiles, int kBatches>
__device__ __forceinline__ void multiply_segment(const Params<T>& p, int first_output, int segment,
                                                 char* ring, float (&d)[kTiles][4]) {
  constexpr int kSlice = slice_bytes(kTiles, kHalves);
  const int lane = threadIdx.x % 32, group = lane / 4, within = lane % 4 * 8;
  ring += lane * 16;
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(ring));

  const T* weight[kTiles];
  bool inside[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int output = first_output + tile * kTileOutputs + group;
    inside[tile] = output < p.outputs;
    const long long row = static_cast<long long>(segment) * p.outputs + (inside[tile] ? output : 0);
    weight[tile] = p.weight + row * p.inputs + within;
  }
  const auto slot = [&](int batch, int i) { return (batch % kBatches * kBatch + i) * kSlice; };
  const auto copy_weights = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (batch * kBatch + i) * kSliceInputs;
      const bool exists = input + within < p.inputs;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        invariant::copy<true>(to + slot(batch, i) + tile * 512, weight[tile] + (exists ? input : 0),
                              exists && inside[tile]);
      }
    }
  };
#pragma unroll
  for (int batch = 0; batch < kBatches - 1; ++batch) copy_weights(batch);

  pdl_begin();
  const T* x[kHalves];
  bool has_row[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = half * 8 + group;
    has_row[half] = row < p.rows;
    x[half] = p.x + (has_row[half] ? row : 0) * p.x_stride + segment * p.inputs + within;
  }
  const auto copy_x = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (batch * kBatch + i) * kSliceInputs;
      const bool exists = input + within < p.inputs;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        invariant::copy<false>(to + slot(batch, i) + (kTiles + half) * 512,
                               x[half] + (exists ? input : 0), exists && has_row[half]);
      }
    }
    commit_copies();
  };
  // The first copy group also includes the weights of all batches so far.
#pragma unroll
  for (int batch = 0; batch < kBatches - 1; ++batch) copy_x(batch);

  const int batches = (p.inputs + kBatch * kSliceInputs - 1) / (kBatch * kSliceInputs);
  for (int batch = 0; batch < batches; ++batch) {
    wait_for_copies<kBatches - 2>();
    Vector<T> w[kBatch][kTiles], rows[kBatch][2] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const char* const from = ring + slot(batch, i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        w[i][tile] = *reinterpret_cast<const Vector<T>*>(from + tile * 512);
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        rows[i][half] = *reinterpret_cast<const Vector<T>*>(from + (kTiles + half) * 512);
    }
    copy_weights(batch + kBatches - 1);
    copy_x(batch + kBatches - 1);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) invariant::exchange(w[i][tile]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) invariant::exchange(rows[i][half]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int step = 0; step < 4; step += 2) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add<T>(d[tile], rows[i][0].word[step], rows[i][1].word[step],
                          rows[i][0].word[step + 1], rows[i][1].word[step + 1],
                          w[i][tile].word[step], w[i][tile].word[step + 1]);
        }
      }
    }
  }
  wait_for_async_copies();
}

// One warp per segment.
template <typename T, int kHalves, int kTiles, int kBatches>
__global__ void __launch_bounds__(kMaxSegments * 32) segmented_gemv_kernel(const Params<T> p) {
  constexpr int kOutputs = kTiles * kTileOutputs, kRows = kHalves * 8;
  extern __shared__ __align__(128) char shared[];
  __shared__ float sums[kMaxSegments][kRows][kOutputs];
  const int segment = threadIdx.x / 32;
  const int first_output = static_cast<int>(blockIdx.x) * kOutputs;
  float d[kTiles][4] = {};
  multiply_segment<T, kHalves, kTiles, kBatches>(
      p, first_output, segment, shared + segment * ring_bytes(kTiles, kHalves, kBatches), d);
  put_sums<kHalves>(d, sums[segment]);
  __syncthreads();
  for (int i = threadIdx.x; i < p.rows * kOutputs; i += blockDim.x) {
    const int row = i / kOutputs, column = i % kOutputs, output = first_output + column;
    if (output >= p.outputs) continue;
    float of_segments[kMaxSegments];
#pragma unroll
    for (int n = 0; n < kMaxSegments; ++n)
      of_segments[n] = sums[n < p.segments ? n : 0][row][column];
    float sum = add_tree(of_segments, p.segments);
    if (p.bias != nullptr) sum = __fadd_rn(sum, widen(p.bias[output]));
    const long long at = static_cast<long long>(row) * p.outputs + output;
    if (p.float_out) {
      static_cast<float*>(p.out)[at] = sum;
    } else {
      static_cast<T*>(p.out)[at] = narrow<T>(sum);
    }
  }
}

template <typename T, int kHalves, int kTiles, int kBatches>
void launch(const Params<T>& p, cudaStream_t stream) {
  const auto kernel = segmented_gemv_kernel<T, kHalves, kTiles, kBatches>;
  const int bytes = p.segments * ring_bytes(kTiles, kHalves, kBatches);
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "preparing a segmented GEMV");
  const LaunchShape shape{dim3(blocks_for(p.outputs, kTiles * kTileOutputs)),
                          dim3(static_cast<unsigned>(p.segments) * 32),
                          static_cast<std::size_t>(bytes)};
  launch_with_pdl("launching a segmented GEMV", kernel, shape, stream, p);
}

// All blocks should be resident at once, and together fill the multiprocessors' shared memory with
// copies in flight.
template <typename T, int kHalves, int kTiles>
void launch(const Params<T>& p, cudaStream_t stream) {
  constexpr int kBytes = 227 << 10;  // of a multiprocessor
  constexpr int kSums = kMaxSegments * kHalves * 8 * kTiles * kTileOutputs * 4, kReserved = 1 << 10;
  const int processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const int blocks = static_cast<int>(blocks_for(p.outputs, kTiles * kTileOutputs));
  const int on_one = (blocks + processors - 1) / processors;
  const auto fits = [&](int batches) {
    return on_one * (p.segments * ring_bytes(kTiles, kHalves, batches) + kSums + kReserved) <=
           kBytes;
  };
  if (fits(6)) return launch<T, kHalves, kTiles, 6>(p, stream);
  if (fits(4)) return launch<T, kHalves, kTiles, 4>(p, stream);
  launch<T, kHalves, kTiles, 3>(p, stream);
}

template <typename T>
void launch(const SegmentedGemm& gemm, Stream& stream) {
  const Params<T> p{.out = gemm.sum.out.data,
                    .x = gemm.x.as<const T>(),
                    .weight = gemm.weight.values.as<const T>(),
                    .bias = gemm.sum.bias.as<const T>(),
                    .x_stride = gemm.x.stride[0],
                    .rows = static_cast<int>(gemm.m()),
                    .outputs = static_cast<int>(gemm.outputs()),
                    .inputs = static_cast<int>(gemm.weight.inputs()),
                    .segments = static_cast<int>(gemm.segments()),
                    .float_out = gemm.sum.out.dtype == DType::f32};
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (p.rows <= 8) return launch<T, 1, 1>(p, native);
  // Two tiles share rows of x, which are as long as weights here; with fewer outputs they would
  // leave multiprocessors idle.
  constexpr int kManyOutputs = 2048;
  p.outputs >= kManyOutputs ? launch<T, 2, 2>(p, native) : launch<T, 2, 1>(p, native);
}

// Whether the sum has the order of add_tree().
bool is_aligned(const TreeSum& sum) {
  int left = sum.count;
  for (int i = 0; i < sum.count; ++i) {
    // In a whole tree: as often as i + 1 is divisible by 2.
    int merges = 0;
    for (int n = i + 1; n % 2 == 0; n /= 2) ++merges;
    if (i + 1 == sum.count) merges = left - 1;
    if (sum.merges[static_cast<std::size_t>(i)] != merges) return false;
    left -= merges;
  }
  return true;
}

}  // namespace

bool segmented_gemv(const SegmentedGemm& gemm, Stream& stream) {
  const DType type = gemm.weight.type();
  const TensorView& bias = gemm.sum.bias;
  const bool fits = fits_gemv(shape_of(gemm.weight_of(0), gemm.operands_of(0))) &&
                    (gemm.sum.out.dtype == type || gemm.sum.out.dtype == DType::f32) &&
                    (bias.data == nullptr || bias.dtype == type) && is_aligned(gemm.sum);
  if (!fits) return false;
  type == DType::bf16 ? launch<Bf16>(gemm, stream) : launch<F16>(gemm, stream);
  return true;
}

}  // namespace nvllm::kernels::cuda
