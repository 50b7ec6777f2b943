// Benchmarks of operations: calls in a graph, so that launching costs what it costs in a step,
// beside a copy of as many bytes in the same run.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels::testing {

// Seconds per launch of a graph, launching included, the best of a few.
double seconds_of(Graph& graph, Stream& stream);

// Device memory of random E4m3 between -1.875 and 1.875: bytes from the host, over and over.
Buffer random_e4m3(Backend& backend, Stream& stream, std::int64_t bytes);

// One benchmark's backend, stream and tensors.
class GraphBenchmark {
 public:
  // Without such a backend the benchmark is skipped, with the reason, and this is false.
  GraphBenchmark(benchmark::State& state, DeviceKind kind);
  explicit operator bool() const { return backend_ != nullptr; }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }

  // A tensor of zeros.
  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape);
  template <typename T>
  TensorView tensor(const std::vector<T>& values) {
    const TensorView view = tensor(dtype_of<T>, {static_cast<std::int64_t>(values.size())});
    set(view, values.data());
    return view;
  }

  // Measures `call`, which enqueues one call that reads and writes `traffic` bytes in total, and
  // reports
  //   us_per_call, bytes_per_second
  //   limit_GB_per_s   of a copy that reads and writes as many bytes, in this run
  //   of_limit         the share of it that was reached
  void run(std::size_t traffic, const std::function<void()>& call);

 private:
  void set(const TensorView& view, const void* values);
  Buffer allocate(std::size_t bytes);
  double copy_seconds(std::size_t bytes, int calls);

  benchmark::State& state_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

// Registers a benchmark "operation/cuda/bfloat16/what" for the backend and the type.
void register_benchmark(const std::string& operation, DeviceKind kind, DType dtype,
                        const std::string& what,
                        const std::function<void(GraphBenchmark&)>& benchmark);

inline constexpr DeviceKind kBackends[] = {DeviceKind::cpu, DeviceKind::cuda};

}  // namespace nvllm::kernels::testing
