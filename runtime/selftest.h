// Selftest: what rank 0 runs when the launcher asks for "selftest". It checks typed calls and every
// collective on all ranks, measures both, and keeps going for as long as it is asked to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ipc/group.h"
#include "ipc/rpc.h"
#include "ipc/registry.h"
#include "runtime/selftest_messages.h"

namespace nvllm::runtime {

// Used by rank 0's main thread. Every rank has bound a SelftestRank.
class Selftest {
 public:
  // Both must outlive it.
  Selftest(ipc::Member& me, ipc::GroupCaller& caller) : me_(me), caller_(caller) {}

  void bind(ipc::Registry& requests);
  SelftestResult run(SelftestRequest request);

 private:
  void check_calls();
  void check_large_messages();
  void check_failures();
  void check_collectives();
  void measure_calls();
  void measure_collectives();
  void keep_going(double seconds);

  // One collective on all ranks, its results compared with what must come out and with each other.
  void check_collective(const CollectiveCase& which);
  // Counts a check; notes a failure.
  void expect(bool good, const std::string& what);
  void add_row(const std::string& name, double value, const std::string& unit);
  // A seed that has not been used before.
  std::uint64_t fresh_seed();

  ipc::Member& me_;
  ipc::GroupCaller& caller_;
  SelftestResult result_;
  bool on_gpu_ = false;
  std::uint64_t checks_ = 0;       // of calls
  std::uint64_t collectives_ = 0;  // that were checked
  std::uint64_t seed_ = 0;
};

}  // namespace nvllm::runtime
