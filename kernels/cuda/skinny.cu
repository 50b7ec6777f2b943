#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/cuda/skinny.cuh"
#include "kernels/cuda/skinny.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kOutputs = 64, kStages = 6;  // two blocks of a multiprocessor at once
constexpr int kMostSplits = 8;             // blocks of a cluster, as all GPUs have them
constexpr int kLeastStages = 3;            // of a block
constexpr std::int64_t kMostWeightBytes = std::int64_t{64} << 40;

int tiles_of(int outputs) {
  return (outputs + kOutputs - 1) / kOutputs;
}

// So many that all blocks run at once.
int splits_of(int outputs, int inputs, int multiprocessors) {
  int splits = 1;
  while (splits < kMostSplits && tiles_of(outputs) * splits * 2 <= 2 * multiprocessors &&
         inputs / kStageInputs >= splits * 2 * kLeastStages) {
    splits *= 2;
  }
  return splits;
}

template <typename T, int kRows>
void launch(const Linear& args, int multiprocessors, cudaStream_t stream) {
  const LinearParams<T> p(args);
  const auto kernel = skinny_kernel<T, kOutputs, kRows, kStages>;
  constexpr int kBytes = SkinnyShared<kOutputs, kRows, kStages>::kBytes;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "preparing linear");
  const int splits = splits_of(p.outputs, p.inputs, multiprocessors);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(splits, tiles_of(p.outputs));
  config.blockDim = dim3(kSkinnyThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p), "launching linear");
}

template <typename T>
void launch(const Linear& args, int multiprocessors, cudaStream_t stream) {
  if (args.out.shape[0] <= 32) return launch<T, 32>(args, multiprocessors, stream);
  launch<T, kSkinnyMaxRows>(args, multiprocessors, stream);
}

}  // namespace

Skinny::Skinny()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      clusters_(nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool Skinny::takes(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  const bool vectors = args.weight.aligned(16) && args.x.aligned(16) && args.x.stride[0] % 8 == 0;
  return clusters_ && args.weight.dtype != DType::f32 && rows <= kSkinnyMaxRows && inputs > 0 &&
         inputs % kStageInputs == 0 && vectors &&
         static_cast<std::int64_t>(args.weight.bytes()) <= kMostWeightBytes;
}

void Skinny::enqueue(const Linear& args, Stream& stream) const {
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (args.weight.dtype == DType::bf16) return launch<Bf16>(args, multiprocessors_, native);
  launch<F16>(args, multiprocessors_, native);
}

}  // namespace nvllm::kernels::cuda
