// Random collective calls whose right answer is known: what the tests of all implementations are
// made of.
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
  // Sums are defined to the bit. Where NCCL chooses the order, inputs are such that order does not
  // matter.
  bool exact = true;
};

// One rank's place in a test.
struct Rig {
  Rig(Member& member, const TestSetup& setup);

  Member& member;
  TestSetup setup;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> comm;
};

// A seed that nobody has used before; printed, so that a failure can be repeated with
// NVLLM_TEST_SEED.
std::uint64_t fresh_seed();

struct CallLimits {
  std::int64_t elements = 5000;  // of the largest tensor
  bool only_reduce = false;      // all_reduce and nothing else
  // Unless 0: all_reduce_rms_norm of aligned rows of so many columns, and nothing else.
  std::int64_t only_fused = 0;
};

class TestCalls {
 public:
  // `count` calls drawn from the seed, which all ranks must share.
  TestCalls(Rig& rig, int count, std::uint64_t seed, const CallLimits& limits);
  ~TestCalls();

  void load(std::uint64_t round);
  // With delays: sleeps now and then, differently on each rank, on the host and in the stream.
  void enqueue(bool delays = false);
  void enqueue_on(Stream& stream, std::size_t call);
  std::size_t size() const { return calls_.size(); }
  // Reads the results of the last load(); "" or what is wrong.
  std::string verify();

  struct Call;

 private:
  Rig& rig_;
  std::uint64_t seed_;
  std::uint64_t round_ = 0;
  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace nvllm::ipc
