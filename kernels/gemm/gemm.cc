#include "kernels/gemm/gemm.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/gemm/backends.h"
#include "kernels/pointwise/step_input.h"

namespace nvllm::kernels {
namespace {

void set_weight(GemmShape& shape, const GemmWeight& weight) {
  shape.outputs = weight.outputs();
  shape.inputs = weight.inputs();
  shape.format = weight.format;
  shape.type = weight.type();
  shape.unaligned_shards = weight.unaligned_shards;
  if (!is_quantized(weight.format)) return;
  shape.group = weight.quantized.group;
  shape.weight_only = weight.quantized.weight_only;
}

// Whether the operands keep what the plan counts on.
bool keeps(const GemmShape& actual, const GemmShape& planned) {
  const GemmShape::Vectors &there = actual.vectors, &wanted = planned.vectors;
  return std::min(actual.m, kManyRows) == std::min(planned.m, kManyRows) &&
         actual.outputs == planned.outputs && actual.inputs == planned.inputs &&
         actual.format == planned.format && actual.group == planned.group &&
         actual.weight_only == planned.weight_only && actual.out_type == planned.out_type &&
         actual.bias == planned.bias && actual.residual == planned.residual &&
         there.weight >= wanted.weight && there.bias >= wanted.bias && there.x >= wanted.x &&
         there.prepared >= wanted.prepared && there.deferred >= wanted.deferred &&
         there.norm_weight >= wanted.norm_weight && there.out >= wanted.out &&
         there.residual >= wanted.residual && there.gate_up >= wanted.gate_up &&
         there.next >= wanted.next;
}

}  // namespace

WeightFormat format_of(DType type) {
  switch (type) {
    case DType::f32: return WeightFormat::f32;
    case DType::bf16: return WeightFormat::bf16;
    case DType::f16: return WeightFormat::f16;
    default: fail("gemm: weight is ", name_of(type), "; it must be float32, bfloat16 or float16");
  }
}

bool whole_vectors(const TensorView& tensor) {
  if (tensor.data == nullptr || tensor.rank == 0) return true;
  const bool rows_aligned = tensor.rank == 1 || tensor.shape[0] <= 1 || tensor.stride[0] % 8 == 0;
  return tensor.aligned(16) && tensor.shape[tensor.rank - 1] % 8 == 0 && rows_aligned;
}

GemmShape shape_of(const GemmWeight& weight, const GemmOperands& operands,
                   const GemmFusion& fusion) {
  GemmShape shape;
  shape.m = operands.x.rank == 2 ? operands.x.shape[0] : 0;
  set_weight(shape, weight);
  shape.out_type = operands.out.dtype;
  shape.bias = weight.bias.data != nullptr;
  shape.residual = operands.residual.data != nullptr;
  shape.deferred = operands.prologue.deferred.exists();
  shape.defer_next = operands.epilogue.deferred.exists();
  shape.fusion = fusion;
  GemmShape::Vectors& vectors = shape.vectors;
  vectors.weight = whole_vectors(weight.values);
  vectors.bias = whole_vectors(weight.bias);
  vectors.x = whole_vectors(operands.x);
  vectors.prepared = whole_vectors(operands.prologue.prepared);
  vectors.deferred = whole_vectors(operands.prologue.deferred.weighted);
  vectors.norm_weight = whole_vectors(operands.prologue.norm_weight);
  vectors.out = whole_vectors(operands.out);
  vectors.residual = whole_vectors(operands.residual);
  vectors.gate_up = whole_vectors(operands.epilogue.gate_up);
  vectors.next = whole_vectors(operands.epilogue.deferred.weighted) &&
                 whole_vectors(operands.epilogue.norm_weight);
  return shape;
}

GemmShape dense_shape_of(const GemmWeight& weight, std::int64_t m, const GemmFusion& fusion) {
  GemmShape shape;
  shape.m = m;
  set_weight(shape, weight);
  shape.out_type = shape.type;
  shape.bias = weight.bias.data != nullptr;
  shape.fusion = fusion;
  GemmShape::Vectors& vectors = shape.vectors;
  vectors.weight = whole_vectors(weight.values);
  vectors.bias = whole_vectors(weight.bias);
  vectors.x = vectors.prepared = vectors.deferred = shape.inputs % 8 == 0;
  vectors.out = vectors.residual = vectors.next = shape.outputs % 8 == 0;
  vectors.gate_up = vectors.out;
  if (fusion.epilogue == Epilogue::gated_activation) vectors.out = shape.outputs % 16 == 0;
  return shape;
}

const GemmPlan& Gemm::plan(const GemmShape& shape) {
  GemmShape key = shape;
  key.m = std::min(key.m, kManyRows);
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    const bool empty = key.m == 0 || key.outputs == 0;
    GemmPlan made = empty ? GemmPlan{} : make_plan(key);
    made.shape = key;
    found = plans_.emplace(key, made).first;
  }
  return found->second;
}

GemmCall Gemm::call(const GemmWeight& weight, const GemmOperands& operands,
                    const GemmFusion& fusion) {
  return {plan(shape_of(weight, operands, fusion)), weight, operands};
}

void Gemm::check(const GemmCall& call) {
  check_gemm(call);
  const GemmOperands& operands = call.operands;
  NVLLM_CHECK(keeps(shape_of(call.weight, operands), call.plan.shape),
              "the GEMM was planned for other operands");
  NVLLM_CHECK(
      call.plan.prologue != Prologue::deferred_rms_norm || operands.prologue.deferred.exists(),
      "the plan counts on a deferred norm");
  NVLLM_CHECK(!call.plan.defers_next || operands.epilogue.deferred.exists(),
              "the plan has nowhere to defer the next norm to");
}

void Gemm::run(const GemmCall& call, Stream& stream) {
  check(call);
  if (call.plan.kernel == GemmKernel::none) return;
  if (recording_) {
    const GemmShape& shape = call.plan.shape;
    recorded_[{call.operands.x.shape[0], shape.outputs, shape.inputs, shape.format, shape.group,
               shape.weight_only, shape.fusion.prologue, shape.fusion.epilogue, shape.residual}]
        .push_back(call);
  }
  enqueue(call, stream);
}

void Gemm::run_and_sample(const GemmCall& call, const SampleTokens& sample, Stream& stream) {
  check(call);
  check_sample_tokens(sample);
  NVLLM_CHECK(call.plan.samples && samples_in_epilogue(sample), "the plan's kernel, number ",
              static_cast<int>(call.plan.kernel), ", cannot sample so: thresholds are ",
              sample.thresholds.describe(), ", changed logits ",
              sample.rows.changed_logits.describe());
  NVLLM_CHECK(sample.rows.logits.data == call.operands.out.data, "the GEMM makes logits at ",
              call.operands.out.data, ", and those to sample lie at ", sample.rows.logits.data);
  enqueue_sampling(call, sample, stream);
}

void Gemm::enqueue_sampling(const GemmCall& /*call*/, const SampleTokens& /*sample*/,
                            Stream& /*stream*/) {
  NVLLM_CHECK(false, "no GEMM samples here");
}

void Gemm::run_grouped(const GroupedGemm& grouped, Stream& stream) {
  check_grouped_gemm(grouped);
  if (grouped.out.elements() == 0) return;
  const GroupedFusion fused = fused_in(grouped);
  GroupedGemm own = grouped;
  if (grouped.source_rows.data != nullptr && !fused.gather) {
    own.source_rows = {};
    own.x = grouped.gathered.rows(0, grouped.m());
    embedding({.out = own.x, .ids = grouped.source_rows, .table = grouped.x}, stream);
  }
  const bool activates = grouped.epilogue != Epilogue::none && !fused.epilogue;
  if (activates) {
    own.epilogue = Epilogue::none;
    own.out = grouped.gate_up.rows(0, grouped.m());
  }
  enqueue_grouped(own, stream);
  if (activates) {
    gated_activation({.out = grouped.out,
                      .x = own.out,
                      .activation = grouped.activation,
                      .limit = grouped.limit},
                     stream);
  }
}

void Gemm::run_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down, Stream& stream) {
  check_grouped_gemm(gate_up);
  check_grouped_gemm(down);
  NVLLM_CHECK(down.x.data == gate_up.out.data && down.m() == gate_up.m(),
              "a grouped MLP whose down GEMM does not read what gate_up makes");
  if (down.out.elements() > 0 && enqueue_grouped_mlp(gate_up, down, stream)) return;
  run_grouped(gate_up, stream);
  run_grouped(down, stream);
}

bool Gemm::enqueue_grouped_mlp(const GroupedGemm& /*gate_up*/, const GroupedGemm& /*down*/,
                               Stream& /*stream*/) {
  return false;
}

GemmWeight GemmWeight::part(std::int64_t first, std::int64_t count) const {
  GemmWeight own = *this;
  own.values = values.rows(first, count);
  if (is_quantized(format)) own.quantized.scales = quantized.scales.rows(first, count);
  return own;
}

GemmWeight SegmentedGemm::weight_of(std::int64_t segment) const {
  return weight.part(segment * outputs(), outputs());
}

GemmOperands SegmentedGemm::operands_of(std::int64_t segment) const {
  const std::int64_t inputs = weight.inputs();
  TensorView own = x;
  own.data = x.as<std::byte>() + static_cast<std::size_t>(segment * inputs) * size_of(x.dtype);
  own.shape[1] = inputs;
  return {.out = sum.sources.rows(segment * m(), m()), .x = own};
}

void Gemm::run_segmented(const SegmentedGemm& gemm, Stream& stream) {
  check_segmented_gemm(gemm);
  if (gemm.sum.out.elements() == 0) return;
  if (enqueue_segmented(gemm, stream)) return;
  for (std::int64_t n = 0; n < gemm.segments(); ++n) {
    run(call(gemm.weight_of(n), gemm.operands_of(n)), stream);
  }
  tree_sum(gemm.sum, stream);
}

bool Gemm::enqueue_segmented(const SegmentedGemm& /*gemm*/, Stream& /*stream*/) {
  return false;
}

void Gemm::record() {
  recorded_.clear();
  recording_ = true;
}

void Gemm::tune_recorded(Stream& stream) {
  recording_ = false;
  for (const auto& [key, alike] : recorded_) tune(alike, stream);
  recorded_.clear();
}

void Gemm::tune(std::span<const GemmCall> alike, Stream& stream) {
  for (const GemmCall& call : alike) check(call);
  if (alike.front().plan.kernel != GemmKernel::none) measure(alike, stream);
}

bool samples_in_epilogue(const SampleTokens& sample) {
  return sample.thresholds.data == nullptr && sample.rows.changed_logits.data == nullptr;
}

std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options) {
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) return cuda::create_gemm(backend, options);
#endif
  return cpu::create_gemm(backend, std::nullopt, options.invariant);
}

std::size_t gemm_bytes(DeviceKind device, bool quantized) {
#ifdef NVLLM_CUDA
  if (device == DeviceKind::cuda)
    return cuda::kGemmBytes + (quantized ? cuda::kQuantizedGemmBytes : 0);
#endif
  static_cast<void>(device), static_cast<void>(quantized);
  return 0;
}

}  // namespace nvllm::kernels
