// For the backends' products: what comes before one, and after it, as operations of their own.
#pragma once

#include "kernels/gemm/linear.h"
#include "kernels/pointwise/activation.h"
#include "kernels/pointwise/rmsnorm.h"

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

// What is left to do when what comes before has gone to scratch.
inline Linear rest_after(const Linear& args) {
  if (args.before == Linear::Before::nothing) return args;
  Linear rest = args;
  rest.before = Linear::Before::nothing;
  rest.x = prepared_x(args);
  rest.begun = {};
  return rest;
}

inline bool begins_norm(const Linear& args) {
  return args.begins.squares.data != nullptr;
}
inline bool norm_is_begun(const Linear& args) {
  return args.begun.squares.data != nullptr;
}

// What is left to do of a product of rows whose norm is begun.
inline Linear rest_of_norm(const Linear& args) {
  Linear rest = args;
  rest.before = Linear::Before::nothing;
  rest.x = args.begun.weighted;
  return rest;
}

// Where a product goes that something happens to afterwards: the first rows of `product`.
inline TensorView product_before(const Linear& args) {
  return TensorView(args.product.data, args.out.dtype, {args.out.shape[0], args.weight.shape[0]});
}

inline GatedActivation activation_after(const Linear& args) {
  GatedActivation gate;
  gate.out = args.out;
  gate.x = product_before(args);
  gate.activation = args.activation;
  return gate;
}

// The product alone.
inline Linear product_after(const Linear& args) {
  Linear product = rest_after(args);
  if (args.after == Linear::After::nothing) return product;
  product.after = Linear::After::nothing;
  product.out = product_before(args);
  return product;
}

// Enqueues what comes before; rest_after(args) is left to do.
inline void enqueue_before(const Linear& args, Stream& stream) {
  if (args.before == Linear::Before::rms_norm) rms_norm(norm_before(args), stream);
  if (args.before == Linear::Before::gated_activation) {
    gated_activation(activation_before(args), stream);
  }
}

// Enqueues what comes after product_after(args).
inline void enqueue_after(const Linear& args, Stream& stream) {
  if (args.after == Linear::After::gated_activation) {
    gated_activation(activation_after(args), stream);
  }
}

}  // namespace nvllm::kernels
