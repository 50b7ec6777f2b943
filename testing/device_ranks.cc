#include "testing/device_ranks.h"

namespace nvllm::testing {

void DeviceRank::wait() {
  communicator != nullptr ? communicator->wait(*stream) : stream->synchronize();
}

namespace {

void run(int stages, int ranks, const std::function<void(DeviceRank&)>& body,
         const ipc::GroupOptions& options) {
  const auto run = [&](ipc::Member& member) {
    take_device(member);
    DeviceRank rank{.member = member,
                    .backend = create_backend(device_under_test()),
                    .stream = nullptr,
                    .communicator = nullptr,
                    .link = nullptr};
    rank.stream = rank.backend->create_stream();
    rank.stage = member.rank() / ranks;
    rank.stages = stages;
    if (stages * ranks > 1) {
      rank.communicator = ipc::create_communicator(member, *rank.backend, {.stages = stages});
    }
    if (stages > 1) {
      rank.link =
          ipc::create_stage_link(member, *rank.backend, {.stages = stages}, *rank.communicator);
    }
    body(rank);
    // A GPU of the next stage may still be acknowledging what it received.
    if (stages > 1) {
      rank.wait();
      member.exchange({}, "the end of the test");
    }
  };
  run_ranks(stages * ranks, run, options);
}

}  // namespace

void run_on_devices(int ranks, const std::function<void(DeviceRank&)>& body,
                    const ipc::GroupOptions& options) {
  run(1, ranks, body, options);
}

void run_in_stages(int stages, int ranks, const std::function<void(DeviceRank&)>& body) {
  run(stages, ranks, body, {});
}

}  // namespace nvllm::testing
