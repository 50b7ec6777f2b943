// Matvec: products of a few rows of 16-bit floats, bound by the reading of the matrix.
#pragma once

#include "kernels/gemm/linear.h"

namespace nvllm::kernels::cuda {

inline constexpr int kMatvecMaxRows = 16;

// Used by any thread.
class Matvec {
 public:
  Matvec();

  // Whether enqueue() can do a product of checked arguments that is not empty: at most
  // kMatvecMaxRows rows, those of x and weight whole vectors of 16 bytes; with nothing or SiLU after it, and with
  // nothing before it, or with RMSNorm where that is faster here than as a kernel of its own.
  bool takes(const Linear& args) const;

  void enqueue(const Linear& args, Stream& stream) const;

  // Whether the blocks of such a product, with nothing before it, ask for all of their weights at once.
  bool asks_for_all(const Linear& args) const;

 private:
  bool takes_norm(const Linear& args) const;
  bool norm_in_registers(const Linear& args) const;
  template <typename T>
  void enqueue_as(const Linear& args, Stream& stream) const;

  int multiprocessors_;
  bool early_;  // kernels may begin before the one before them in the stream has ended
};

}  // namespace nvllm::kernels::cuda
