// RunRecord: what the answers of a run depend on beside its input: the model, and the options that
// matter. It lies beside --output, in OUTPUT.run, so that --resume mixes no answers of two models,
// or of other options.
#pragma once

#include <map>
#include <string>

#include "launcher/cli/options.h"
#include "runtime/model/open_model.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// By the names of options: "--temperature" -> "0.5". The model's is a hash: of its small files, and
// of samples of its weights' files, so that it takes milliseconds.
using RunRecord = std::map<std::string, std::string>;

// defaults: of requests, after the command line and the model have been asked.
RunRecord run_record(const Options& options, const runtime::OpenModel& model,
                     const runtime::SamplingParams& defaults);

std::string run_record_path(const std::string& output);

// The record takes its place in one step. Throws an Error that names the file.
void write_run_record(const std::string& output, const RunRecord& record);

// Throws an Error that names what differs from the record beside the output. False: there is none.
bool check_run_record(const std::string& output, const RunRecord& record);

}  // namespace nvllm::launcher
