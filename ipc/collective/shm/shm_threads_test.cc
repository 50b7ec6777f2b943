// The shm communicator between threads of one process, because ThreadSanitizer cannot detect races
// between processes.
#include <doctest/doctest.h>

#include <atomic>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ipc/collective/testing/suite.h"
#include "ipc/collective/testing/test_calls.h"

namespace nvllm::ipc {

TEST_CASE("shm: the ranks as threads of one process") {
  const std::uint64_t seed = fresh_seed();
  for (int ranks : {2, 3, 5}) {
    GroupOptions options;
    options.size = ranks;
    options.staging_bytes = 32 << 10;
    const Group group = Group::create(options);
    std::vector<std::string> failures(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Member member = group.join(rank);
          Rig rig(member, {DeviceKind::cpu, "shm", true});
          for (std::uint64_t round = 0; round < 20 * suite::scale() + 4; ++round) {
            TestCalls calls(rig, 40, seed + round, {.elements = 12'000});
            calls.load(round);
            calls.enqueue();
            rig.comm->wait(*rig.stream);
            const std::string wrong = calls.verify();
            if (!wrong.empty()) fail(wrong);
          }
        } catch (const Error& error) {
          failures[static_cast<std::size_t>(rank)] = error.what();
          group.abort(error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) CHECK(failure == "");
  }
}

}  // namespace nvllm::ipc
