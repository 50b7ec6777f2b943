// The values that a selftest's collectives work on: functions of a seed, so that every rank can
// compute what the others hold, and what must come out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/selftest_messages.h"

namespace nvllm::runtime {

// A hash of bytes, for comparing results of different ranks.
std::uint64_t hash_bytes(const void* data, std::size_t bytes);

// What rank `rank` puts into the collective: whole numbers from -8 to 8, or fractions between -1
// and 1, rounded to the case's type.
std::vector<float> input_of(const CollectiveCase& which, int rank);

// The same kind of values for another purpose of the same case (weights, residuals).
std::vector<float> values_for(const CollectiveCase& which, std::uint64_t purpose,
                              std::int64_t count);

struct Expectation {
  std::vector<float> values;     // before rounding to the case's type
  std::vector<float> magnitude;  // sums of absolute values; empty: the result is exact
};

// What rank `rank` gets out of the collective (all but all_reduce_rms_norm); on ranks that get
// nothing, nothing.
Expectation expected_of(const CollectiveCase& which, int rank, int ranks);

// Compares; empty if all is well, else a description of the first wrong element.
std::string compare(const CollectiveCase& which, int ranks, const Expectation& expected,
                    const std::vector<float>& got);

// Half the distance between neighbouring values at 1: 2^-24, 2^-8, 2^-11.
float rounding_unit(DType dtype);
float round_to(DType dtype, float value);

}  // namespace nvllm::runtime
