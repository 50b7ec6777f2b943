// GemmProblem: a GEMM in cuBLASLt's terms, and its candidate algorithms.
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

// x in fp8 with its scales, [inputs / 128, rows], and the scales of an fp8 weight: [inputs / 128,
// outputs], or per 128 x 128 block, [outputs / 128, inputs / 128 padded to a multiple of 4].
struct ScaledOperands {
  const std::byte* x;
  const float *x_scales, *weight_scales;
  bool blocks;
};

// cuBLASLt's matrices are column-major, so everything is transposed: outᵀ [outputs, rows] =
// weightᵀᵀ [outputs, inputs] · xᵀ [inputs, rows] + residualᵀ. Takes a checked call without its
// prologue and epilogue. Holds pointers into itself and to the call's tensors.
struct GemmProblem {
  explicit GemmProblem(const GemmCall& call, bool split_k = true) : GemmProblem(call, nullptr) {
    this->split_k = split_k;
  }
  GemmProblem(const GemmCall& call, const ScaledOperands& scaled) : GemmProblem(call, &scaled) {}
  GemmProblem(const GemmProblem&) = delete;
  GemmProblem& operator=(const GemmProblem&) = delete;

  // Whether cuBLASLt can handle the types: a bias or residual must be of out's type.
  static bool possible(const GemmCall& call);

  // Makes the problem a batch of all segments, of which it is the first.
  void repeat(const SegmentedGemm& gemm);

  cublasStatus_t enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                         void* workspace, std::size_t workspace_bytes, cudaStream_t stream);

  // The heuristic's `count` best algorithms, or fewer, best first, that accumulate in float32
  // throughout.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                               int count);

  // Configurations that the heuristic does not propose but that were fastest for some shape of up
  // to kShortlistRows rows, as far as they fit this problem.
  static constexpr std::int64_t kShortlistRows = 4096;
  std::vector<cublasLtMatmulAlgo_t> shortlist(cublasLtHandle_t handle, std::size_t workspace_bytes);

  // The algorithm of a configuration; nothing if it does not exist, does not fit this problem,
  // splits K although that is not allowed, is not deterministic, or rounds partial sums to 16 bits.
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

// Throws an Error with `what` if the call failed.
void check_cublaslt(cublasStatus_t status, std::string_view what);

GemmConfig config_of(const cublasLtMatmulAlgo_t& algorithm);

// The largest power of two, at most 256, that divides an address.
std::int64_t alignment_of(const void* data);

// Elements from one row to the next; for a single row, where any value works, the smallest.
std::int64_t row_stride(const TensorView& tensor);

}  // namespace nvllm::kernels::cuda
