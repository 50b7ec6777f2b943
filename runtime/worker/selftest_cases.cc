#include "runtime/worker/selftest_cases.h"

#include <cmath>

#include "base/math.h"
#include "base/text.h"

namespace nvllm::runtime {

std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  const auto* byte = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3;
  return hash;
}

float rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8f;
    case DType::f16: return 0x1p-11f;
    default: return 0x1p-24f;
  }
}

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16: return to_float(from_float<Bf16>(value));
    case DType::f16: return to_float(from_float<F16>(value));
    default: return value;
  }
}

std::vector<float> values_for(const CollectiveCase& which, std::uint64_t purpose,
                              std::int64_t count) {
  const std::uint64_t stream = split_mix(split_mix(which.seed) + purpose);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t random = split_mix(stream + i);
    values[i] = which.whole_numbers
                    ? static_cast<float>(static_cast<int>(random % 17) - 8)
                    : round_to(which.dtype,
                               static_cast<float>(static_cast<std::int64_t>(random)) * 0x1p-63f);
  }
  return values;
}

std::vector<float> input_of(const CollectiveCase& which, int rank) {
  // For operations that scatter, each rank's input has a part for every rank; see SelftestRank.
  return values_for(which, static_cast<std::uint64_t>(rank), which.elements);
}

namespace {

// The sum over the ranks in rank order, of the elements from `begin` on.
Expectation sum_of_inputs(const CollectiveCase& which, int ranks) {
  const auto count = static_cast<std::size_t>(which.elements);
  Expectation sum{std::vector<float>(count), std::vector<float>(which.whole_numbers ? 0 : count)};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> input = input_of(which, rank);
    for (std::size_t i = 0; i < count; ++i) {
      sum.values[i] += input[i];
      if (!which.whole_numbers) sum.magnitude[i] += std::fabs(input[i]);
    }
  }
  return sum;
}

Expectation slice(const Expectation& whole, int part, int parts) {
  const auto length = static_cast<std::ptrdiff_t>(whole.values.size()) / parts;
  const auto cut = [&](const std::vector<float>& from) {
    if (from.empty()) return from;
    return std::vector<float>(from.begin() + part * length, from.begin() + (part + 1) * length);
  };
  return {cut(whole.values), cut(whole.magnitude)};
}

Expectation concatenation(const CollectiveCase& which, int ranks) {
  Expectation all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> input = input_of(which, rank);
    all.values.insert(all.values.end(), input.begin(), input.end());
  }
  return all;
}

}  // namespace

Expectation expected_of(const CollectiveCase& which, int rank, int ranks) {
  switch (which.operation) {
    case Operation::all_reduce:
    case Operation::all_reduce_rms_norm: return sum_of_inputs(which, ranks);
    case Operation::reduce_scatter: return slice(sum_of_inputs(which, ranks), rank, ranks);
    case Operation::all_gather: return concatenation(which, ranks);
    case Operation::gather: return rank == which.root ? concatenation(which, ranks) : Expectation{};
    case Operation::broadcast: return {input_of(which, which.root), {}};
  }
  return {};
}

std::string compare(const CollectiveCase& which, int ranks, const Expectation& expected,
                    const std::vector<float>& got) {
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    // Each of ranks - 1 additions, and the last rounding, may be off by one unit of the partial
    // sum.
    const float allowed =
        expected.magnitude.empty()
            ? 0
            : static_cast<float>(ranks) * rounding_unit(which.dtype) * expected.magnitude[i];
    const float want = expected.values[i];
    if (std::fabs(got[i] - want) <= allowed) continue;  // false for a NaN
    return str("element ", i, " is ", got[i], ", not ", want);
  }
  return {};
}

}  // namespace nvllm::runtime
