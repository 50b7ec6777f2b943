// What the doctor says.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/judge.h"
#include "launcher/doctor/machine.h"

namespace nvllm::launcher {

// A line for each finding, and one for its mend; a last one that says what nvllm can do here.
std::string format_findings(const Machine& machine, const std::vector<Finding>& findings);
// One JSON object: the findings, and the machine's figures.
std::string format_findings_json(const Machine& machine, const std::vector<Finding>& findings);

}  // namespace nvllm::launcher
