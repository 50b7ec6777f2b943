// GemmTuning: finds the fastest of cuBLASLt's algorithms for a kind of GEMM, by measuring.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/cublaslt/config.h"
#include "kernels/gemm/cublaslt/problem.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// All must outlive it. Used by one thread.
class GemmTuning {
 public:
  GemmTuning(cublasLtHandle_t handle, const Buffer& workspace, Backend& backend, Stream& stream,
             bool split_k);

  // Among what the heuristic proposes and a short list, as far as their configurations tell all
  // about them; nothing if there is none. The GEMMs differ in where their tensors lie: they are
  // computed in turns, so that weights come from memory as they do in a pass through all layers.
  std::optional<GemmConfig> fastest(std::span<const GemmCall> alike);

 private:
  struct Candidate {
    GemmConfig config;
    cublasLtMatmulAlgo_t algorithm;
    double seconds;
  };

  std::vector<Candidate> candidates(GemmProblem& problem, bool few_rows) const;
  bool enqueue(const Candidate& candidate);
  // Of a GEMM; infinity if it cannot be computed so.
  double seconds_of(const Candidate& candidate, int launches);

  const cublasLtHandle_t handle_;
  const Buffer& workspace_;
  Backend& backend_;
  Stream& stream_;
  const bool split_k_;
  const std::unique_ptr<Event> begin_, end_;
  std::vector<std::unique_ptr<GemmProblem>> problems_;
  std::size_t next_ = 0;  // of the problems
};

}  // namespace nvllm::kernels::cuda
