// The peak speeds of a device, for the floors (floor.h).
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "device/backend.h"
#include "launcher/bench/floor.h"

namespace nvllm::launcher {

struct SpeedQuestion {
  std::string device;  // in the words of its rank: "NVIDIA H200", "CPU, 8 cores"
  int ranks = 1;       // on this box: on the CPU they share it
  std::optional<double> bandwidth_tb_s = {}, tflops = {};  // where the command line says it
  std::optional<double> link_gb_s = {};                    // both directions
  Nanoseconds limit = std::chrono::seconds(30);            // a measurement takes no longer
};

// Of a device in the words of its rank.
DeviceKind kind_of_device(const std::string& device);

// The speeds that the question gives, else those known of the device, else those that a short
// measurement in a process of its own finds: reading memory with all cores (on a GPU: copying), and
// GEMMs in bfloat16. The calling process must have a single thread.
DeviceSpeed device_speed(const SpeedQuestion& question);

// The speed that the question gives, else what a measurement in a process of its own finds: copies
// of pinned memory to the device and back. On the CPU both are the host's memory, and the ranks
// share it. The calling process must have a single thread.
LinkSpeed link_speed(const SpeedQuestion& question);

// The speeds of devices that have been measured with care; nothing for others.
std::optional<DeviceSpeed> known_speed(const std::string& device);

}  // namespace nvllm::launcher
