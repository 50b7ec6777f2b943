// What is asked of the benchmarks alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/bench/long_mode.h"
#include "launcher/bench/workload.h"
#include "runtime/options.h"

namespace nvllm::launcher {

constexpr std::int64_t kLongOutput = 128;  // of bench long, where none is given

struct BenchOptions {
  // Of throughput.
  std::int64_t prompts = 256;
  std::optional<std::int64_t> max_concurrency;  // absent: all prompts at once

  // Of latency.
  std::vector<std::int64_t> batch_sizes = {1, 8, 64, 256};

  // Of startup.
  std::int64_t repeat = 3;

  // Of long.
  std::vector<LongMode> modes = {LongMode::paged, LongMode::contiguous, LongMode::hybrid,
                                 LongMode::chunked, LongMode::layerwise};
  std::optional<double> link_gb_s;
  bool one_prompt = false;

  // Of several; absent: what the benchmark does by itself.
  std::optional<LengthRange> input, output;
  std::uint64_t dataset_seed = 0;
  // Sequences of throughput, decode steps of latency, tokens of long.
  std::optional<std::int64_t> warmup;
  std::optional<double> bandwidth_tb_s, tflops;
};

// The engine of bench long that keeps keys and values so. Options that say how a mode works are taken by the
// modes that they are of.
runtime::EngineOptions options_of_mode(runtime::EngineOptions options, LongMode mode);

}  // namespace nvllm::launcher
