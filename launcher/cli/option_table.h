// The tables of options: of each command, and the rows that several of them have.
#pragma once

#include <initializer_list>
#include <vector>

#include "launcher/options.h"

namespace nvllm::launcher {

using OptionRows = std::vector<OptionRow>;

OptionRow model_row();            // which model; every command that takes one
OptionRows model_rows();          // which, and how it is loaded
OptionRows group_rows();          // every command that runs a worker group
OptionRows engine_rows();         // every command that runs an engine
OptionRows chat_sampling_rows();  // those of them that a chat has a use for
OptionRows sampling_rows();       // every command that generates: into options.sampling

// What check() of a command with an engine begins with.
void check_engine(const Options& options);

OptionRow config_row();  // every command
OptionRow chat_template_row();
OptionRow json_row(const char* help);
OptionRow memory_report_row();

// One table of several.
OptionRows join_rows(std::initializer_list<OptionRows> tables);

Command selftest_options();
Command inspect_options();
Command generate_options();
Command chat_options();
Command completion_options();
Command doctor_options();
Command tokenize_options();
Command detokenize_options();
Command template_options();
Command bench_latency_options();
Command bench_long_options();
Command bench_startup_options();
Command bench_throughput_options();

}  // namespace nvllm::launcher
