#pragma once

#include <cstdint>

#include "launcher/options.h"

namespace nvllm::launcher {

// nvllm-launch bench throughput, bench latency, bench startup, bench long. started_ns: when the launcher began. They
// return the exit code.
int run_bench_throughput(const Options& options, std::int64_t started_ns);
int run_bench_latency(const Options& options, std::int64_t started_ns);
int run_bench_startup(const Options& options, std::int64_t started_ns);
int run_bench_long(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
