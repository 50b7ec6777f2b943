#include "runtime/rank_report.h"

#include <unistd.h>

#include "device/topology.h"

namespace nvllm::runtime {

void RankReporter::bind(ipc::Registry& methods) {
  methods.bind<&RankReporter::report>("report", this);
}

RankReport RankReporter::report() {
  RankReport report{.pid = ::getpid(),
                    .device = backend_.description(),
                    .collectives = communicator_.name(),
                    .cores = allowed_cores(),
                    .start = start_,
                    .memory = {}};
  for (const Ledger::Entry& entry : backend_.ledger().entries()) {
    report.memory.push_back({name_of(entry.kind), entry.purpose, entry.bytes, entry.buffers});
  }
  return report;
}

}  // namespace nvllm::runtime
