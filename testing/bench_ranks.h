// Benchmarks on ranks: each measurement runs in forked processes with a device each, even with one
// rank, since a process that has used CUDA must not fork any more.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/testing/bench_ranks.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::testing {

// The limits of the device, measured by this run.
struct DeviceLimits {
  double bytes_per_second = 0;  // of reading
  double flops_per_second = 0;  // of the fastest of a few large GEMMs in bfloat16
};

// One rank of a measurement.
struct BenchRank {
  BenchRank(ipc::Member& member, DeviceKind kind);

  int number, ranks;

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<ipc::Communicator> communicator;  // nullptr for one rank
  std::unique_ptr<kernels::Gemm> gemm;

  void wait();
  // The time of the work that `enqueue` enqueues into a captured graph: the median of a few
  // replays, which all ranks start together.
  double seconds(const std::function<void()>& enqueue);
  DeviceLimits limits();

 private:
  double gemm_seconds(std::int64_t rows, std::int64_t outputs, std::int64_t inputs);
};

// Random nonzero bfloat16 numbers (zeros would be multiplied at higher clocks).
Buffer random_memory(Backend& backend, Stream& stream, std::int64_t elements);

// Reports counters of a benchmark: us; bytes and flops, to be read and computed; floor_us, the
// longer of the times that these take at the device's limits; of_limit, floor_us / us; and the
// limits.
void report_limits(benchmark::State& state, const DeviceLimits& limits, double seconds,
                   double bytes, double flops);

// Why such ranks are not available; empty: they are.
std::string why_no_bench_ranks(DeviceKind kind, int ranks);

// Rank 0's result of a measurement, which runs at the first use. Result: a plain struct.
template <typename Result>
class RankResults {
 public:
  using Measure = std::function<Result(BenchRank&)>;
  RankResults(DeviceKind kind, int ranks, Measure measure)
      : kind_(kind), ranks_(ranks), measure_(std::move(measure)) {}

  // nullptr: it failed, and the benchmark reports the reason.
  const Result* get(benchmark::State& state) {
    if (result_ == nullptr && failure_.empty()) run();
    if (!failure_.empty()) state.SkipWithError(failure_.c_str());
    return result_.get();
  }

 private:
  void run() {
    try {
      const auto results = ipc::bench::measure<Result>(ranks_, [this](ipc::Member& member) {
        BenchRank rank(member, kind_);
        return measure_(rank);
      });
      result_ = std::make_unique<Result>(results[0]);
    } catch (const Error& error) {
      failure_ = error.what();
    }
  }

  DeviceKind kind_;
  int ranks_;
  Measure measure_;
  std::unique_ptr<Result> result_;
  std::string failure_;
};

}  // namespace nvllm::testing
