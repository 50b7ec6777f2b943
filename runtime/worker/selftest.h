// Selftest: rank 0's handler of the launcher's "selftest" call. It verifies typed calls and every
// collective on all ranks, measures both, and repeats the checks for the requested time. The
// messages between the launcher, rank 0 and the other ranks come first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/dtype.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/rank_report.h"

namespace nvllm::runtime {

struct SelftestRow {
  std::string name;
  double value = 0;
  std::string unit;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, value, unit);
  }
};

struct SelftestResult {
  std::vector<RankReport> ranks;
  std::vector<SelftestRow> rows;
  std::vector<std::string> failures;  // empty: no failures

  template <class Archive>
  void serialize(Archive& archive) {
    archive(ranks, rows, failures);
  }
};

// A value of every type that archives support.
struct Sample {
  std::int64_t number = 0;
  double fraction = 0;
  std::string text;
  std::vector<std::uint32_t> words;
  std::vector<std::string> names;
  std::map<std::string, int> table;
  std::optional<float> maybe;

  bool operator==(const Sample&) const = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(number, fraction, text, words, names, table, maybe);
  }
};

enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
  all_reduce_rms_norm,
};

constexpr const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_gather: return "all_gather";
    case Operation::gather: return "gather";
    case Operation::broadcast: return "broadcast";
    case Operation::all_reduce_rms_norm: return "all_reduce_rms_norm";
  }
  return "?";
}

// One collective on new values, which every rank can compute for all ranks from the seed.
struct CollectiveCase {
  Operation operation = Operation::all_reduce;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // of one rank's part
  std::int64_t columns = 1;   // of all_reduce_rms_norm; divides elements
  int root = 0;
  std::uint64_t seed = 0;
  // Integers, whose sums are exact in every type and order; otherwise fractions.
  bool whole_numbers = true;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(operation, dtype, elements, columns, root, seed, whole_numbers);
  }
};

struct CollectiveOutcome {
  std::uint64_t bits = 0;  // a hash of the result
  std::string complaint;   // empty: as expected

  template <class Archive>
  void serialize(Archive& archive) {
    archive(bits, complaint);
  }
};

// Parameters for measuring an all-reduce.
struct TimingCase {
  std::int64_t elements = 0;
  DType dtype = DType::bf16;
  int repetitions = 1;
  std::int64_t columns =
      0;  // > 0: fused with the residual sum and RMSNorm over rows of this length

  template <class Archive>
  void serialize(Archive& archive) {
    archive(elements, dtype, repetitions, columns);
  }
};

// Values are functions of a seed, so that every rank can compute the inputs of the others and the
// expected results.

// A hash of bytes, for comparing results of different ranks.
std::uint64_t hash_bytes(const void* data, std::size_t bytes);

// The input of rank `rank`: integers from -8 to 8, or fractions between -1 and 1, rounded to the
// case's type.
std::vector<float> input_of(const CollectiveCase& which, int rank);

// Values of the same kind for other uses in the same case (weights, residuals).
std::vector<float> values_for(const CollectiveCase& which, std::uint64_t purpose,
                              std::int64_t count);

struct Expectation {
  std::vector<float> values;     // before rounding to the case's type
  std::vector<float> magnitude;  // sums of absolute values; empty: the result is exact
};

// The result on rank `rank` (for all operations but all_reduce_rms_norm); empty on ranks that get
// none.
Expectation expected_of(const CollectiveCase& which, int rank, int ranks);

// Compares; returns a description of the first wrong element, or an empty string.
std::string compare(const CollectiveCase& which, int ranks, const Expectation& expected,
                    const std::vector<float>& got);

// Half the distance between neighbouring values at 1: 2^-24, 2^-8, 2^-11.
float rounding_unit(DType dtype);
float round_to(DType dtype, float value);

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
