// Messages of a selftest between the launcher, rank 0 and the other ranks; and the input values of
// its collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/dtype.h"
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

}  // namespace nvllm::runtime
