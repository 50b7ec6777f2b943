// Gemm: products of many rows, by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "kernels/linear.h"

namespace nvllm::kernels::cuda {

// A product as cuBLASLt sees it: all matrices column-major, so everything transposed,
// outᵀ [outputs, rows] = weightᵀᵀ [outputs, inputs] · xᵀ [inputs, rows] + residualᵀ. Checked
// arguments with nothing before the product. Points into itself and into what the arguments point to.
struct GemmProblem {
  explicit GemmProblem(const Linear& args);
  GemmProblem(const GemmProblem&) = delete;
  GemmProblem& operator=(const GemmProblem&) = delete;

  // Whether cuBLASLt can be asked at all: a bias or residual must be of out's type.
  static bool possible(const Linear& args);

  cublasStatus_t enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                         void* workspace, std::size_t workspace_bytes, cudaStream_t stream);

  // The heuristic's `count` best algorithms, or fewer, best first. Sums are in float32 to their end.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                               int count);

  // Configurations that the heuristic does not propose and that were the fastest for one shape or
  // another of up to kShortlistRows rows, as far as they fit this problem.
  static constexpr std::int64_t kShortlistRows = 4096;
  std::vector<cublasLtMatmulAlgo_t> shortlist(cublasLtHandle_t handle, std::size_t workspace_bytes);

  cudaDataType_t type, out_type;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t weight{}, x{}, residual{}, out{};
  const void *weight_data, *x_data, *residual_data;
  void* out_data;
  float beta;
};

// Used by one thread and for one stream at a time. cuBLASLt is loaded in the background (0.04 to
// 0.2 s), so that a start need not wait for it.
class Gemm {
 public:
  explicit Gemm(Backend& backend);
  ~Gemm();

  // Enqueues a product of checked arguments with nothing before it. False, and nothing is enqueued,
  // if cuBLASLt has no algorithm for it.
  bool enqueue(const Linear& args, cudaStream_t stream);

  // Whether tune() has found the fastest algorithm for this product.
  bool has_measured(const Linear& args) const { return measured(Shape(args)) != nullptr; }

  // Measures the heuristic's candidates and keeps the fastest.
  void tune(const Linear& args, Stream& stream);

 private:
  // All that the choice of an algorithm may depend on. Rows come last, for the order.
  struct Shape {
    explicit Shape(const Linear& args);
    bool like(const Shape& other) const;  // the same but for rows
    auto operator<=>(const Shape&) const = default;

    DType type, out_type;
    bool bias, residual;
    std::int64_t outputs, inputs, x_stride, out_stride, residual_stride;
    std::int64_t x_alignment, weight_alignment, out_alignment, residual_alignment;
    std::int64_t rows;
  };

  // nullptr: nothing was measured for such a shape, or cuBLASLt has no algorithm.
  const cublasLtMatmulAlgo_t* measured(const Shape& shape) const;
  const cublasLtMatmulAlgo_t* guess(const Shape& shape, GemmProblem& problem);
  double seconds_of(GemmProblem& problem, const cublasLtMatmulAlgo_t& algorithm, int repeats,
                    Stream& stream);

  Backend& backend_;
  Buffer workspace_;
  std::shared_future<cublasLtHandle_t> handle_;
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> guessed_;  // the heuristic's first
  std::map<Shape, cublasLtMatmulAlgo_t> measured_;
};

}  // namespace nvllm::kernels::cuda
