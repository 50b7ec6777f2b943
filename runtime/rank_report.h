// What every rank can say of itself, whatever it is there for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/registry.h"

namespace nvllm::runtime {

// When a rank had come how far, in now_ns(): one clock for all processes of a machine.
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

// A rank about itself.
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

// Binds "report", which gives a RankReport. Used by the rank's main thread.
class RankReporter {
 public:
  // Both must outlive it.
  RankReporter(Backend& backend, ipc::Communicator& communicator, const StartTimes& start)
      : backend_(backend), communicator_(communicator), start_(start) {}

  void bind(ipc::Registry& methods);

 private:
  RankReport report();

  Backend& backend_;
  ipc::Communicator& communicator_;
  StartTimes start_;
};

}  // namespace nvllm::runtime
