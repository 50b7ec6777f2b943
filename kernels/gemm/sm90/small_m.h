// Skinny: products of some rows of 16-bit floats on Hopper (kernels/gemm/sm90/skinny.cuh).
#pragma once

#include <mutex>
#include <optional>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/skinny_plan.h"

namespace nvllm::kernels::cuda {

// Used by any thread.
class Skinny {
 public:
  // How to do a product of checked arguments that is not empty, with nothing before it; nothing if it cannot be
  // done, or another way is expected to be faster.
  std::optional<SkinnyPlan> plan(const Linear& args) const;

  void enqueue(const Linear& args, const SkinnyPlan& plan, Stream& stream) const;

 private:
  // Asked for when there is a product for it: the driver takes its time.
  const SkinnyMachine& machine() const;

  mutable std::once_flag asked_;
  mutable SkinnyMachine machine_;  // without places: not Hopper
};

}  // namespace nvllm::kernels::cuda
