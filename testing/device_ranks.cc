#include "testing/device_ranks.h"

namespace nvllm::testing {

void DeviceRank::wait() {
  communicator != nullptr ? communicator->wait(*stream) : stream->synchronize();
}

void run_on_devices(int ranks, const std::function<void(DeviceRank&)>& body,
                    const ipc::GroupOptions& options) {
  const auto run = [&](ipc::Member& member) {
    take_device(member);
    DeviceRank rank{member, create_backend(device_under_test()), nullptr, nullptr};
    rank.stream = rank.backend->create_stream();
    if (ranks > 1) rank.communicator = ipc::create_communicator(member, *rank.backend, {});
    body(rank);
  };
  run_ranks(ranks, run, options);
}

}  // namespace nvllm::testing
