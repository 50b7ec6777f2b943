// Machine: the hardware, drivers and limits that nvllm depends on. Surveyed once; findings.h
// examines it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/task.h"
#include "device/libraries.h"
#include "device/nvml.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

struct SharedMemoryFacts {
  std::string error = "";  // why nothing can be put there; empty: it can
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::uint64_t needed_one = 0, needed_all = 0;  // bytes for one rank, and for the most ranks
};

struct NumaNode {
  int node = 0;
  std::vector<int> cores;  // those that this process may use
  std::uint64_t bytes = 0;
};

struct DefaultModelFacts {
  std::string path;  // empty: there is no place for one
  bool there = false;
  bool fetched = false;  // when it is first needed
};

struct Machine {
  // GPUs.
  std::string cuda_built;  // "13.0": what this program was built with; empty: without CUDA
  GpuSurvey gpus;
  std::vector<std::string> visible;  // the GPUs that this process may use (visible_gpus())
  std::string why_none_visible;
  LibraryState cublaslt, nccl;
  std::vector<int> gpu_nodes;  // the NUMA node beside each of gpus.gpus; -1: unknown

  // The processor and its memory.
  std::string processor;
  bool baseline = false;  // it can run this build at all
  std::vector<std::string> instruction_sets;
  int cores = 0;  // that this process may use
  std::vector<NumaNode> nodes;
  std::string why_no_memory_policy;  // why this process may not choose NUMA nodes; empty: it may
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::optional<std::uint64_t> lockable_bytes;  // absent: no limit
  std::string huge_pages;                       // "always", "madvise", "never"; empty: unknown

  SharedMemoryFacts shared_memory;
  DefaultModelFacts model;

  cluster::Task task;  // which of several boxes it is
  std::string host;
};

// Starts nothing and creates no CUDA context. `root` is "/" but in tests: where /proc and /sys lie.
// All but the task.
Machine survey_machine(const Environment& environment, const std::string& root = "/");

}  // namespace nvllm::launcher
