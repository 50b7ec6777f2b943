// Embedding lookup in a quantized table. A thread has one element: a step looks up few rows, beside
// the layers' weights, so what counts is a short kernel.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/quantized_embedding.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  const int* ids;
  const unsigned char* values;
  const void* scales;
  long long first_id, entries;
  int columns, row_bytes, groups, group;
  float scale;
};

// The bits of element i of a row: see quantized_weight.h.
template <WeightFormat kFormat>
__device__ __forceinline__ unsigned code_of(const unsigned char* row, int i) {
  constexpr int kInputs = block_inputs_of(kFormat);
  const unsigned char* const block = row + i / kInputs * kQuantizedBlockBytes;
  const int thread = i % 8 / 2, upper = i % 16 / 8;
  if constexpr (has_nibbles(kFormat)) {
    const int nibble = i % 32 / 16 * 2 + upper + i % 2 * 4;
    return block[thread * 16 + i % kInputs / 32 * 4 + nibble / 2] >> nibble % 2 * 4 & 15;
  } else {
    return block[thread * 16 + i % kInputs / 16 * 4 + i % 2 + upper * 2];
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ float value_of(const Params& p, long long entry, int i) {
  const unsigned code = code_of<kFormat>(p.values + entry * p.row_bytes, i);
  const long long group = entry * p.groups + i / p.group;
  if constexpr (kFormat == WeightFormat::fp8) {
    return static_cast<const float*>(p.scales)[group] *
           widen(E4m3{static_cast<std::uint8_t>(code)});
  } else {
    constexpr int kZero = kFormat == WeightFormat::int8 ? 128 : 8;
    const F16* const scale = static_cast<const F16*>(p.scales) + group * 2;
    return fmaf(widen(scale[0]), static_cast<float>(static_cast<int>(code) - kZero),
                widen(scale[1])) *
           kScaleUnit;
  }
}

// gridDim: (rows, parts of a row)
template <WeightFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    quantized_embedding_kernel(T* __restrict__ out, const Params p) {
  pdl_begin();
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= p.columns) return;
  const long long row = blockIdx.x, entry = p.ids[row] - p.first_id;
  const bool inside = entry >= 0 && entry < p.entries;
  const float value = inside ? value_of<kFormat>(p, entry, i) : 0.0f;
  out[row * p.columns + i] = narrow<T>(value * p.scale);
}

template <WeightFormat kFormat>
void launch(const QuantizedEmbedding& args, Stream& stream) {
  const QuantizedShape& shape = args.shape;
  const Params p{args.ids.as<int>(),
                 args.values.as<unsigned char>(),
                 args.scales.data,
                 args.first_id,
                 shape.outputs,
                 static_cast<int>(shape.inputs),
                 static_cast<int>(shape.row_bytes()),
                 static_cast<int>(shape.groups()),
                 static_cast<int>(shape.group),
                 args.scale};
  const LaunchShape grid{
      dim3(static_cast<unsigned>(args.out.shape[0]), blocks_for(shape.inputs, kThreads)),
      dim3(kThreads)};
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    launch_with_pdl("launching quantized_embedding", quantized_embedding_kernel<kFormat, T>, grid,
                    nvllm::cuda::native(stream), args.out.as<T>(), p);
  });
}

}  // namespace

void quantized_embedding(const QuantizedEmbedding& args, Stream& stream) {
  switch (args.shape.format) {
    case WeightFormat::fp8: return launch<WeightFormat::fp8>(args, stream);
    case WeightFormat::int8: return launch<WeightFormat::int8>(args, stream);
    case WeightFormat::int4: return launch<WeightFormat::int4>(args, stream);
    case WeightFormat::mxfp4:
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: break;
  }
  unexpected_format(args.shape.format, "quantized_embedding");
}

}  // namespace nvllm::kernels::cuda
