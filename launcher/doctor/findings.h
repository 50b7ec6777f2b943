// Findings: the capabilities and problems of a machine, and fixes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/doctor/machine.h"

namespace nvllm::launcher {

enum class Verdict : std::uint8_t {
  fine,
  note,     // no problem, but possibly unexpected
  warning,  // nvllm works, but not as well as it could
  stops,    // nvllm does not work until this is fixed
};
const char* name_of(Verdict verdict);

struct Finding {
  std::string subject;  // "GPU 0", "/dev/shm"
  Verdict verdict = Verdict::fine;
  std::string found = "";
  std::string fix = "";  // one line; empty: nothing to do
};

// At least one finding for every part of the machine, GPUs first.
std::vector<Finding> examine(const Machine& machine);

// The findings about GPUs and their requirements. Part of examine().
std::vector<Finding> examine_gpus(const Machine& machine);

// The GPUs that a run without options would use, as indices of machine.gpus.gpus.
std::vector<int> default_gpus(const Machine& machine);

// One line per finding and per fix; the last line summarizes what nvllm can do on this machine.
std::string format_findings(const Machine& machine, const std::vector<Finding>& findings);
// One JSON object: the findings, and the machine's data.
std::string format_findings_json(const Machine& machine, const std::vector<Finding>& findings);

}  // namespace nvllm::launcher
