// The program's version, its exit codes, and its commands. main.cc calls one of the commands; each
// is defined in its own folder.
#pragma once

#include <cstdint>

namespace nvllm {

// The version is defined only here.
inline constexpr const char* kVersion = "0.2.0";

namespace launcher {

// "fd5f585, 2026-11-25": the commit of a release; in other builds "" or "redacted"
// (build_label.cc).
extern const char* const kBuildLabel;

// After a signal that asked the program to stop, the exit code is kExitSignal plus the signal's
// number.
enum ExitCode : int {
  kExitFine = 0,    // everything requested is done
  kExitFailed = 1,  // the run failed; the last line on standard error says why
  kExitUsage = 2,   // wrong command line, or it exceeds this machine; nothing was started
  kExitDied = 3,    // a worker died
  kExitStuck = 4,   // a worker was alive but made no progress within --step-timeout
  kExitSignal = 128,
};

struct Options;  // options.h

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

}  // namespace launcher
}  // namespace nvllm
