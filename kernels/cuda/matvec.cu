#include "device/cuda/stream.h"
#include "kernels/cuda/matvec.cuh"
#include "kernels/cuda/matvec.h"

namespace nvllm::kernels::cuda {
namespace {

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  nvllm::cuda::check(cudaGetDevice(&device), "asking for the device");
  nvllm::cuda::check(cudaDeviceGetAttribute(&value, attribute, device), "asking for the device");
  return value;
}

bool whole_vectors(const TensorView& rows) {
  const std::int64_t columns = rows.shape[rows.rank - 1];
  return rows.aligned(16) && columns % 8 == 0 &&
         (rows.rank == 1 || rows.shape[0] <= 1 || rows.stride[0] % 8 == 0);
}

template <typename T, bool kNorm, int kHalves, int kTiles, int kSlices, int kWarps, int kBlocks>
void launch(const LinearParams<T>& p, bool early, cudaStream_t stream) {
  const auto kernel = matvec_kernel<T, kNorm, kHalves, kTiles, kSlices, kWarps, kBlocks>;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  constexpr int kOutputs = kTiles * kTileOutputs;
  config.gridDim = dim3(static_cast<unsigned>((p.outputs + kOutputs - 1) / kOutputs));
  config.blockDim = dim3(kWarps * 32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  if (kNorm) config.dynamicSmemBytes = normed_shared_bytes(p.rows, p.inputs);
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p), "launching linear");
}

}  // namespace

Matvec::Matvec()
    : multiprocessors_(device_attribute(cudaDevAttrMultiProcessorCount)),
      shared_bytes_(48 << 10),
      hopper_(device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool Matvec::takes(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  if (args.weight.dtype == DType::f32 || rows < 1 || rows > kMatvecMaxRows || inputs == 0)
    return false;
  if (!whole_vectors(args.weight) || !whole_vectors(args.x)) return false;
  if (args.before == Linear::Before::nothing) return true;
  return args.before == Linear::Before::rms_norm && rows <= kMatvecMaxNormRows &&
         whole_vectors(args.norm_weight) &&
         normed_shared_bytes(static_cast<int>(rows), static_cast<int>(inputs)) <= shared_bytes_ / 2;
}

template <typename T>
void Matvec::enqueue_as(const Linear& args, Stream& stream) const {
  const LinearParams<T> p(args);
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (p.norm_weight != nullptr) return launch<T, true, 1, 2, 4, 8, 3>(p, hopper_, native);
  if (p.rows <= 8) return launch<T, false, 1, 2, 4, 8, 3>(p, hopper_, native);
  launch<T, false, 2, 4, 2, 8, 3>(p, hopper_, native);
}

void Matvec::enqueue(const Linear& args, Stream& stream) const {
  if (args.weight.dtype == DType::bf16) return enqueue_as<Bf16>(args, stream);
  enqueue_as<F16>(args, stream);
}

}  // namespace nvllm::kernels::cuda
