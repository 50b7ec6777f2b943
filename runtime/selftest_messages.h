// What the launcher, rank 0 and the other ranks tell each other during a selftest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/dtype.h"
#include "runtime/rank_report.h"

namespace nvllm::runtime {

struct SelftestRequest {
  double seconds = 0;  // how long to keep going after the checks and measurements

  template <class Archive>
  void serialize(Archive& archive) {
    archive(seconds);
  }
};

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
  std::vector<std::string> failures;  // empty: all is well

  template <class Archive>
  void serialize(Archive& archive) {
    archive(ranks, rows, failures);
  }
};

// A value of every kind that the archive knows.
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

// One collective on fresh values, which every rank can compute for all ranks from the seed.
struct CollectiveCase {
  Operation operation = Operation::all_reduce;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // of one rank's part
  std::int64_t columns = 1;   // of all_reduce_rms_norm; divides elements
  int root = 0;
  std::uint64_t seed = 0;
  // Whole numbers, whose sums are exact in every type and order; else fractions.
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

// How to measure an all-reduce.
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

}  // namespace nvllm::runtime
