#include "kernels/linear_bench_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device/cpu/crew.h"
#include "device/cpu/stream.h"
#ifdef NVLLM_CUDA
#include <cublasLt.h>

#include <cstring>

#include "base/error.h"
#include "device/cublaslt.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/read_all.h"
#endif

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kPiece = 4096;  // words that a thread of the crew takes at least

void read_on_cpu(const Buffer& buffer, Stream& stream) {
  const auto* words = static_cast<const std::uint64_t*>(buffer.data());
  const auto count = static_cast<std::int64_t>(buffer.bytes() / sizeof(std::uint64_t));
  cpu::Crew& crew = cpu::stream(stream).crew();
  cpu::stream(stream).submit([=, &crew] {
    std::atomic<std::uint64_t> all{0};  // so that no reading is left out
    crew.run(count, kPiece, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum ^= words[i];
      all.fetch_xor(sum, std::memory_order_relaxed);
    });
  });
}

}  // namespace

void read_all(const Buffer& buffer, Stream& stream) {
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::read_all(buffer, stream);
#endif
  read_on_cpu(buffer, stream);
}

double seconds_of(Graph& graph, Backend& backend, Stream& stream) {
  const auto begin = backend.create_event(true), end = backend.create_event(true);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    begin->record(stream);
    graph.launch(stream);
    end->record(stream);
    stream.synchronize();
    best = std::min(best, end->seconds_since(*begin));
  }
  return best;
}

double read_bandwidth(Backend& backend, Stream& stream, std::size_t bytes) {
  const Buffer buffer = backend.allocate(MemoryKind::device, bytes, "benchmark");
  backend.fill(buffer.data(), 1, bytes, stream);
  const auto graph = backend.capture(stream, [&] { read_all(buffer, stream); });
  return static_cast<double>(bytes) / seconds_of(*graph, backend, stream);
}

#ifdef NVLLM_CUDA

Searched search_cublaslt(Backend& backend, Stream& stream, const std::vector<Linear>& calls,
                         int count) {
  if (const char* why = load_cublaslt()) fail("loading cuBLASLt: ", why);
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) fail("starting cuBLASLt failed");
  constexpr std::size_t kWorkspaceBytes = 32 << 20;
  const Buffer workspace = backend.allocate(MemoryKind::device, kWorkspaceBytes, "benchmark");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  cuda::GemmProblem problem(calls.front());
  for (const std::size_t bytes : {kWorkspaceBytes, std::size_t{0}}) {
    for (const auto& algorithm : problem.candidates(handle, bytes, count)) {
      const auto same = [&](const cublasLtMatmulAlgo_t& other) {
        return std::memcmp(&other, &algorithm, sizeof algorithm) == 0;
      };
      if (std::none_of(algorithms.begin(), algorithms.end(), same)) algorithms.push_back(algorithm);
    }
  }
  Searched searched{1e9, 0};
  for (const auto& algorithm : algorithms) {
    bool works = true;
    const auto graph = backend.capture(stream, [&] {
      for (const Linear& call : calls) {
        works =
            cuda::GemmProblem(call).enqueue(handle, algorithm, workspace.data(), kWorkspaceBytes,
                                            nvllm::cuda::native(stream)) == CUBLAS_STATUS_SUCCESS &&
            works;
      }
    });
    if (!works) continue;
    ++searched.algorithms;
    searched.seconds = std::min(searched.seconds, seconds_of(*graph, backend, stream));
  }
  searched.seconds /= static_cast<double>(calls.size());
  cublasLtDestroy(handle);
  return searched;
}

#else

Searched search_cublaslt(Backend&, Stream&, const std::vector<Linear>&, int) {
  return {};
}

#endif

}  // namespace nvllm::kernels
