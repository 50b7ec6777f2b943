// A copy to a numbered place on the GPU: a thread for each word.
#include "kernels/common/sm80/launch.cuh"
#include "kernels/pointwise/sm80/copy_to_ring.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copy_to_ring_kernel(const int* words, const int* place, int* places, long long room,
                         long long count) {
  begin_after_previous_kernel();
  const long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  if (i < count) places[*place * room + i] = words[i];
}

}  // namespace

void copy_to_ring(const CopyToRing& args, Stream& stream) {
  const long long count = args.words.shape[0];
  launch_early("launching copy_to_ring", copy_to_ring_kernel,
               dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads),
               nvllm::cuda::native(stream), args.words.as<int>(), args.place.as<int>(),
               args.places.as<int>(), static_cast<long long>(args.places.shape[1]), count);
}

}  // namespace nvllm::kernels::cuda
