// Machine: the hardware, drivers and limits that nvllm depends on. Surveyed once; findings.h
// evaluates it.
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
  std::string error = "";  // why it is not writable; empty: it is
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::uint64_t needed_one = 0, needed_all = 0;  // bytes for one rank, and for the maximum number
                                                 // of ranks
};

struct NumaNode {
  int node = 0;
  std::vector<int> cores;  // usable by this process
  std::uint64_t bytes = 0;
};

struct DefaultModelFacts {
  std::string path;  // empty: no place for one
  bool there = false;
  bool fetched = false;  // downloaded at first use
};

struct Machine {
  // GPUs.
  std::string cuda_built;  // "13.0": the version of this build; empty: without CUDA
  GpuSurvey gpus;
  std::vector<std::string> visible;  // usable by this process (visible_gpus())
  std::string why_none_visible;
  LibraryState cublaslt, nccl;
  std::vector<int> gpu_nodes;  // the NUMA node of each of gpus.gpus; -1: unknown

  // The processor and its memory.
  std::string processor;
  bool baseline = false;  // whether it supports this build
  std::vector<std::string> instruction_sets;
  int cores = 0;  // usable by this process
  std::vector<NumaNode> nodes;
  std::string why_no_memory_policy;  // why this process may not choose NUMA nodes; empty: it may
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::optional<std::uint64_t> lockable_bytes;  // absent: no limit
  std::string huge_pages;                       // "always", "madvise", "never"; empty: unknown

  SharedMemoryFacts shared_memory;
  DefaultModelFacts model;

  cluster::Task task;  // this box's task, if there are several boxes
  std::string host;
};

// Surveys everything except `task`. Starts nothing and creates no CUDA context. `root` contains
// /proc and /sys; tests use other folders.
Machine survey_machine(const Environment& environment, const std::string& root = "/");

}  // namespace nvllm::launcher
