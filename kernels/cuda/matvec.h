// Matvec: products of a few rows of 16-bit floats, bound by the reading of the matrix.
#pragma once

#include "kernels/linear.h"

namespace nvllm::kernels::cuda {

inline constexpr int kMatvecMaxRows = 16;
inline constexpr int kMatvecMaxNormRows = 4;  // with RMSNorm in the same kernel

class Matvec {
 public:
  Matvec();

  // Whether enqueue() can do a product of checked arguments: 1 to kMatvecMaxRows rows, whose rows of
  // x and weight are whole vectors of 16 bytes; with nothing before it, or RMSNorm of few rows that
  // fit into shared memory.
  bool takes(const Linear& args) const;

  void enqueue(const Linear& args, Stream& stream) const;

 private:
  template <typename T>
  void enqueue_as(const Linear& args, Stream& stream) const;

  int multiprocessors_ = 0;
  int shared_bytes_ = 0;  // that a block may have
  bool hopper_ = false;   // or later: kernels may begin before the one before them has ended
};

}  // namespace nvllm::kernels::cuda
