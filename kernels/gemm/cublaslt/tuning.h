// GemmTuning: finds cuBLASLt's fastest algorithm for a kind of GEMM by measurement.
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

// All arguments must outlive it. Not thread-safe.
class GemmTuning {
 public:
  GemmTuning(cublasLtHandle_t handle, const Buffer& workspace, Backend& backend, Stream& stream,
             bool split_k);

  // The fastest of the heuristic's proposals and a short list, among those that a GemmConfig
  // describes completely; nothing if there is none. The GEMMs differ only in their addresses: they
  // run in rotation, so that weights come from memory as they do in a pass through all layers.
  std::optional<GemmConfig> fastest(std::span<const GemmCall> alike);

 private:
  struct Candidate {
    GemmConfig config;
    cublasLtMatmulAlgo_t algorithm;
    double seconds;
  };

  std::vector<Candidate> candidates(GemmProblem& problem, bool few_rows) const;
  bool enqueue(const Candidate& candidate);
  // Time of a GEMM; infinity if the candidate cannot compute it.
  double seconds_of(const Candidate& candidate, int launches);

  const cublasLtHandle_t handle_;
  const Buffer& workspace_;
  Backend& backend_;
  Stream& stream_;
  const bool split_k_;
  const std::unique_ptr<Event> begin_, end_;
  std::vector<std::unique_ptr<GemmProblem>> problems_;
  std::size_t next_ = 0;  // next problem in the rotation
};

}  // namespace nvllm::kernels::cuda
