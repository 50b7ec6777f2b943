// Benchmarks on a backend that may not be available.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>

#include "device/backend.h"

namespace nvllm::testing {

// If the backend is not available, the benchmark is skipped, with the reason, and this is nullptr.
std::unique_ptr<Backend> backend_or_skip(benchmark::State& state, DeviceKind kind);

}  // namespace nvllm::testing
