// Reference limits of GEMM benchmarks: reading alone, and cuBLASLt's best.
#pragma once

#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::kernels {

// Enqueues a read of a whole buffer of device memory, by the whole device.
void read_all(const Buffer& buffer, Stream& stream);

namespace cuda {
// The same on a GPU: as fast as it goes, past the L1, which is the limit of what streams weights.
void read_all(const Buffer& buffer, Stream& stream);
}  // namespace cuda

// Bandwidth in bytes per second of reading a buffer of `bytes` several times.
double read_bandwidth(Backend& backend, Stream& stream, std::size_t bytes);

// Seconds per launch of a graph by the device's own clock; the best of a few.
double seconds_of(Graph& graph, Backend& backend, Stream& stream);

struct Searched {
  double seconds = 0;       // of the fastest algorithm, per call; 0: no cuBLASLt here
  double ours_seconds = 0;  // of the other graph, per call, measured in alternation with it
  int algorithms = 0;       // tried
};
// Tries cuBLASLt's algorithms on these calls in a graph: those that its heuristic proposes, or
// `all`, in all configurations. The calls have no prologue or epilogue and differ in nothing but
// their addresses. `ours` is a graph of such calls; both are measured in alternation, since a GPU
// slows down by a tenth and more when it gets warm.
Searched search_cublaslt(Backend& backend, Stream& stream, const std::vector<GemmCall>& calls,
                         bool all, Graph& ours, std::size_t ours_calls);

}  // namespace nvllm::kernels
