// The commands of nvllm-launch. main.cc calls one of them; each is defined in its own folder.
#pragma once

#include <cstdint>

#include "launcher/cli/options.h"

namespace nvllm::launcher {

// Every command returns the program's exit code, or throws. started_ns: when the program started.

// launcher/generate, launcher/chat
int run_generate(const Options& options, std::int64_t started_ns);
int run_chat(const Options& options, std::int64_t started_ns);  // also without a command

// launcher/serve
int run_serve(const Options& options, std::int64_t started_ns);

// launcher/bench
int run_bench_throughput(const Options& options, std::int64_t started_ns);
int run_bench_latency(const Options& options, std::int64_t started_ns);
int run_bench_startup(const Options& options, std::int64_t started_ns);
int run_bench_long(const Options& options, std::int64_t started_ns);
int run_bench_serve(const Options& options, std::int64_t started_ns);  // a client: starts no worker

// launcher/inspect; the text commands start no worker
int run_inspect(const Options& options, std::int64_t started_ns);
int run_tokenize(const Options& options, std::int64_t started_ns);
int run_detokenize(const Options& options, std::int64_t started_ns);
int run_template(const Options& options, std::int64_t started_ns);

// launcher/hub
int run_pull(const Options& options, std::int64_t started_ns);

// launcher/doctor
int run_selftest(const Options& options, std::int64_t started_ns);
int run_doctor(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
