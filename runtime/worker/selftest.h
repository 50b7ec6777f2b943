// Selftest: rank 0's handler of the launcher's "selftest" call. It verifies typed calls and every
// collective on all ranks, measures both, and repeats the checks for the requested time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/worker/selftest_cases.h"

namespace nvllm::runtime {

// Used by rank 0's main thread. Every rank has bound a SelftestRank.
class Selftest {
 public:
  // Both arguments must outlive it.
  Selftest(ipc::Member& me, ipc::GroupCaller& caller) : me_(me), caller_(caller) {}

  void bind(ipc::Registry& requests);
  // seconds: how long to repeat checks after the first checks and measurements.
  SelftestResult run(double seconds);

 private:
  void check_calls();
  void check_large_messages();
  void check_failures();
  void check_collectives();
  void measure_calls();
  void measure_collectives();
  void keep_going(double seconds);

  // Runs one collective on all ranks, and compares the results with the expected ones and each
  // other.
  void check_collective(const CollectiveCase& which);
  // Counts a check; records a failure.
  void expect(bool good, const std::string& what);
  void add_row(const std::string& name, double value, const std::string& unit);
  // A seed that was not used before.
  std::uint64_t fresh_seed();

  ipc::Member& me_;
  ipc::GroupCaller& caller_;
  SelftestResult result_;
  bool on_gpu_ = false;
  std::uint64_t checks_ = 0;       // number of calls
  std::uint64_t collectives_ = 0;  // number of collectives checked
  std::uint64_t seed_ = 0;
};

// SelftestRank: the methods that rank 0's selftest calls on every rank. Used by the rank's main
// thread.
class SelftestRank {
 public:
  // All arguments must outlive it.
  SelftestRank(ipc::Member& me, Backend& backend, ipc::Communicator& communicator, Stream& stream);

  void bind(ipc::Registry& methods);

 private:
  // Calls.
  int nothing() { return me_.rank(); }
  Sample echo(Sample sample) { return sample; }
  std::int64_t add(std::int32_t a, std::int64_t b, double c);
  std::uint64_t hash(std::vector<std::byte> bytes);
  std::vector<std::byte> make_bytes(std::uint64_t count, std::uint64_t seed);
  int fail_on(int rank);

  // The latencies of control messages to this rank.
  void note_arrival(std::int64_t sent_ns, std::vector<std::byte> padding);
  std::vector<double> take_arrivals();

  // Collectives.
  CollectiveOutcome run_collective(CollectiveCase which);
  double time_all_reduce(TimingCase which);  // seconds per call

  CollectiveOutcome run_rms_norm(const CollectiveCase& which);
  // `count` elements of device memory; `slot` distinguishes tensors used at the same time.
  TensorView device_tensor(int slot, DType dtype, std::int64_t count);
  void to_device(TensorView to, const std::vector<float>& values);
  std::vector<float> from_device(TensorView from, std::uint64_t* bits);

  ipc::Member& me_;
  Backend& backend_;
  ipc::Communicator& communicator_;
  Stream& stream_;
  std::vector<double> arrivals_;  // seconds
  std::vector<Buffer> buffers_;   // by slot, grown on demand
  Buffer staging_;                // pinned
};

}  // namespace nvllm::runtime
