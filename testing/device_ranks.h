// Tests of ranks with a device each, that are the same on every backend: link them with
// //testing:cpu_ranks or //testing:cuda_ranks.
//
//   RANKS_OR_SKIP(2);
//   run_on_devices(2, [](DeviceRank& rank) { ... rank.communicator->all_reduce(...) ... });
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::testing {

struct DeviceRank {
  ipc::Member& member;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  // Of the stage's ranks; nullptr for one rank in one stage.
  std::unique_ptr<ipc::Communicator> communicator;
  int stage = 0, stages = 1;             // of a pipeline
  std::unique_ptr<ipc::StageLink> link;  // nullptr for one stage

  void wait();  // for the stream's work
};

// Why there cannot be so many ranks on this machine; empty: there can. Asks without a CUDA context.
std::string why_no_ranks(int ranks);

// run_ranks() with a device for each. Also one rank is a process of its own. With fewer GPUs than
// ranks, which RANKS_OR_SKIP(ranks) rules out, ranks share them: they take turns, some milliseconds
// each, so that a collective takes as long.
void run_on_devices(int ranks, const std::function<void(DeviceRank&)>& body,
                    const ipc::GroupOptions& options = {});
// The same in so many pipeline stages, of `ranks` ranks each.
void run_in_stages(int stages, int ranks, const std::function<void(DeviceRank&)>& body);

// Of the backend that is linked: before a rank makes its backend, that.
void take_device(const ipc::Member& member);
DeviceKind device_under_test();

}  // namespace nvllm::testing

// Leaves the test case, skipped, where there cannot be so many.
#define RANKS_OR_SKIP(ranks)                                                               \
  if (const std::string why_not = ::nvllm::testing::why_no_ranks(ranks); !why_not.empty()) \
  SKIP_TEST(why_not)
