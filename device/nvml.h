// GPU properties from the NVIDIA driver, through its library NVML, and so without a CUDA context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nvllm {

struct GpuFacts {
  std::string name, uuid, pci;  // empty: it does not respond
  std::uint64_t total_bytes = 0, free_bytes = 0;
  int capability = 0;       // 90 for 9.0; 0: unknown
  bool prohibited = false;  // its compute mode prohibits all programs
  int nvlinks = 0;          // active ones
};

struct GpuPair {
  int first = 0, second = 0;
  bool nvlink = false;
  std::string path;          // the PCIe path between them: "one PCIe switch"
  bool peer_access = false;  // each can access the other's memory directly
};

struct GpuSurvey {
  std::string why_none;  // empty: the driver responds
  std::string driver;    // "580.82.07"
  int cuda_version = 0;  // 13000: the newest that the driver supports; 0: unknown
  std::vector<GpuFacts> gpus;
  std::vector<GpuPair> pairs;
};

// All GPUs, and the paths between them.
GpuSurvey survey_gpus();

// One UUID ("GPU-3f...") per GPU; empty for a GPU that does not respond. Without a driver or a GPU
// the list is empty, and `why_none` has the reason.
std::vector<std::string> nvml_uuids(std::string* why_none);

}  // namespace nvllm
