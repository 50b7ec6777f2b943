#include "runtime/rank_report.h"

#include <unistd.h>

#include "device/topology.h"

namespace nvllm::runtime {

void bind_rank_report(ipc::Registry& methods, Backend& backend, ipc::Communicator& communicator,
                      const StartTimes& start) {
  methods.bind("report", [&backend, &communicator, start] {
    RankReport report{.pid = ::getpid(),
                      .device = backend.description(),
                      .collectives = communicator.name(),
                      .cores = allowed_cores(),
                      .start = start,
                      .memory = {}};
    for (const Ledger::Entry& entry : backend.ledger().entries()) {
      report.memory.push_back({name_of(entry.kind), entry.purpose, entry.bytes, entry.buffers});
    }
    return report;
  });
}

}  // namespace nvllm::runtime
