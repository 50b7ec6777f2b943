// The peak speeds of a device, for the floors (floor.h).
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "device/backend.h"
#include "launcher/bench/floor.h"

namespace nvllm::launcher {

struct SpeedOptions {
  std::string device;  // as its rank names it: "NVIDIA H200", "CPU, 8 cores"
  int ranks = 1;       // on this box: CPU ranks share the device
  std::optional<double> bandwidth_tb_s = {}, tflops = {};  // from the command line
  std::optional<double> link_gb_s = {};                    // both directions
  Nanoseconds limit = std::chrono::seconds(30);            // time limit of a measurement
};

// The speeds given in the options, otherwise those known for the device, otherwise those of a
// short measurement in a child process: reading memory with all cores (on a GPU: copying), and
// bfloat16 GEMMs. The calling process must have a single thread.
DeviceSpeed device_speed(const SpeedOptions& options);

// The speed given in the options, otherwise that of a measurement in a child process: copies
// between pinned memory and the device in both directions. On the CPU both are host memory, which
// the ranks share. The calling process must have a single thread.
LinkSpeed link_speed(const SpeedOptions& options);

// The speeds of devices that were measured carefully; nullopt for others.
std::optional<DeviceSpeed> known_speed(const std::string& device);

}  // namespace nvllm::launcher
