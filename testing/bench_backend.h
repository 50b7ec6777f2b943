// Benchmarks on a backend that may not be there.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>

#include "device/backend.h"

namespace nvllm::testing {

// Where there is no such backend the benchmark is skipped, with the reason, and this is nullptr.
std::unique_ptr<Backend> backend_or_skip(benchmark::State& state, DeviceKind kind);

}  // namespace nvllm::testing
