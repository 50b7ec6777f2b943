// ModelLoading: what rank 0 runs when the launcher asks for a loaded model. The ranks load by themselves
// from their start on; this waits for them, tells the launcher how far they are, and notices a rank that
// does not get on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ipc/rpc.h"
#include "ipc/registry.h"
#include "runtime/model_messages.h"

namespace nvllm::runtime {

// Notices the rank that loads, but has not got on for longer than a limit.
class LoadWatch {
 public:
  LoadWatch(int ranks, Nanoseconds limit)
      : ranks_(static_cast<std::size_t>(ranks)), limit_(limit) {}

  // What all ranks say, `since` the last time. An Error names who has hung.
  void look(const std::vector<LoadState>& states, Nanoseconds since);

 private:
  struct Rank {
    std::uint64_t bytes = 0;
    Nanoseconds without_progress{0};
  };
  std::vector<Rank> ranks_;
  Nanoseconds limit_;
};

// Used by rank 0's main thread. Every rank has bound a ModelRank and a RankReporter.
class ModelLoading {
 public:
  // All must outlive it.
  ModelLoading(ipc::Member& me, ipc::GroupCaller& caller, ipc::RequestServer& server)
      : me_(me), caller_(caller), server_(server) {}

  // "load": takes a LoadRequest, gives a RankLoad of every rank, and pushes a LoadState of all ranks
  // together, "load_state", ten times a second.
  void bind(ipc::Registry& requests);

  // Waits for all ranks, with those pushes.
  void await_all();
  // What each rank says of itself, once all have loaded.
  std::vector<RankLoad> report();

 private:
  std::vector<RankLoad> load(LoadRequest request);
  void add_checksums(std::vector<RankLoad>& ranks);

  ipc::Member& me_;
  ipc::GroupCaller& caller_;
  ipc::RequestServer& server_;
};

}  // namespace nvllm::runtime
