// RunRecord: what the answers of a run depend on besides its input: the model, and the relevant
// options. It is stored next to --output, in OUTPUT.run, so that --resume does not mix answers of
// two models or of different options.
#pragma once

#include <map>
#include <string>

#include "launcher/cli/options.h"
#include "runtime/model/open_model.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Keyed by option names: "--temperature" -> "0.5". The model's entry is a hash of its small files
// and of samples of its weight files, so that it takes milliseconds.
using RunRecord = std::map<std::string, std::string>;

// defaults: of requests, after applying the model and the command line.
RunRecord run_record(const Options& options, const runtime::OpenModel& model,
                     const runtime::SamplingParams& defaults);

std::string run_record_path(const std::string& output);

// Replaces the record atomically. Throws an Error that names the file.
void write_run_record(const std::string& output, const RunRecord& record);

// Throws an Error that names differences from the output's record. False: there is none.
bool check_run_record(const std::string& output, const RunRecord& record);

}  // namespace nvllm::launcher
