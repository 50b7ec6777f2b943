// Findings: what a machine is good for, what is wrong with it, and how to fix that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/doctor/machine.h"

namespace nvllm::launcher {

enum class Verdict : std::uint8_t {
  fine,
  note,     // nothing is wrong, but it may not be what somebody expects
  warning,  // nvllm works, but worse than it could
  stops,    // nvllm does not work before this is fixed
};
const char* name_of(Verdict verdict);

struct Finding {
  std::string subject;  // "GPU 0", "/dev/shm"
  Verdict verdict = Verdict::fine;
  std::string found = "";
  std::string fix = "";  // one line; empty where nothing has to be done
};

// At least one finding for every part of the machine, GPUs first.
std::vector<Finding> examine(const Machine& machine);

// The findings about GPUs and about what only they need. Part of examine().
std::vector<Finding> examine_gpus(const Machine& machine);

// The GPUs that a run without options would use, as indices of machine.gpus.gpus.
std::vector<int> gpus_for_us(const Machine& machine);

// One line for each finding, and one for its fix; a last one that says what nvllm can do here.
std::string format_findings(const Machine& machine, const std::vector<Finding>& findings);
// One JSON object: the findings, and the machine's figures.
std::string format_findings_json(const Machine& machine, const std::vector<Finding>& findings);

}  // namespace nvllm::launcher
