// Runs each test case in a process of its own, so that a crash, a hang or an initialised CUDA ends
// with the case. The parent runs no case itself.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "testing/case_result.h"

namespace nvllm::testing {

// cases: what there is to run, in doctest's order; only name and file are read. arguments: the
// command line that chose them, to be given to each process. Prints a line per case, and the output
// of those that fail. A case that takes longer than the limit is killed, with all processes it
// started. As many cases as there are jobs run at a time.
std::vector<CaseResult> run_isolated(const std::vector<CaseResult>& cases,
                                     const std::vector<std::string>& arguments,
                                     std::chrono::seconds limit, int jobs);

}  // namespace nvllm::testing
