// Runs each test case in a separate process, so that a crash, a hang or an initialized CUDA ends
// with the case. The parent itself runs no case.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "testing/case_result.h"

namespace nvllm::testing {

// cases: the cases to run, in doctest's order; only name and file are used. arguments: the command
// line that selected them, passed to each process. Prints a line per case, and the output of those
// that fail. A case that exceeds the limit is killed, with all processes it started. `jobs` cases
// run at a time.
std::vector<CaseResult> run_isolated(const std::vector<CaseResult>& cases,
                                     const std::vector<std::string>& arguments,
                                     std::chrono::seconds limit, int jobs);

}  // namespace nvllm::testing
