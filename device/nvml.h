// What the NVIDIA driver tells of this machine's GPUs, through its library NVML and so without a
// CUDA context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nvllm {

struct GpuFacts {
  std::string name, uuid, pci;  // empty: it does not answer
  std::uint64_t total_bytes = 0, free_bytes = 0;
  int capability = 0;       // 90 for 9.0; 0: not told
  bool prohibited = false;  // its compute mode allows no program
  int nvlinks = 0;          // active ones
};

struct GpuPair {
  int first = 0, second = 0;
  bool nvlink = false;
  std::string path;          // what lies between them on PCIe: "one PCIe switch"
  bool peer_access = false;  // each reads the other's memory directly
};

struct GpuSurvey {
  std::string why_none;  // empty: the driver answers
  std::string driver;    // "580.82.07"
  int cuda_version = 0;  // 13000: the newest that the driver speaks; 0: not told
  std::vector<GpuFacts> gpus;
  std::vector<GpuPair> pairs;
};

// All GPUs, and the paths between them.
GpuSurvey survey_gpus();

// One UUID ("GPU-3f...") per GPU; empty where a GPU does not answer. No UUID at all, with the
// reason, without a driver or a GPU.
std::vector<std::string> nvml_uuids(std::string* why_none);

}  // namespace nvllm
