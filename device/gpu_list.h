// The GPUs of the machine in the driver's order, found without creating a CUDA context.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nvllm {

// One UUID ("GPU-3f...") per GPU. Asks the driver's files in /proc, which takes no time, and NVML where
// they do not tell (50 ms). Empty, with the reason, without a driver or a GPU.
std::vector<std::string> gpu_uuids(std::string* why_none);

// The same from the driver's files alone: every GPU below `proc` whose device file below `dev` this
// process may use, by bus address. Nothing if the files do not tell: no such folder, a GPU that has not
// been started since boot.
std::optional<std::vector<std::string>> gpu_uuids_of_driver(
    const std::string& proc = "/proc/driver/nvidia/gpus", const std::string& dev = "/dev");

}  // namespace nvllm
