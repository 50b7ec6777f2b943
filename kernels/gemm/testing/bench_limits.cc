#include "kernels/gemm/testing/bench_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device/cpu/stream.h"
#include "device/cpu/thread_pool.h"
#ifdef NVLLM_CUDA
#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/libraries.h"
#include "kernels/gemm/cublaslt/problem.h"
#endif

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kPiece = 4096;  // words that a thread of the pool takes at least

void read_on_cpu(const Buffer& buffer, Stream& stream) {
  const auto* words = static_cast<const std::uint64_t*>(buffer.data());
  const auto count = static_cast<std::int64_t>(buffer.bytes() / sizeof(std::uint64_t));
  cpu::ThreadPool& pool = cpu::stream(stream).thread_pool();
  cpu::stream(stream).submit([=, &pool] {
    std::atomic<std::uint64_t> all{0};  // so that no reading is left out
    pool.run(count, kPiece, [&](std::int64_t begin, std::int64_t end) {
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
  constexpr int kTimes = 4;
  const auto graph = backend.capture(stream, [&] {
    for (int i = 0; i < kTimes; ++i) read_all(buffer, stream);
  });
  return kTimes * static_cast<double>(bytes) / seconds_of(*graph, backend, stream);
}

#ifdef NVLLM_CUDA

namespace {

constexpr std::size_t kWorkspaceBytes = 32 << 20;
constexpr double kSearchSeconds = 3;  // then what has been tried must do

using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

void add_new(Algorithms& algorithms, const cublasLtMatmulAlgo_t& algorithm) {
  const auto same = [&](const cublasLtMatmulAlgo_t& other) {
    return std::memcmp(&other, &algorithm, sizeof algorithm) == 0;
  };
  if (std::none_of(algorithms.begin(), algorithms.end(), same)) algorithms.push_back(algorithm);
}

void add_proposed(Algorithms& algorithms, cublasLtHandle_t handle, cuda::GemmProblem& problem) {
  for (const std::size_t bytes : {kWorkspaceBytes, std::size_t{0}}) {
    for (const auto& one : problem.candidates(handle, bytes, 100)) add_new(algorithms, one);
  }
}

std::vector<std::uint32_t> capabilities(const cublasLtMatmulAlgo_t& algorithm,
                                        cublasLtMatmulAlgoCapAttributes_t which) {
  std::size_t bytes = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algorithm, which, nullptr, 0, &bytes);
  std::vector<std::uint32_t> values(bytes / sizeof(std::uint32_t));
  if (!values.empty()) {
    cublasLtMatmulAlgoCapGetAttribute(&algorithm, which, values.data(), bytes, &bytes);
  }
  if (values.empty()) values.push_back(0);
  return values;
}

template <typename T>
void configure(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which,
               T value) {
  cublasLtMatmulAlgoConfigSetAttribute(&algorithm, which, &value, sizeof value);
}

// Every algorithm, with all of its tiles, stages, clusters and orders of tiles; sums not split. In
// random order, so that a search that is cut short has seen of everything.
void add_all(Algorithms& algorithms, cublasLtHandle_t handle, cuda::GemmProblem& problem) {
  constexpr cudaDataType_t kType = CUDA_R_16BF;
  Algorithms found;
  int ids[64], count = 0;
  cublasLtMatmulAlgoGetIds(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, kType, kType, kType, kType, 64,
                           ids, &count);
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t algorithm;
    if (cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, kType, kType, kType, kType,
                               ids[i], &algorithm) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    for (const std::uint32_t tile : capabilities(algorithm, CUBLASLT_ALGO_CAP_TILE_IDS)) {
      for (const std::uint32_t stages : capabilities(algorithm, CUBLASLT_ALGO_CAP_STAGES_IDS)) {
        for (std::uint16_t cluster = 0; cluster <= CUBLASLT_CLUSTER_SHAPE_2x4x1; ++cluster) {
          for (const std::uint32_t swizzle : {0, 1}) {
            configure(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
            configure(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages);
            configure(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
            configure(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
            cublasLtMatmulHeuristicResult_t result{};
            const cublasStatus_t status =
                cublasLtMatmulAlgoCheck(handle, &problem.gemm, &problem.weight, &problem.x,
                                        &problem.residual, &problem.out, &algorithm, &result);
            if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) {
              found.push_back(algorithm);
            }
          }
        }
      }
    }
  }
  std::shuffle(found.begin(), found.end(), std::mt19937(1));
  for (const auto& one : found) add_new(algorithms, one);
}

}  // namespace

Searched search_cublaslt(Backend& backend, Stream& stream, const std::vector<GemmCall>& calls,
                         bool all, Graph& ours, std::size_t ours_calls) {
  if (const char* why = load_cublaslt()) fail("loading cuBLASLt: ", why);
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) fail("starting cuBLASLt failed");
  const Buffer workspace = backend.allocate(MemoryKind::device, kWorkspaceBytes, "benchmark");
  Algorithms algorithms;
  cuda::GemmProblem first(calls.front());
  add_proposed(algorithms, handle, first);
  if (all) add_all(algorithms, handle, first);

  const auto begin = backend.create_event(true), end = backend.create_event(true);
  // Times the first call alone, since most algorithms are far from the fastest; infinity if the
  // algorithm fails.
  const auto rough_seconds = [&](const cublasLtMatmulAlgo_t& algorithm) {
    for (int i = 0; i < 2; ++i) {  // the first time loads the kernel
      begin->record(stream);
      if (first.enqueue(handle, algorithm, workspace.data(), kWorkspaceBytes,
                        nvllm::cuda::native(stream)) != CUBLAS_STATUS_SUCCESS) {
        return std::numeric_limits<double>::infinity();
      }
      end->record(stream);
      stream.synchronize();
    }
    return end->seconds_since(*begin);
  };
  std::vector<std::pair<double, const cublasLtMatmulAlgo_t*>> order;
  const std::int64_t start = now_ns();
  for (const auto& algorithm : algorithms) {
    if (seconds_since(start) > kSearchSeconds) break;
    order.emplace_back(rough_seconds(algorithm), &algorithm);
  }
  std::sort(order.begin(), order.end());

  constexpr std::size_t kField = 12;
  std::vector<std::unique_ptr<Graph>> field;
  for (std::size_t i = 0; i < std::min(kField, order.size()) && !std::isinf(order[i].first); ++i) {
    field.push_back(backend.capture(stream, [&] {
      for (const GemmCall& call : calls) {
        cuda::GemmProblem(call).enqueue(handle, *order[i].second, workspace.data(), kWorkspaceBytes,
                                        nvllm::cuda::native(stream));
      }
    }));
  }
  const auto once = [&](Graph& graph) {
    begin->record(stream);
    graph.launch(stream);
    end->record(stream);
    stream.synchronize();
    return end->seconds_since(*begin);
  };
  constexpr int kRounds = 8;
  std::vector<double> seconds(field.size());
  Searched searched;
  searched.algorithms = static_cast<int>(order.size());
  for (int round = 0; round < kRounds; ++round) {
    searched.ours_seconds += once(ours) / (kRounds * static_cast<double>(ours_calls));
    for (std::size_t i = 0; i < field.size(); ++i)
      seconds[i] += once(*field[i]) / (kRounds * static_cast<double>(calls.size()));
  }
  searched.seconds = *std::min_element(seconds.begin(), seconds.end());
  cublasLtDestroy(handle);
  return searched;
}

#else

Searched search_cublaslt(Backend&, Stream&, const std::vector<GemmCall>&, bool, Graph&,
                         std::size_t) {
  return {};
}

#endif

}  // namespace nvllm::kernels
