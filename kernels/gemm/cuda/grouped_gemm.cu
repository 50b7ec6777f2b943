// Kernel selection for grouped GEMMs.
#include <algorithm>

#include "base/error.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda {
namespace {

// Average rows per group up to which grouped_gemv is the fastest, on Hopper and elsewhere, and
// up to which quantized weights are best read without dequantizing.
constexpr std::int64_t kMaxFewRowsOnHopper = 2, kMaxFewRows = 8, kMaxQuantizedRows = 16;
// And, on Hopper, up to which grouped_small_m is the fastest.
constexpr std::int64_t max_small_m(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 8 : format == WeightFormat::fp8 ? 6 : 5;
}
// And up to which x is not quantized for fp8 weights that Hopper could multiply by fp8 rows.
constexpr std::int64_t kMaxFewFp8Rows = 6;

// Tensor-core kernels keep a list of groups in shared memory, in addition to their rings: as many
// as fit into 99 KiB, the maximum per block on some GPUs.
constexpr std::int64_t kMaxGroups = 380;

// The requirements of tensor-core kernels: 16-bit floats in whole vectors of 16 bytes.
bool fits_tensor_cores(const GroupedGemm& grouped) {
  const std::int64_t columns = grouped.out.shape[1], inputs = grouped.weight.inputs();
  return grouped.weight.type() != DType::f32 && inputs > 0 && inputs % 8 == 0 && columns % 8 == 0 &&
         grouped.groups() <= kMaxGroups && grouped.weight.values.aligned(16) &&
         grouped.x.aligned(16) && grouped.out.aligned(16);
}

// Whether x may be quantized to fp8, and grouped_fp8 supports it: each half of a tile has one scale
// for all of its outputs, and all gathered rows must fit into memory at once.
bool fits_fp8(const GroupedGemm& grouped) {
  const GemmWeight& weight = grouped.weight;
  const std::int64_t inputs = weight.inputs();
  if (weight.format != WeightFormat::fp8 || weight.quantized.weight_only) return false;
  const bool whole_blocks = weight.quantized.blocks && inputs % kFp8Group == 0 &&
                            grouped.outputs() % 128 == 0 && grouped.out.shape[1] % 128 == 0;
  if (!whole_blocks || !fits_tensor_cores(grouped)) return false;
  const std::int64_t room = QuantizedGemm::max_fp8_rows(inputs);
  return room >= (grouped.source_rows.data == nullptr ? 1 : grouped.x.shape[0]);
}

GroupedGemm some_groups(const GroupedGemm& grouped, std::int64_t first, std::int64_t count) {
  const std::int64_t outputs = grouped.outputs();
  GroupedGemm some = grouped;
  some.start = grouped.start.rows(first, count + 1);
  some.weight = grouped.weight.part(first * outputs, count * outputs);
  if (grouped.weight.bias.data != nullptr) {
    some.weight.bias = grouped.weight.bias.rows(first * outputs, count * outputs);
  }
  return some;
}

// Whether a group's dequantized weights fit into the workspace.
bool has_room(const GroupedGemm& grouped) {
  const std::int64_t size = size_of(grouped.weight.type());
  return grouped.outputs() * grouped.weight.inputs() * size <=
         static_cast<std::int64_t>(kQuantizedGemmBytes);
}

}  // namespace

GroupedGemmRunner::GroupedGemmRunner(QuantizedGemm& quantized, bool invariant)
    : quantized_(quantized), runs_sm90a_(cuda::runs_sm90a()), invariant_(invariant) {}

// Invariant GEMMs with too many groups for a tensor-core kernel are computed by it in parts: the
// number of groups depends on the number of ranks. Quantized weights have one kernel for every M,
// which never quantizes x.
GroupedKernel GroupedGemmRunner::kernel_of(const GroupedGemm& grouped) const {
  if (in_parts(grouped)) return kernel_of(some_groups(grouped, 0, kMaxGroups));
  const bool is_quantized = kernels::is_quantized(grouped.weight.format);
  if (invariant_ && is_quantized) {
    return fits_tensor_cores(grouped) ? GroupedKernel::quantized : GroupedKernel::dequantize;
  }
  if (runs_sm90a_ && grouped.m() > kMaxFewFp8Rows * grouped.groups() && fits_fp8(grouped))
    return GroupedKernel::fp8;
  const std::int64_t small = max_small_m(grouped.weight.format) * grouped.groups();
  if (runs_sm90a_ && !invariant_ && grouped.m() <= small && fits_tensor_cores(grouped) &&
      has_room_small_m(grouped)) {
    return GroupedKernel::small_m;
  }
  if (is_quantized) {
    const bool few = grouped.m() <= kMaxQuantizedRows * grouped.groups() || !has_room(grouped);
    return few && fits_tensor_cores(grouped) ? GroupedKernel::quantized : GroupedKernel::dequantize;
  }
  if (!fits_tensor_cores(grouped)) return GroupedKernel::dot;
  const std::int64_t few = runs_sm90a_ ? kMaxFewRowsOnHopper : kMaxFewRows;
  if (!invariant_ && grouped.m() <= few * grouped.groups()) return GroupedKernel::few_rows;
  return runs_sm90a_ ? GroupedKernel::wgmma : GroupedKernel::tiles;
}

bool GroupedGemmRunner::in_parts(const GroupedGemm& grouped) const {
  return invariant_ && grouped.groups() > kMaxGroups;
}

GroupedFusion GroupedGemmRunner::fused_in(const GroupedGemm& grouped) {
  GroupedKernel kernel = kernel_of(grouped);
  if (kernel == GroupedKernel::dequantize) kernel = kernel_of(as_floats(grouped));
  const bool clamps = grouped.activation == Activation::clamped_swiglu;
  const bool fused =
      grouped.activation == Activation::silu || (clamps && kernel == GroupedKernel::small_m);
  return {.gather = true, .epilogue = fused && kernel != GroupedKernel::dot};
}

GroupedGemm GroupedGemmRunner::as_floats(const GroupedGemm& grouped) {
  const GemmWeight& weight = grouped.weight;
  const std::int64_t outputs = grouped.outputs(), inputs = weight.inputs();
  if (!has_room(grouped)) {
    fail("gemm: weight is ", name_of(weight.format), ", and one of its ", grouped.groups(),
         " groups, [", outputs, ", ", inputs, "], has no room in the workspace as ",
         name_of(weight.type()), "; pass --quantization none");
  }
  const std::int64_t bytes = outputs * inputs * static_cast<std::int64_t>(size_of(weight.type()));
  const std::int64_t room = kQuantizedGemmBytes / std::max<std::int64_t>(bytes, 1);
  const std::int64_t groups = std::min(grouped.groups(), room);
  GroupedGemm some = grouped;
  some.weight = {.values = quantized_.floats(weight.type(), groups * outputs, inputs)};
  some.start.shape[0] = groups + 1;
  if (weight.bias.data != nullptr) some.weight.bias = weight.bias.rows(0, groups * outputs);
  return some;
}

void GroupedGemmRunner::enqueue_dequantized(const GroupedGemm& grouped, Stream& stream) {
  GroupedGemm some = as_floats(grouped);
  const std::int64_t outputs = grouped.outputs(), all = grouped.groups(), at_once = some.groups();
  const GroupedKernel kernel = kernel_of(some);
  for (std::int64_t first = 0; first < all; first += at_once) {
    const std::int64_t groups = std::min(at_once, all - first);
    some.start = grouped.start.rows(first, groups + 1);
    some.weight.values.shape[0] = groups * outputs;
    if (some.weight.bias.data != nullptr) {
      some.weight.bias = grouped.weight.bias.rows(first * outputs, groups * outputs);
    }
    dequantize(grouped.weight, first * outputs, some.weight.values, stream);
    enqueue(kernel, some, stream);
  }
}

void GroupedGemmRunner::enqueue_fp8(const GroupedGemm& grouped, Stream& stream) {
  const std::int64_t m = grouped.m();
  quantized_.reserve();
  if (grouped.source_rows.data != nullptr) {
    const Fp8Rows rows = quantized_.quantized_rows(grouped.x, grouped.x.shape[0], stream);
    return grouped_fp8(grouped, rows, 0, m, {}, stream);
  }
  const std::int64_t room = QuantizedGemm::max_fp8_rows(grouped.weight.inputs());
  const std::int64_t parts = (m + room - 1) / room, at_once = (m + parts - 1) / parts;
  for (std::int64_t first = 0; first < m; first += at_once) {
    const std::int64_t count = std::min(at_once, m - first);
    const Fp8Rows rows = quantized_.quantized_rows(grouped.x.rows(first, count), count, stream);
    grouped_fp8(grouped, rows, first, count, {}, stream);
  }
}

bool GroupedGemmRunner::enqueue_mlp(const GroupedGemm& gate_up, const GroupedGemm& down,
                                    Stream& stream) {
  const std::int64_t m = gate_up.m(), x_rows = gate_up.x.shape[0];
  if (kernel_of(gate_up) == GroupedKernel::small_m && kernel_of(down) == GroupedKernel::small_m &&
      fused_in(gate_up).epilogue) {
    grouped_small_m(gate_up, /*start_is_visible=*/false, stream);
    grouped_small_m(down, /*start_is_visible=*/true, stream);
    return true;
  }
  if (kernel_of(gate_up) != GroupedKernel::fp8 || kernel_of(down) != GroupedKernel::fp8 ||
      !fused_in(gate_up).epilogue || x_rows > QuantizedGemm::max_fp8_rows(gate_up.x.shape[1])) {
    return false;
  }
  // The intermediate result fits where it would be as 16-bit floats: half for values, and scales.
  const TensorView& between = gate_up.out;
  auto* const values = between.as<std::byte>();
  const Fp8Rows handed{values, reinterpret_cast<float*>(values + between.elements()), m};
  quantized_.reserve();
  grouped_fp8(gate_up, quantized_.quantized_rows(gate_up.x, x_rows, stream), 0, m, handed, stream);
  grouped_fp8(down, handed, 0, m, {}, stream);
  return true;
}

void GroupedGemmRunner::enqueue(const GroupedGemm& grouped, Stream& stream) {
  const GroupedKernel kernel = kernel_of(grouped);
  if (in_parts(grouped) && kernel != GroupedKernel::dot) {
    for (std::int64_t first = 0; first < grouped.groups(); first += kMaxGroups) {
      const std::int64_t count = std::min(kMaxGroups, grouped.groups() - first);
      enqueue(kernel, some_groups(grouped, first, count), stream);
    }
    return;
  }
  if (kernel == GroupedKernel::fp8) return enqueue_fp8(grouped, stream);
  if (kernel == GroupedKernel::dequantize) return enqueue_dequantized(grouped, stream);
  enqueue(kernel, grouped, stream);
}

void GroupedGemmRunner::enqueue(GroupedKernel kernel, const GroupedGemm& grouped, Stream& stream) {
  switch (kernel) {
    case GroupedKernel::dot: return grouped_dot(grouped, stream);
    case GroupedKernel::few_rows: return grouped_gemv(grouped, stream);
    case GroupedKernel::tiles: return grouped_tiles(grouped, stream);
    case GroupedKernel::wgmma: return grouped_wgmma(grouped, stream);
    case GroupedKernel::quantized: return grouped_quantized(grouped, stream);
    case GroupedKernel::small_m:
      return grouped_small_m(grouped, /*start_is_visible=*/false, stream);
    case GroupedKernel::fp8:
    case GroupedKernel::dequantize: break;
  }
}

}  // namespace nvllm::kernels::cuda
