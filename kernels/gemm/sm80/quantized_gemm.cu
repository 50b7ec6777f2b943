#include <algorithm>

#include "base/check.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cublaslt/cublaslt_gemm.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm80/entry_points.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes, and granularity of outputs processed at once

// With fewer rows reading the weight dominates, and a kernel that does not quantize x has less to
// do.
constexpr std::int64_t kMinFp8Rows = 129;

std::int64_t rounded(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A view of `count` columns of a matrix.
TensorView columns_of(TensorView matrix, std::int64_t first, std::int64_t count) {
  matrix.data = matrix.as<std::byte>() + first * static_cast<std::int64_t>(size_of(matrix.dtype));
  matrix.shape[1] = count;
  return matrix;
}

// The same GEMM without prologue and epilogue, and with other operands.
GemmCall plain_part(const GemmCall& call, const TensorView& out, const TensorView& x,
                    const TensorView& residual) {
  GemmCall part;
  part.plan.shape = call.plan.shape;
  part.weight = call.weight;
  part.operands = {.out = out, .x = x, .residual = residual};
  return part;
}

// Quantizes rows [first, first + count) of the input of a call's kernel to fp8, its prologue
// included.
void make_rows(const GemmCall& call, std::int64_t first, std::int64_t count, const Fp8Rows& out,
               Stream& stream, bool trigger_early) {
  if (!QuantizedGemm::makes_rows(call)) {
    return quantize_rows(x_of(call).rows(first, count), out, stream, trigger_early);
  }
  if (call.plan.prologue == Prologue::rms_norm) {
    RmsNorm norm = norm_of(call);
    norm.x = norm.x.rows(first, count);
    return quantize_normed_rows(norm, out, stream, trigger_early);
  }
  GatedActivation activation = prologue_activation(call);
  activation.x = activation.x.rows(first, count);
  quantize_activated_rows(activation, out, stream, trigger_early);
}

}  // namespace

QuantizedGemm::QuantizedGemm(Backend& backend, CublasltGemm& cublaslt, bool at_once)
    : backend_(backend), cublaslt_(cublaslt), runs_sm90a_(cuda::runs_sm90a()) {
  if (at_once) reserve();
}

void QuantizedGemm::reserve() {
  if (memory_.data() != nullptr) return;
  memory_ = backend_.allocate(MemoryKind::device, kQuantizedGemmBytes, "quantized GEMM workspace");
}

TensorView QuantizedGemm::floats(DType type, std::int64_t outputs, std::int64_t inputs) {
  reserve();
  return {memory_.data(), type, {outputs, inputs}};
}

GemmKernel QuantizedGemm::kernel_of(const GemmShape& shape) {
  reserve();
  const bool takes = runs_sm90a_ && may_quantize_rows(shape) && shape.type != DType::f32 &&
                     shape.m >= kMinFp8Rows && shape.outputs % 16 == 0;
  return takes ? GemmKernel::fp8 : GemmKernel::dequantize;
}

std::int64_t QuantizedGemm::max_fp8_rows(std::int64_t inputs) {
  const auto memory = static_cast<std::int64_t>(kQuantizedGemmBytes) - kAlignment;
  return memory / (inputs + inputs / kFp8Group * 4);
}

Fp8Rows QuantizedGemm::place_of_rows(std::int64_t rows, std::int64_t inputs,
                                     std::int64_t scale_stride) const {
  const std::int64_t values = rounded(rows * inputs);
  const std::int64_t scales = inputs / kFp8Group * scale_stride * 4;
  NVLLM_CHECK(values + scales <= static_cast<std::int64_t>(kQuantizedGemmBytes), rows, " rows of ",
              inputs, " inputs have no room in the workspace");
  auto* const memory = static_cast<std::byte*>(memory_.data());
  return {memory, reinterpret_cast<float*>(memory + values), scale_stride};
}

Fp8Rows QuantizedGemm::quantized_rows(const TensorView& x, std::int64_t scale_stride,
                                      Stream& stream) {
  const Fp8Rows rows = place_of_rows(x.shape[0], x.shape[1], scale_stride);
  quantize_rows(x, rows, stream, true);
  return rows;
}

bool QuantizedGemm::makes_rows(const GemmCall& call) {
  if (!call.plan.prologue_kernel) return false;
  return call.plan.prologue == Prologue::rms_norm ? makes_fp8_rows(norm_of(call))
                                                  : makes_fp8_rows(prologue_activation(call));
}

Fp8Rows QuantizedGemm::rows_of(const GemmCall& call, std::int64_t scale_stride, Stream& stream) {
  const std::int64_t count = x_of(call).shape[0];
  const Fp8Rows rows = place_of_rows(count, call.weight.inputs(), scale_stride);
  make_rows(call, 0, count, rows, stream, true);
  return rows;
}

void QuantizedGemm::enqueue(const GemmCall& call, Stream& stream) {
  const bool fp8 = call.plan.kernel == GemmKernel::fp8;
  if (fp8 && enqueue_fp8(call, stream)) return;
  if (fp8 && makes_rows(call)) enqueue_prologue(call, stream);
  enqueue_dequantized(call, stream);
}

void QuantizedGemm::enqueue_dequantized(const GemmCall& call, Stream& stream) {
  for_dequantized_parts(call, stream, [&](const GemmCall& part) {
    if (!cublaslt_.enqueue(part, stream)) dot(part, stream);
  });
}

void QuantizedGemm::for_dequantized_parts(const GemmCall& call, Stream& stream,
                                          const std::function<void(const GemmCall&)>& run) {
  const TensorView out = out_of(call), x = x_of(call), &residual = call.operands.residual;
  const std::int64_t inputs = call.weight.inputs(), outputs = call.weight.outputs();
  const auto output_bytes = inputs * static_cast<std::int64_t>(size_of(x.dtype));
  std::int64_t at_once =
      static_cast<std::int64_t>(kQuantizedGemmBytes) / std::max<std::int64_t>(output_bytes, 1);
  at_once = std::max<std::int64_t>(at_once / kAlignment * kAlignment, 1);
  for (std::int64_t first = 0; first < outputs; first += at_once) {
    const std::int64_t count = std::min(at_once, outputs - first);
    const TensorView floats(memory_.data(), x.dtype, {count, inputs});
    dequantize(call.weight, first, floats, stream);
    GemmCall part = plain_part(call, columns_of(out, first, count), x, {});
    if (residual.data != nullptr) part.operands.residual = columns_of(residual, first, count);
    part.weight = {.values = floats};
    if (call.weight.bias.data != nullptr) part.weight.bias = call.weight.bias.rows(first, count);
    part.weight.unaligned_shards = call.weight.unaligned_shards;
    run(part);
  }
}

bool QuantizedGemm::enqueue_fp8(const GemmCall& call, Stream& stream) {
  const TensorView out = out_of(call), x = x_of(call), &residual = call.operands.residual;
  const std::int64_t rows = x.shape[0], inputs = x.shape[1], groups = inputs / kFp8Group;
  const std::int64_t scale_bytes = rounded((groups + 3) * call.weight.outputs() * 4);
  const auto memory = static_cast<std::int64_t>(kQuantizedGemmBytes) - scale_bytes - kAlignment;
  // Equal parts of at most as many rows as fit into memory.
  const std::int64_t max_rows = memory / (inputs + groups * 4);
  if (max_rows < kMinFp8Rows) return false;
  const std::int64_t parts = (rows + max_rows - 1) / max_rows;
  const std::int64_t at_once = ((rows + parts - 1) / parts + 15) / 16 * 16;

  auto* const weight_scales = static_cast<float*>(memory_.data());
  std::byte* const values = static_cast<std::byte*>(memory_.data()) + scale_bytes;
  const bool blocks = call.weight.quantized.blocks;
  if (blocks) {
    gather_block_scales(call.weight.quantized.scales, weight_scales, stream);
  } else {
    transpose_scales(call.weight.quantized.scales, weight_scales, stream);
  }
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t count = std::min(at_once, rows - first);
    const Fp8Rows some{values, reinterpret_cast<float*>(values + rounded(count * inputs)), count};
    const TensorView some_x = x.rows(first, count);
    GemmCall part = plain_part(call, out.rows(first, count), some_x, {});
    if (residual.data != nullptr) part.operands.residual = residual.rows(first, count);
    make_rows(call, first, count, some, stream, false);
    const ScaledOperands scaled{some.values, some.scales, weight_scales, blocks};
    if (!cublaslt_.enqueue_fp8(part, scaled, stream)) {
      // If the first part fails, nothing has been enqueued; later parts are not larger.
      if (first == 0) return false;
      if (makes_rows(call)) enqueue_prologue(call, stream);
      enqueue_dequantized(part, stream);
    }
  }
  return true;
}

}  // namespace nvllm::kernels::cuda
