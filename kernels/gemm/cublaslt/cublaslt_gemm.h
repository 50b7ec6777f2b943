// CublasltGemm: GEMMs of many rows, by cuBLASLt, with the algorithms that tuning found.
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

// Used by one thread and for one stream at a time. cuBLASLt is loaded in the background (0.04 to
// 0.2 s), so that a start need not wait for it.
class CublasltGemm {
 public:
  // invariant: no algorithm splits K, so that all add in the same order.
  CublasltGemm(Backend& backend, bool invariant);
  ~CublasltGemm();

  // Enqueues the GEMM of a checked call, without prologue and epilogue. False, and nothing is
  // enqueued, if cuBLASLt has no algorithm for it.
  bool enqueue(const GemmCall& call, Stream& stream);

  // The same of an fp8 weight, with x in fp8, too.
  bool enqueue_fp8(const GemmCall& call, const ScaledOperands& scaled, Stream& stream);

  // All segments in one call, each to its block of the sources (kernels::SegmentedGemm).
  bool enqueue_segments(const SegmentedGemm& gemm, Stream& stream);

  // The same as Gemm's, of calls whose prologues are done. What is known is not measured again.
  void tune(std::span<const GemmCall> alike, Stream& stream);
  const GemmConfigurations& configurations() const { return found_; }
  void adopt(GemmConfigurations configurations) { remembered_ = std::move(configurations); }
  std::size_t known();

 private:
  // All that the choice of an algorithm may depend on.
  struct Shape {
    explicit Shape(const GemmCall& call);
    auto operator<=>(const Shape&) const = default;
    std::string text() const;

    DType type, out_type;
    bool bias, residual;
    bool blocks = false;  // of fp8's scales
    std::int64_t outputs, inputs, x_stride, out_stride, residual_stride;
    std::int64_t x_alignment, weight_alignment, out_alignment, residual_alignment;
    std::int64_t rows;
    std::int64_t segments = 1;
  };
  using Algorithms = std::map<Shape, std::optional<cublasLtMatmulAlgo_t>>;

  // The same shape with as many rows as one measurement holds for.
  static Shape class_of(const GemmCall& call);
  // What measurements hold for, beside shapes: the start of all keys in configurations() and
  // adopt().
  const std::string& machine();
  // nullptr: nothing was measured for such a GEMM, or cuBLASLt has no algorithm.
  const cublasLtMatmulAlgo_t* measured(const GemmCall& call, GemmProblem& problem);
  // False if the algorithm is none, or does not fit after all.
  bool enqueue(GemmProblem& problem, const cublasLtMatmulAlgo_t* algorithm, Stream& stream);
  const cublasLtMatmulAlgo_t* guess(const Shape& shape, GemmProblem& problem);

  Backend& backend_;
  bool split_k_;
  Buffer workspace_;
  std::shared_future<cublasLtHandle_t> handle_;
  std::string machine_;
  GemmConfigurations remembered_;  // of earlier runs
  GemmConfigurations found_;       // by tune()
  Algorithms guessed_;             // the heuristic's first
  Algorithms measured_;            // by class; without an algorithm: neither remembered nor found
};

}  // namespace nvllm::kernels::cuda
