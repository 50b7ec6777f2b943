// For the backends: the tensors that a GEMM's own kernel reads and writes, its separate prologue
// and epilogue kernels, and the shape that remains for the GEMM's own kernel.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels {

// The output of a separate prologue kernel: the first rows of `prepared`.
inline TensorView prepared_x(const GemmCall& call) {
  return TensorView(call.operands.prologue.prepared.data, call.operands.x.dtype,
                    {call.operands.x.shape[0], call.weight.inputs()});
}

// The input of a separate epilogue kernel: the first rows of `gate_up`.
inline TensorView gate_up_of(const GemmCall& call) {
  return TensorView(call.operands.epilogue.gate_up.data, call.operands.out.dtype,
                    {call.operands.out.shape[0], call.weight.outputs()});
}

// The input and output of the GEMM's own kernel.
inline TensorView x_of(const GemmCall& call) {
  if (call.plan.prologue_kernel) return prepared_x(call);
  const bool deferred = call.plan.prologue == Prologue::deferred_rms_norm;
  return deferred ? call.operands.prologue.deferred.weighted : call.operands.x;
}
inline TensorView out_of(const GemmCall& call) {
  return call.plan.epilogue_kernel ? gate_up_of(call) : call.operands.out;
}

// Whether the GEMM's own kernel fuses an RMSNorm prologue, or a gated activation epilogue.
inline bool is_normed(const GemmCall& call) {
  return call.plan.prologue == Prologue::rms_norm && !call.plan.prologue_kernel;
}
inline bool is_gated(const GemmCall& call) {
  return call.plan.epilogue == Epilogue::gated_activation && !call.plan.epilogue_kernel;
}

// Prologue and epilogue as separate kernels.
inline RmsNorm norm_of(const GemmCall& call) {
  RmsNorm norm;
  norm.out = prepared_x(call);
  norm.x = call.operands.x;
  norm.weight = call.operands.prologue.norm_weight;
  norm.epsilon = call.operands.prologue.epsilon;
  return norm;
}
inline GatedActivation prologue_activation(const GemmCall& call) {
  return {prepared_x(call), call.operands.x, call.plan.shape.fusion.activation};
}
inline GatedActivation epilogue_activation(const GemmCall& call) {
  return {call.operands.out, gate_up_of(call), call.plan.shape.fusion.activation};
}

// The shape for the GEMM's own kernel once the prologue has run, or without the epilogue.
inline GemmShape shape_after_prologue(GemmShape shape) {
  if (shape.fusion.prologue != Prologue::none) shape.vectors.x = shape.vectors.prepared;
  shape.fusion.prologue = Prologue::none;
  shape.deferred = false;
  return shape;
}
inline GemmShape shape_with_deferred_norm(GemmShape shape) {
  shape.vectors.x = shape.vectors.deferred;
  shape.fusion.prologue = Prologue::none;
  return shape;
}
inline GemmShape shape_before_epilogue(GemmShape shape) {
  if (shape.fusion.epilogue != Epilogue::none) shape.vectors.out = shape.vectors.gate_up;
  shape.fusion.epilogue = Epilogue::none;
  return shape;
}

}  // namespace nvllm::kernels
