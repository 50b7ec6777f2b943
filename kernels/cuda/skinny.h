// Skinny: products of some rows of 16-bit floats, too many for Matvec and too few for cuBLASLt's tiles.
#pragma once

#include "kernels/linear.h"

namespace nvllm::kernels::cuda {

inline constexpr int kSkinnyMaxRows = 64;

// Used by any thread.
class Skinny {
 public:
  Skinny();

  // Whether enqueue() can do a product of checked arguments, with nothing before it, and is the fastest.
  bool takes(const Linear& args) const;

  void enqueue(const Linear& args, Stream& stream) const;

 private:
  int multiprocessors_;
  bool clusters_;  // the GPU has them, and kernels may begin before the one before them has ended
};

}  // namespace nvllm::kernels::cuda
