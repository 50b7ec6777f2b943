// CublasltGemm: GEMMs of many rows by cuBLASLt, with the autotuned algorithms.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "device/backend.h"
#include "kernels/gemm/cublaslt/problem.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// Not thread-safe, and for one stream at a time. cuBLASLt is loaded in the background (0.04 to 0.2
// s) so as not to delay the start.
class CublasltGemm {
 public:
  // invariant: no algorithm splits K, so that all add in the same order.
  CublasltGemm(Backend& backend, bool invariant);
  ~CublasltGemm();

  // Enqueues the GEMM of a checked call, without prologue and epilogue. Returns false, with nothing
  // enqueued, if cuBLASLt has no algorithm for it.
  bool enqueue(const GemmCall& call, Stream& stream);

  // The same for an fp8 weight and x in fp8.
  bool enqueue_fp8(const GemmCall& call, const ScaledOperands& scaled, Stream& stream);

  // All segments in one call, each into its block of the sources (kernels::SegmentedGemm).
  bool enqueue_segments(const SegmentedGemm& gemm, Stream& stream);

  // Like Gemm::tune(), for calls whose prologues have run. Known results are not measured again.
  void tune(std::span<const GemmCall> alike, Stream& stream);
  const GemmConfigurations& configurations() const { return found_; }
  void adopt(GemmConfigurations configurations) { remembered_ = std::move(configurations); }
  std::size_t known();

 private:
  // Everything that the choice of an algorithm may depend on.
  struct Shape {
    explicit Shape(const GemmCall& call);
    auto operator<=>(const Shape&) const = default;
    std::string text() const;

    DType type, out_type;
    bool bias, residual;
    bool blocks = false;  // fp8 scales are per block
    std::int64_t outputs, inputs, x_stride, out_stride, residual_stride;
    std::int64_t x_alignment, weight_alignment, out_alignment, residual_alignment;
    std::int64_t rows;
    std::int64_t segments = 1;
  };
  using Algorithms = std::map<Shape, std::optional<cublasLtMatmulAlgo_t>>;

  // The shape with M rounded to the value that stands for it in measurements.
  static Shape class_of(const GemmCall& call);
  // What measurements depend on besides shapes: the prefix of all keys in configurations() and
  // adopt().
  const std::string& machine();
  // nullptr: such a GEMM was not measured, or cuBLASLt has no algorithm.
  const cublasLtMatmulAlgo_t* measured(const GemmCall& call, GemmProblem& problem);
  // Returns false if there is no algorithm, or it does not fit after all.
  bool enqueue(GemmProblem& problem, const cublasLtMatmulAlgo_t* algorithm, Stream& stream);
  const cublasLtMatmulAlgo_t* guess(const Shape& shape, GemmProblem& problem);

  Backend& backend_;
  bool split_k_;
  Buffer workspace_;
  std::shared_future<cublasLtHandle_t> handle_;
  std::string machine_;
  GemmConfigurations remembered_;  // from earlier runs
  GemmConfigurations found_;       // by tune()
  Algorithms guessed_;             // the heuristic's first proposals
  Algorithms measured_;            // by class; without an algorithm: neither remembered nor found
};

}  // namespace nvllm::kernels::cuda
