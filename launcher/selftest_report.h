#pragma once

#include <cstdint>
#include <string>

#include "launcher/launch_plan.h"
#include "runtime/worker/selftest_cases.h"

namespace nvllm::launcher {

// What a selftest found, and how long its start took.
struct SelftestReport {
  DeviceKind device = DeviceKind::cpu;
  std::int64_t started_ns = 0;  // the launcher's first instruction
  std::int64_t forked_ns = 0;   // all workers exist
  bool memory = false;          // tell what memory every rank has taken
  runtime::SelftestResult result;
};

// A short table, or one JSON object.
std::string format_table(const SelftestReport& report);
std::string format_json(const SelftestReport& report);

}  // namespace nvllm::launcher
