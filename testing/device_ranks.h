// Tests of ranks with a device each, which are the same for every backend: link them with
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
  // Between the stage's ranks; nullptr for one rank in one stage.
  std::unique_ptr<ipc::Communicator> communicator;
  int stage = 0, stages = 1;             // of the pipeline
  std::unique_ptr<ipc::StageLink> link;  // nullptr for one stage

  void wait();  // waits for the stream's work
};

// Why this machine cannot run this many ranks; empty: it can. Does not create a CUDA context.
std::string why_no_ranks(int ranks);

// run_ranks() with a device for each rank. Even a single rank is a process of its own. With fewer
// GPUs than ranks, which RANKS_OR_SKIP(ranks) excludes, ranks share them: they run in turn, some
// milliseconds each, so that a collective takes as long.
void run_on_devices(int ranks, const std::function<void(DeviceRank&)>& body,
                    const ipc::GroupOptions& options = {});
// The same with pipeline stages, of `ranks` ranks each.
void run_in_stages(int stages, int ranks, const std::function<void(DeviceRank&)>& body);

// The device of the linked backend. Call take_device() before a rank creates its backend.
void take_device(const ipc::Member& member);
DeviceKind device_under_test();

}  // namespace nvllm::testing

// Skips the test case if this machine cannot run this many ranks.
#define RANKS_OR_SKIP(ranks)                                                               \
  if (const std::string why_not = ::nvllm::testing::why_no_ranks(ranks); !why_not.empty()) \
  SKIP_TEST(why_not)
