// RankReport: a rank's report about its process, device, cores, start and memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/registry.h"

namespace nvllm::runtime {

// When a rank reached each point of its start, in now_ns(), whose clock all processes of a machine
// share.
struct StartTimes {
  std::int64_t joined_ns = 0;
  std::int64_t backend_ns = 0;
  std::int64_t communicator_ns = 0;
  std::int64_t ready_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(joined_ns, backend_ns, communicator_ns, ready_ns);
  }
};

struct MemoryLine {
  std::string kind;
  std::string purpose;
  std::uint64_t bytes = 0;
  std::uint64_t buffers = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(kind, purpose, bytes, buffers);
  }
};

struct RankReport {
  int pid = 0;
  std::string device;
  std::string collectives;
  std::vector<int> cores;
  StartTimes start;
  std::vector<MemoryLine> memory;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(pid, device, collectives, cores, start, memory);
  }
};

// Binds "report", which returns a RankReport. Backend and communicator must outlive the registry.
void bind_rank_report(ipc::Registry& methods, Backend& backend, ipc::Communicator& communicator,
                      const StartTimes& start);

}  // namespace nvllm::runtime
