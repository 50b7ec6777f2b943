#include "layers/layer_plan.h"

namespace nvllm::layers {

using kernels::Epilogue;
using kernels::GemmShape;
using kernels::GemmWeight;
using kernels::Prologue;

// The GEMMs are planned in the order in which they decide: whether the activation is fused into
// gate-up, then for each pair of GEMMs with a norm between them whether the first can begin it and
// the second end it.
LayerPlan plan_layer(kernels::Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
  // Otherwise others make the norms and add the residual.
  const bool alone = request.ranks == 1 && !request.unfused_norms;
  const Prologue norm = alone ? Prologue::rms_norm : Prologue::none;
  const auto normed = [&](const GemmWeight& weight, const TensorView& norm_weight, std::int64_t m,
                          Epilogue epilogue) {
    GemmShape shape = kernels::dense_shape_of(weight, m, {norm, epilogue, layer.activation});
    shape.vectors.norm_weight = kernels::whole_vectors(norm_weight);
    return shape;
  };
  const auto added = [&](const GemmWeight& weight, std::int64_t m, Prologue prologue) {
    GemmShape shape =
        kernels::dense_shape_of(weight, m, {prologue, Epilogue::none, layer.activation});
    shape.residual = alone;
    return shape;
  };
  // Plans `first` so that it defers the norm that `second` reads, if both can.
  const auto defer = [&](GemmShape first, const TensorView& norm_weight, GemmShape second) {
    if (!alone || !request.may_defer || first.m != second.m) return false;
    first.defer_next = second.deferred = true;
    first.vectors.next = first.vectors.next && kernels::whole_vectors(norm_weight);
    return gemm.plan(first).defers_next &&
           gemm.plan(second).prologue == Prologue::deferred_rms_norm;
  };

  GemmShape qkv = normed(layer.qkv, layer.attention_norm, request.m, Epilogue::none);
  GemmShape output = added(layer.output, request.m, Prologue::none);
  qkv.deferred = request.deferred;
  if (!layer.mlp) return {gemm.plan(qkv), gemm.plan(output), {}, {}};

  GemmShape gate_up =
      normed(layer.gate_up, layer.mlp_norm, request.mlp_m, Epilogue::gated_activation);
  const bool fused = !gemm.plan(gate_up).epilogue_kernel;
  if (!fused) gate_up = normed(layer.gate_up, layer.mlp_norm, request.mlp_m, Epilogue::none);
  GemmShape down =
      added(layer.down, request.mlp_m, fused ? Prologue::none : Prologue::gated_activation);

  if (defer(output, layer.mlp_norm, gate_up)) {
    output.defer_next = gate_up.deferred = true;
    output.vectors.next = output.vectors.next && kernels::whole_vectors(layer.mlp_norm);
  }
  if (request.next != nullptr) {
    const LayerGemms& next = *request.next;
    if (defer(down, next.attention_norm,
              normed(next.qkv, next.attention_norm, request.mlp_m, Epilogue::none))) {
      down.defer_next = true;
      down.vectors.next = down.vectors.next && kernels::whole_vectors(next.attention_norm);
    }
  }
  return {gemm.plan(qkv), gemm.plan(output), gemm.plan(gate_up), gemm.plan(down)};
}

}  // namespace nvllm::layers
