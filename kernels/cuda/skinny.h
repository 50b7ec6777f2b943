// Skinny: products of some rows of 16-bit floats on Hopper (kernels/cuda/skinny_sm90.cuh).
#pragma once

#include <optional>

#include "kernels/linear.h"
#include "kernels/skinny_plan.h"

namespace nvllm::kernels::cuda {

// Used by any thread.
class Skinny {
 public:
  Skinny();

  // Whether enqueue() can do a product of checked arguments that is not empty, with nothing before it, and is
  // expected to be the fastest to do it.
  bool takes(const Linear& args) const { return plan(args).has_value(); }

  void enqueue(const Linear& args, Stream& stream) const;

 private:
  std::optional<SkinnyPlan> plan(const Linear& args) const;

  SkinnyMachine machine_;  // without places: not Hopper
};

}  // namespace nvllm::kernels::cuda
