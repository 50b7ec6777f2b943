// For the backends' products: what comes before one as an operation of its own.
#pragma once

#include "kernels/gated_activation.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"

namespace nvllm::kernels {

// The first rows of `scratch`: where x goes that something happens to first.
inline TensorView prepared_x(const Linear& args) {
  return TensorView(args.scratch.data, args.x.dtype, {args.out.shape[0], args.weight.shape[1]});
}

inline RmsNorm norm_before(const Linear& args) {
  RmsNorm norm;
  norm.out = prepared_x(args);
  norm.x = args.x;
  norm.weight = args.norm_weight;
  norm.epsilon = args.epsilon;
  return norm;
}

inline GatedActivation activation_before(const Linear& args) {
  GatedActivation gate;
  gate.out = prepared_x(args);
  gate.x = args.x;
  gate.activation = args.activation;
  return gate;
}

// The product that is left when what comes before has gone to scratch.
inline Linear product_after(const Linear& args) {
  if (args.before == Linear::Before::nothing) return args;
  Linear rest = args;
  rest.before = Linear::Before::nothing;
  rest.x = prepared_x(args);
  return rest;
}

// Enqueues what comes before; product_after(args) is left to do.
inline void enqueue_before(const Linear& args, Stream& stream) {
  if (args.before == Linear::Before::rms_norm) rms_norm(norm_before(args), stream);
  if (args.before == Linear::Before::gated_activation) {
    gated_activation(activation_before(args), stream);
  }
}

}  // namespace nvllm::kernels
