// Random collective calls with known results, on which the tests of all implementations are built.
//
//   Rig rig(member, setup);
//   TestCalls calls(rig, 100, seed, {});   // the same calls on all ranks, different data
//   calls.load(round);                     // this rank's inputs
//   calls.enqueue();
//   rig.comm->wait(*rig.stream);
//   CHECK(calls.verify() == "");
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"

namespace nvllm::ipc {

struct TestSetup {
  DeviceKind device = DeviceKind::cpu;
  std::string implementation = "auto";
  // Sums are defined to the bit. If NCCL chooses the order, inputs are such that the order does not
  // matter.
  bool exact = true;
};

// One rank's objects in a test.
struct Rig {
  Rig(Member& member, const TestSetup& setup);

  Member& member;
  TestSetup setup;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> comm;
};

// A seed that was not used before; printed, so that a failure can be reproduced with
// NVLLM_TEST_SEED.
std::uint64_t fresh_seed();

struct CallLimits {
  std::int64_t elements = 5000;  // of the largest tensor
  bool only_reduce = false;      // all_reduce and nothing else
  // If not 0: only all_reduce_rms_norm of aligned rows with this many columns.
  std::int64_t only_fused = 0;
};

class TestCalls {
 public:
  // `count` calls drawn from the seed, which all ranks must share.
  TestCalls(Rig& rig, int count, std::uint64_t seed, const CallLimits& limits);
  ~TestCalls();

  void load(std::uint64_t round);
  // With delays: sleeps at random, differently on each rank, on the host and in the stream.
  void enqueue(bool delays = false);
  void enqueue_on(Stream& stream, std::size_t call);
  std::size_t size() const { return calls_.size(); }
  // Checks the results of the last load(); returns "" or a description of the error.
  std::string verify();

  struct Call;

 private:
  Rig& rig_;
  std::uint64_t seed_;
  std::uint64_t round_ = 0;
  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace nvllm::ipc
