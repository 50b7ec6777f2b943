// Rows shared by several benchmarks, and the table of bench serve, which has a file of its own.
#pragma once

#include "launcher/cli/option_table.h"

namespace nvllm::launcher {

constexpr std::int64_t kMaxSequences = 1'000'000;

OptionRow dataset_seed_row();
OptionRow input_row(const char* value, const char* help, const char* fallback);
OptionRow output_row(const char* value, const char* help, const char* fallback);
OptionRow warmup_row(const char* help, const char* fallback);
OptionRow max_concurrency_row();

Command bench_serve_command();  // bench_serve_options.cc

}  // namespace nvllm::launcher
