// What the backends offer: a Gemm each, and the kernels among which the CUDA backend plans.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/small_m_plan.h"

namespace nvllm::kernels {
namespace cpu {

// GEMMs for streams of the CPU backend. Workspace for rows of x in the kernels' own format is
// allocated when a call needs more of it than any before; it never shrinks. tune() with the largest
// M allocates it ahead. Results do not depend on the number of threads.
//
// set: at most this instruction set, for tests; without it, the best one that there is.
std::unique_ptr<Gemm> create_gemm(Backend& backend,
                                  std::optional<InstructionSet> set = std::nullopt);

}  // namespace cpu

namespace cuda {

struct Fp8Rows;

// cuBLASLt's workspace: as much as NVIDIA advises for Hopper.
inline constexpr std::size_t kGemmBytes = 32 << 20;

// For quantized weights: floats of some of their outputs; or rows of x in fp8, and scales. This
// stays in an L2 cache of 50 MB for the most part.
inline constexpr std::size_t kQuantizedGemmBytes = 40 << 20;

std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options);

// The kernels. Whether one takes a GEMM is asked with the shape that its own kernel sees
// (gemm_steps.h), which is not empty; a call that it enqueues is planned for it and checked.

// Up to 16 rows of 16-bit floats, bound by the reading of the weight; with RMSNorm as its prologue
// where that is faster than a kernel of its own, and with SiLU as its epilogue.
class Gemv {
 public:
  Gemv();
  bool takes(const GemmShape& shape) const;
  // Whether the blocks of such a GEMM without prologue load all of the weight at once.
  bool loads_all_at_once(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  bool takes_norm(const GemmShape& shape) const;
  bool norm_in_registers(const GemmShape& shape) const;
  template <typename T>
  void enqueue_as(const GemmCall& call, Stream& stream) const;

  int multiprocessors_;
  bool early_;  // kernels may begin before the one before them in the stream has ended
};

// The same with sums that are one chain over K each (GemmOptions::invariant): as fast where the
// weight, not the chain, takes the time.
class InvariantGemv {
 public:
  InvariantGemv();
  bool takes(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  template <typename T>
  void enqueue_as(const GemmCall& call, Stream& stream) const;

  int multiprocessors_;
};

struct GemvDevice;

// Up to 16 rows of 16-bit floats by a quantized weight; with RMSNorm as its prologue where every
// block can repeat it, and with SiLU as its epilogue.
class QuantizedGemv {
 public:
  QuantizedGemv();
  bool takes(const GemmShape& shape) const;
  // See Gemv.
  bool loads_all_at_once(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  bool takes_norm(const GemmShape& shape) const;
  GemvDevice device() const;

  int multiprocessors_, shared_bytes_;
  bool early_;
};

// 17 to 128 rows of 16-bit floats on Hopper; with a deferred RMSNorm as its prologue, with SiLU or
// the start of the next RMSNorm as its epilogue.
class SmallM {
 public:
  // Nothing if this kernel cannot compute the GEMM, or another one is expected to be faster. What
  // shape.fusion has as prologue is done. invariant: any number of rows up to 128, and no split K.
  std::optional<SmallMTiling> plan(const GemmShape& shape, bool invariant = false);
  // Whether it can also start the next RMSNorm.
  static bool defers_norm(const GemmShape& shape);
  // Whether it multiplies x in fp8, and enqueue() is to be given that.
  static bool wants_fp8_rows(const GemmShape& shape);
  void enqueue(const GemmCall& call, const Fp8Rows& rows, Stream& stream) const;

 private:
  // Found when there is a GEMM for it: the driver takes its time.
  std::optional<SmallMOccupancy> occupancy_;
};

// 17 to 128 rows by the weights of a vocabulary on Hopper, to float32; with sampling as its
// epilogue.
class LmHead {
 public:
  LmHead();
  // invariant: fewer rows, too.
  bool takes(const GemmShape& shape, bool invariant = false) const;
  void enqueue(const GemmCall& call, Stream& stream) const;
  void enqueue_and_sample(const GemmCall& call, const SampleTokens& sample, Stream& stream) const;

 private:
  int multiprocessors_;
  bool is_hopper_;
};

// Any shape, type and alignment: a warp per output and four rows. Good for a few rows in float32,
// and for what no other kernel takes.
void dot(const GemmCall& call, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
