// Which kernel computes a grouped GEMM.
#include "base/error.h"
#include "device/cuda/stream.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda {
namespace {

// Rows per group on average up to which grouped_few_rows is the fastest, on Hopper and elsewhere.
constexpr std::int64_t kMaxFewRowsOnHopper = 2, kMaxFewRows = 8;

// Of which the kernels with tensor cores have a list in shared memory, beside their rings: as many
// as fit into 99 KiB, which is all that some GPUs have for a block.
constexpr std::int64_t kMaxGroups = 380;

// What kernels with tensor cores count on: 16-bit floats in whole vectors of 16 bytes.
bool fits_tensor_cores(const GroupedGemm& grouped) {
  const std::int64_t columns = grouped.out.shape[1], inputs = grouped.weight.inputs();
  return grouped.weight.type() != DType::f32 && inputs > 0 && inputs % 8 == 0 && columns % 8 == 0 &&
         grouped.groups() <= kMaxGroups && grouped.weight.values.aligned(16) &&
         grouped.x.aligned(16) && grouped.out.aligned(16);
}

}  // namespace

GroupedGemms::GroupedGemms() : is_hopper_(cuda::is_hopper()) {}

GroupedKernel GroupedGemms::kernel_of(const GroupedGemm& grouped) const {
  if (!fits_tensor_cores(grouped)) return GroupedKernel::dot;
  const std::int64_t few = is_hopper_ ? kMaxFewRowsOnHopper : kMaxFewRows;
  if (grouped.m() <= few * grouped.groups()) return GroupedKernel::few_rows;
  return is_hopper_ ? GroupedKernel::wgmma : GroupedKernel::tiles;
}

GroupedFusion GroupedGemms::fused_in(const GroupedGemm& grouped) const {
  if (is_quantized(grouped.weight.format)) {
    fail("gemm: weight is ", name_of(grouped.weight.format),
         "; mixtures of experts with quantized weights run on CPUs only so far");
  }
  const bool dot = kernel_of(grouped) == GroupedKernel::dot;
  return {.gather = true, .epilogue = !dot && grouped.activation == Activation::silu};
}

void GroupedGemms::enqueue(const GroupedGemm& grouped, Stream& stream) const {
  switch (kernel_of(grouped)) {
    case GroupedKernel::dot: return grouped_dot(grouped, stream);
    case GroupedKernel::few_rows: return grouped_few_rows(grouped, stream);
    case GroupedKernel::tiles: return grouped_tiles(grouped, stream);
    case GroupedKernel::wgmma: return grouped_wgmma(grouped, stream);
  }
}

}  // namespace nvllm::kernels::cuda
