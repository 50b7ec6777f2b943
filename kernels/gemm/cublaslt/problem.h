// GemmProblem: a GEMM as cuBLASLt sees it, and the algorithms that there are for it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/gemm/cublaslt/config.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// x in fp8, and scales of it, [inputs / 128, rows], and of an fp8 weight: [inputs / 128, outputs],
// or of its blocks of 128 x 128, [outputs / 128, inputs / 128 padded to a multiple of 4].
struct ScaledOperands {
  const std::byte* x;
  const float *x_scales, *weight_scales;
  bool blocks;
};

// All matrices are column-major to it, so everything is transposed,
// outᵀ [outputs, rows] = weightᵀᵀ [outputs, inputs] · xᵀ [inputs, rows] + residualᵀ. Takes
// a checked call without its prologue and epilogue. Points into itself and into the call's tensors.
struct GemmProblem {
  explicit GemmProblem(const GemmCall& call, bool split_k = true) : GemmProblem(call, nullptr) {
    this->split_k = split_k;
  }
  GemmProblem(const GemmCall& call, const ScaledOperands& scaled) : GemmProblem(call, &scaled) {}
  GemmProblem(const GemmProblem&) = delete;
  GemmProblem& operator=(const GemmProblem&) = delete;

  // Whether cuBLASLt can be asked at all: a bias or residual must be of out's type.
  static bool possible(const GemmCall& call);

  // The problem is the first of so many segments, which are computed together.
  void repeat(const SegmentedGemm& gemm);

  cublasStatus_t enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                         void* workspace, std::size_t workspace_bytes, cudaStream_t stream);

  // The heuristic's `count` best algorithms, or fewer, best first. Sums are in float32 to their
  // end.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                               int count);

  // Configurations that the heuristic does not propose and that were the fastest for one shape or
  // another of up to kShortlistRows rows, as far as they fit this problem.
  static constexpr std::int64_t kShortlistRows = 4096;
  std::vector<cublasLtMatmulAlgo_t> shortlist(cublasLtHandle_t handle, std::size_t workspace_bytes);

  // The algorithm of a configuration; nothing if there is none, or it does not fit this problem, or
  // it splits K and may not, or its sums would not be the same in every run or be rounded to 16
  // bits in between.
  std::optional<cublasLtMatmulAlgo_t> algorithm_of(cublasLtHandle_t handle,
                                                   const GemmConfig& config,
                                                   std::size_t workspace_bytes);

  cudaDataType_t type, out_type;
  cublasLtMatmulDescOpaque_t gemm{};
  cublasLtMatrixLayoutOpaque_t weight{}, x{}, residual{}, out{};
  const void *weight_data, *x_data, *residual_data;
  void* out_data;
  float beta;
  bool split_k = true;  // whether algorithms may split K

 private:
  GemmProblem(const GemmCall& call, const ScaledOperands* scaled);
};

// An Error with `what` if the call failed.
void check_cublaslt(cublasStatus_t status, std::string_view what);

GemmConfig config_of(const cublasLtMatmulAlgo_t& algorithm);

// The largest power of two, at most 256, that divides an address.
std::int64_t alignment_of(const void* data);

// Elements from one row to the next; of a single row any will do, so the smallest.
std::int64_t row_stride(const TensorView& tensor);

}  // namespace nvllm::kernels::cuda
