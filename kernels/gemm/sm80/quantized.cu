#include <cuda_fp8.h>

#include "device/cuda/stream.h"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/sm80/entry_points.h"
#include "kernels/gemm/sm80/quantized_values.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// --- dequantized weights -------------------------------------------------------------------------

struct DequantizeParams {
  const unsigned* values;  // of the first output
  const void* scales;      // likewise
  long long words;         // 16 of each block
  int inputs, row_blocks, groups, group;
  bool whole_vectors;  // rows of out are vectors of 16 bytes
};

__device__ __forceinline__ float fp8_to_float(unsigned byte) {
  __nv_fp8_e4m3 value;
  value.__x = static_cast<__nv_fp8_storage_t>(byte);
  return static_cast<float>(value);
}

__device__ __forceinline__ float e2m1_to_float(unsigned code) {
  return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
}

// A step's 16 inputs from the words of four threads; nibbles: which of the two steps of an int4 or
// mxfp4 word.
template <WeightFormat kFormat>
__device__ __forceinline__ void unpack(const unsigned (&words)[4], int step, float (&out)[16]) {
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {  // inputs 2t, 2t + 1, 2t + 8, 2t + 9
      const int input = 2 * thread + e % 2 + e / 2 * 8;
      if constexpr (has_nibbles(kFormat)) {
        const int nibble = 2 * step + e / 2 + 4 * (e % 2);
        const unsigned code = words[thread] >> (4 * nibble) & 15;
        out[input] =
            kFormat == WeightFormat::mxfp4 ? e2m1_to_float(code) : static_cast<float>(code) - 8;
      } else if constexpr (kFormat == WeightFormat::int8) {
        out[input] = static_cast<float>(words[thread] >> (8 * e) & 255) - 128;
      } else {
        out[input] = fp8_to_float(words[thread] >> (8 * e) & 255);
      }
    }
  }
}

template <WeightFormat kFormat, typename T>
__device__ __forceinline__ GroupScale scale_of(const void* scales, long long at) {
  if constexpr (kFormat == WeightFormat::mxfp4) {
    return group_scale<kFormat, T>(static_cast<const unsigned char*>(scales)[at]);
  }
  GroupScale scale = group_scale<kFormat, T>(static_cast<const unsigned*>(scales)[at]);
  if constexpr (!has_float_values(kFormat)) scale.scale *= kScaleUnit, scale.offset *= kScaleUnit;
  return scale;
}

// Has the bits of weights that the small-M GEMM dequantizes in registers
// (sm90/quantized_weights.cuh), whose integers have kAdded added: an offset may be rounded by that.
// A thread has word k of all four threads of a block: adjacent inputs.
template <WeightFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(T* out, const DequantizeParams p) {
  constexpr int kSteps = has_nibbles(kFormat) ? 2 : 1;
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i * 4 >= p.words) return;
  const long long block = i / 4;
  const int k = static_cast<int>(i % 4);
  const long long output = block / p.row_blocks;
  const int first = (static_cast<int>(block % p.row_blocks) * 4 + k) * 16 * kSteps;
  unsigned words[4];
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) words[thread] = p.values[block * 16 + thread * 4 + k];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int input = first + step * 16;
    if (input >= p.inputs) break;
    const GroupScale scale = scale_of<kFormat, T>(p.scales, output * p.groups + input / p.group);
    float values[16];
    unpack<kFormat>(words, step, values);
    T* const to = out + output * p.inputs + input;
    constexpr int kElements = Vector<T>::kElements;
#pragma unroll
    for (int v = 0; v < 16 / kElements; ++v) {
      Floats<T> floats;
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        floats.element[e] =
            __fmaf_rn(values[v * kElements + e] + QuantizedValues<kFormat, T>::kAdded, scale.scale,
                      scale.offset);
      const Vector<T> vector = narrow(floats);
      if (p.whole_vectors) {
        if (input + v * kElements < p.inputs) store_vector(to + v * kElements, vector);
        continue;
      }
      for (int e = 0; e < kElements && input + v * kElements + e < p.inputs; ++e)
        to[v * kElements + e] = narrow<T>(floats.element[e]);
    }
  }
}

template <WeightFormat kFormat, typename T>
void launch(const TensorView& out, const DequantizeParams& p, cudaStream_t stream) {
  const long long threads = (p.words + 3) / 4;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  dequantize_kernel<kFormat><<<blocks, kThreads, 0, stream>>>(out.as<T>(), p);
  nvllm::cuda::check(cudaGetLastError(), "launching dequantize");
}

template <WeightFormat kFormat>
void launch(const TensorView& out, const DequantizeParams& p, cudaStream_t stream) {
  switch (out.dtype) {
    case DType::f32: return launch<kFormat, float>(out, p, stream);
    case DType::bf16: return launch<kFormat, Bf16>(out, p, stream);
    default: return launch<kFormat, F16>(out, p, stream);
  }
}

// --- scales of weights in fp8 --------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    transpose_scales_kernel(const float* scales, float* out, int outputs, int groups) {
  __shared__ float tile[32][33];
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int output = blockIdx.x * 32, group = blockIdx.y * 32;
  for (int i = y; i < 32; i += kThreads / 32) {
    if (output + i < outputs && group + x < groups)
      tile[i][x] = scales[static_cast<long long>(output + i) * groups + group + x];
  }
  __syncthreads();
  for (int i = y; i < 32; i += kThreads / 32) {
    if (group + i < groups && output + x < outputs)
      out[static_cast<long long>(group + i) * outputs + output + x] = tile[x][i];
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_block_scales_kernel(const float* scales, float* out, int blocks, int groups,
                               int padded) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= blocks * padded) return;
  const int block = i / padded, group = i % padded;
  out[i] = group < groups ? scales[static_cast<long long>(block) * 128 * groups + group] : 0;
}

}  // namespace

void dequantize(const GemmWeight& weight, std::int64_t first, const TensorView& out,
                Stream& stream) {
  const QuantizedShape shape = weight.quantized_shape();
  const TensorView& scales = weight.quantized.scales;
  const std::int64_t outputs = out.shape[0];
  if (outputs == 0 || shape.inputs == 0) return;
  DequantizeParams p{};
  p.values =
      reinterpret_cast<const unsigned*>(weight.values.as<std::byte>() + first * shape.row_bytes());
  p.scales = scales.as<std::byte>() +
             first * shape.scale_columns() * static_cast<std::int64_t>(size_of(scales.dtype));
  p.words = outputs * shape.row_blocks() * (kQuantizedBlockBytes / 4);
  p.inputs = static_cast<int>(shape.inputs);
  p.row_blocks = static_cast<int>(shape.row_blocks());
  p.groups = static_cast<int>(shape.groups());
  p.group = static_cast<int>(shape.group);
  p.whole_vectors =
      out.aligned(16) && shape.inputs * static_cast<std::int64_t>(size_of(out.dtype)) % 16 == 0;
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (shape.format) {
    case WeightFormat::fp8: return launch<WeightFormat::fp8>(out, p, native);
    case WeightFormat::int8: return launch<WeightFormat::int8>(out, p, native);
    case WeightFormat::mxfp4: return launch<WeightFormat::mxfp4>(out, p, native);
    case WeightFormat::int4: return launch<WeightFormat::int4>(out, p, native);
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: break;
  }
  unexpected_format(shape.format, "dequantize");
}

void transpose_scales(const TensorView& scales, float* out, Stream& stream) {
  const int outputs = static_cast<int>(scales.shape[0]), groups = static_cast<int>(scales.shape[1]);
  const dim3 grid((outputs + 31) / 32, (groups + 31) / 32);
  transpose_scales_kernel<<<grid, kThreads, 0, nvllm::cuda::native(stream)>>>(scales.as<float>(),
                                                                              out, outputs, groups);
  nvllm::cuda::check(cudaGetLastError(), "launching transpose_scales");
}

void gather_block_scales(const TensorView& scales, float* out, Stream& stream) {
  const int groups = static_cast<int>(scales.shape[1]), padded = (groups + 3) / 4 * 4;
  const int blocks = static_cast<int>((scales.shape[0] + 127) / 128);
  gather_block_scales_kernel<<<(blocks * padded + kThreads - 1) / kThreads, kThreads, 0,
                               nvllm::cuda::native(stream)>>>(scales.as<float>(), out, blocks,
                                                              groups, padded);
  nvllm::cuda::check(cudaGetLastError(), "launching gather_block_scales");
}

}  // namespace nvllm::kernels::cuda
