// What a machine is good for, and the mend for what is wrong with it.
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
  stops,    // nvllm does not work before this is mended
};
const char* name_of(Verdict verdict);

struct Finding {
  std::string subject;  // "GPU 0", "/dev/shm"
  Verdict verdict = Verdict::fine;
  std::string found;
  std::string mend;  // one line; empty where nothing has to be done
};

// At least one for every part of the machine, GPUs first.
std::vector<Finding> judge(const Machine& machine);

// Of the GPUs, and of what only they need. Part of judge().
std::vector<Finding> judge_gpus(const Machine& machine);

// The GPUs that a run without options would take, as indices of machine.gpus.gpus.
std::vector<int> gpus_for_us(const Machine& machine);

}  // namespace nvllm::launcher
