// Head: products of some rows with a vocabulary's weights on Hopper, and tokens drawn from them
// (kernels/gemm/sm90/head.cuh).
#pragma once

#include "kernels/gemm/linear.h"
#include "kernels/sampling/sample_tokens.h"

namespace nvllm::kernels::cuda {

// Used by any thread.
class Head {
 public:
  Head();

  // Whether this is the fastest way for a product of checked arguments that is not empty, with nothing before it.
  bool takes(const Linear& args) const;

  void enqueue(const Linear& args, Stream& stream) const;

  // Whether tokens can be drawn instead, from the logits as they are.
  static bool draws(const SampleTokens& draw);
  void enqueue(const Linear& args, const SampleTokens& draw, Stream& stream) const;

 private:
  const int multiprocessors_;
  const bool is_hopper_;
};

}  // namespace nvllm::kernels::cuda
