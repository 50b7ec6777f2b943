// For the kernels of GEMMs: which tensors the GEMM itself reads and writes, and its prologue and
// epilogue as kernels of their own.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/activation.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels {

// Where the prologue's own kernel leaves x: the first rows of `prepared`.
inline TensorView prepared_x(const GemmCall& call) {
  return TensorView(call.operands.prologue.prepared.data, call.operands.x.dtype,
                    {call.operands.x.shape[0], call.weight.inputs()});
}

// What the GEMM itself multiplies.
inline TensorView x_of(const GemmCall& call) {
  if (call.plan.prologue_kernel) return prepared_x(call);
  if (call.plan.prologue == Prologue::deferred_rms_norm) {
    return call.operands.prologue.deferred.weighted;
  }
  return call.operands.x;
}

// Where the GEMM itself stores: before the epilogue's own kernel the first rows of `gate_up`.
inline TensorView out_of(const GemmCall& call) {
  if (!call.plan.epilogue_kernel) return call.operands.out;
  return TensorView(call.operands.epilogue.gate_up.data, call.operands.out.dtype,
                    {call.operands.out.shape[0], call.weight.outputs()});
}

// Whether the GEMM's own epilogue is a gated activation.
inline bool is_gated(const GemmCall& call) {
  return call.plan.epilogue == Epilogue::gated_activation && !call.plan.epilogue_kernel;
}

inline RmsNorm norm_of(const GemmCall& call) {
  RmsNorm norm;
  norm.out = prepared_x(call);
  norm.x = call.operands.x;
  norm.weight = call.operands.prologue.norm_weight;
  norm.epsilon = call.operands.prologue.epsilon;
  return norm;
}

// The activation ahead of a GEMM, or behind one.
inline GatedActivation activation_before(const GemmCall& call) {
  GatedActivation gate;
  gate.out = prepared_x(call);
  gate.x = call.operands.x;
  gate.activation = call.plan.shape.fusion.activation;
  return gate;
}
inline GatedActivation activation_after(const GemmCall& call) {
  GatedActivation gate;
  gate.out = call.operands.out;
  gate.x = TensorView(call.operands.epilogue.gate_up.data, call.operands.out.dtype,
                      {call.operands.out.shape[0], call.weight.outputs()});
  gate.activation = call.plan.shape.fusion.activation;
  return gate;
}

inline void enqueue_prologue(const GemmCall& call, Stream& stream) {
  if (!call.plan.prologue_kernel) return;
  if (call.plan.prologue == Prologue::rms_norm) rms_norm(norm_of(call), stream);
  if (call.plan.prologue == Prologue::gated_activation) {
    gated_activation(activation_before(call), stream);
  }
}

inline void enqueue_epilogue(const GemmCall& call, Stream& stream) {
  if (call.plan.epilogue_kernel) gated_activation(activation_after(call), stream);
}

}  // namespace nvllm::kernels
