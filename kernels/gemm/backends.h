// A Gemm for each backend, and the kernels that the CUDA backend chooses from.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/small_m_plan.h"

namespace nvllm::kernels {
namespace cpu {

// GEMMs for streams of the CPU backend. The workspace for rows of x in the kernels' own format
// grows when a call needs more than all previous ones; it never shrinks. tune() with the largest M
// allocates it ahead of time. Results do not depend on the number of threads.
//
// set: use at most this instruction set, for tests; default: the best available. invariant: as in
// GemmOptions.
std::unique_ptr<Gemm> create_gemm(Backend& backend,
                                  std::optional<InstructionSet> set = std::nullopt,
                                  bool invariant = false);

}  // namespace cpu

namespace cuda {

struct Fp8Rows;

// cuBLASLt's workspace, of the size that NVIDIA recommends for Hopper.
inline constexpr std::size_t kGemmBytes = 32 << 20;

// For quantized weights: some of their outputs dequantized to floats; or rows of x in fp8, and
// scales. Most of it stays in an L2 cache of 50 MB.
inline constexpr std::size_t kQuantizedGemmBytes = 40 << 20;

std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options);

// The kernels. Queries whether a kernel supports a GEMM take the shape that the GEMM's own kernel
// sees (gemm_steps.h), which is not empty; enqueue() takes a checked call that was planned for the
// kernel.

// Up to 16 rows of 16-bit floats, bound by reading the weight; fuses an RMSNorm prologue where that
// is faster than a separate kernel, and a SiLU epilogue.
class Gemv {
 public:
  Gemv();
  bool can_implement(const GemmShape& shape) const;
  // Whether the blocks of such a GEMM without prologue load the whole weight at once.
  bool loads_all_at_once(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  bool takes_norm(const GemmShape& shape) const;
  bool norm_in_registers(const GemmShape& shape) const;
  template <typename T>
  void enqueue_as(const GemmCall& call, Stream& stream) const;

  int multiprocessors_;
  bool early_;  // kernels may start before the previous one in the stream has ended
};

// The same with each sum as one chain over K (GemmOptions::invariant): as fast where reading the
// weight, not the chain, dominates.
class InvariantGemv {
 public:
  InvariantGemv();
  bool can_implement(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  template <typename T>
  void enqueue_as(const GemmCall& call, Stream& stream) const;

  int multiprocessors_;
};

// Enqueues a segmented GEMM of up to 16 rows, in one kernel, with the bits of InvariantGemv and
// tree_sum(). Returns false, with nothing enqueued, if the shape is not supported. Takes a checked
// GEMM with rows and outputs.
bool segmented_gemv(const SegmentedGemm& gemm, Stream& stream);

struct GemvDevice;

// Up to 16 rows of 16-bit floats by a quantized weight; fuses an RMSNorm prologue where every block
// can repeat it, and a SiLU epilogue.
class QuantizedGemv {
 public:
  QuantizedGemv();
  bool can_implement(const GemmShape& shape) const;
  // See Gemv.
  bool loads_all_at_once(const GemmShape& shape) const;
  void enqueue(const GemmCall& call, Stream& stream) const;

 private:
  bool takes_norm(const GemmShape& shape) const;
  GemvDevice device() const;

  int multiprocessors_, shared_bytes_;
  bool early_;
};

// 17 to 128 rows of 16-bit floats on Hopper; fuses the second half of a deferred RMSNorm as
// prologue, and SiLU or the first half of the next RMSNorm as epilogue.
class SmallM {
 public:
  // Returns nothing if this kernel cannot compute the GEMM, or another is expected to be faster.
  // The prologue in shape.fusion has already been applied. invariant: any number of rows up to 128,
  // without split K.
  std::optional<SmallMTiling> plan(const GemmShape& shape, bool invariant = false);
  // Whether it can also run the first half of the next RMSNorm.
  static bool defers_norm(const GemmShape& shape);
  // Whether it is faster if x is in fp8.
  static bool wants_fp8_rows(const GemmShape& shape);
  // rows: x in fp8, for a shape that wants it; without values x is multiplied as it is.
  void enqueue(const GemmCall& call, const Fp8Rows& rows, Stream& stream) const;

 private:
  // Queried from the driver, which is slow, at the first GEMM that needs it.
  std::optional<SmallMOccupancy> occupancy_;
};

// 17 to 128 rows by an LM-head weight on Hopper, to float32; with sampling as its epilogue.
class LmHead {
 public:
  LmHead();
  // invariant: also fewer rows.
  bool can_implement(const GemmShape& shape, bool invariant = false) const;
  void enqueue(const GemmCall& call, Stream& stream) const;
  void enqueue_and_sample(const GemmCall& call, const SampleTokens& sample, Stream& stream) const;

 private:
  int multiprocessors_;
  bool runs_sm90a_;
};

// Any shape, type and alignment: one warp per output and four rows. Efficient for a few rows in
// float32; the fallback for everything else.
void dot(const GemmCall& call, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
