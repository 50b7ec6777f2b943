#include "kernels/pointwise/copy_to_ring.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/cpu/copy_to_ring.h"
#ifdef NVLLM_CUDA
#include "kernels/pointwise/sm80/copy_to_ring.h"
#endif

namespace nvllm::kernels {

void check_copy_to_ring(const CopyToRing& args) {
  constexpr Arguments check("copy_to_ring");
  const auto require = [&](const TensorView& tensor, const char* name,
                           std::initializer_list<std::int64_t> shape) {
    check.require(tensor, name, DType::i32, shape);
    check.require_dense(tensor, name);
  };
  const std::int64_t words = args.words.shape[0];
  require(args.words, "words", {words});
  require(args.place, "place", {1});
  require(args.places, "places", {args.places.shape[0], args.places.shape[1]});
  if (args.places.shape[1] < words) {
    fail(check.operation(), ": places is ", args.places.describe(), "; they must be for ", words,
         " words or more");
  }
}

void copy_to_ring(const CopyToRing& args, Stream& stream) {
  check_copy_to_ring(args);
  if (args.words.shape[0] == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::copy_to_ring(args, stream);
#endif
  cpu::copy_to_ring(args, stream);
}

void copy_to_ring_reference(const CopyToRing& args) {
  check_copy_to_ring(args);
  std::copy_n(
      args.words.as<std::int32_t>(), args.words.shape[0],
      args.places.as<std::int32_t>() + *args.place.as<std::int32_t>() * args.places.shape[1]);
}

}  // namespace nvllm::kernels
