// What a device does at most, for floors.
#pragma once

#include <optional>
#include <string>

#include "launcher/bench/floor.h"
#include "launcher/bench/long_context.h"

namespace nvllm::launcher {

struct SpeedQuestion {
  std::string device;  // as its rank describes it: "NVIDIA H200", "CPU, 8 cores"
  int ranks = 1;       // CPU ranks share the machine
  std::optional<double> bandwidth_tb_s = {}, tflops = {};  // where the command line says it
  std::optional<double> link_gb_s = {};                    // both directions
};

// What is said, else what is known of the device, else what a short measurement in a process of its own
// finds: reading memory with all cores (on a GPU: copying), and products in bfloat16. The calling process
// must have a single thread.
DeviceSpeed device_speed(const SpeedQuestion& question);

// What is said, else what a measurement in a process of its own finds: copies of pinned memory to the device
// and back. On the CPU, where both are the host's memory, its ranks share what it does. The calling process
// must have a single thread.
LinkSpeed link_speed(const SpeedQuestion& question);

// Of devices that have been measured with care; nothing for others.
std::optional<DeviceSpeed> known_speed(const std::string& device);

}  // namespace nvllm::launcher
