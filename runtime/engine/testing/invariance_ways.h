// The ways in which the tests of invariance run the same requests: configurations of an engine with
// which their answers must have the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/open_model.h"
#include "runtime/options.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

// The requests' lengths are at most these.
inline constexpr std::int64_t kMaxPrompt = 320;  // longer than one segment of attention
inline constexpr std::int64_t kMaxAnswer = 32;
inline constexpr std::int64_t kMaxModelLen = kMaxPrompt + kMaxAnswer;

// Maximum rows of a step. With quantized weights on CPUs, a row's bits are the same in all steps of
// up to 16 rows, and other bits in larger steps (kernels/gemm/cpu/row_invariance_test.cc), except
// with --invariant.
inline constexpr std::int64_t kManyRows = 512, kFewRows = 16;

// One configuration, and how to verify that it took effect.
struct Way {
  std::string name;
  EngineOptions options;
  bool prompts_first = false;  // prompts run once before, so that they are cached
  std::uint64_t SchedulerStatistics::*happened = nullptr;  // this counter must not be 0
  bool loads = false;                                      // keys and values from host memory
  std::string exception = {};  // why its bits differ, which is known and not compared
  int ranks = 1, stages = 1;
};

bool on_gpu();
// Ranks that share a GPU run on it in turn, and a collective takes some milliseconds.
bool ranks_share_gpus();

// rows: maximum per step, here and below. Results are invariant; where they are not so by
// themselves, by --invariant.
EngineOptions usual_options(const OpenModel& model, std::int64_t rows);

// On one rank.
std::vector<Way> all_ways(const OpenModel& model, std::int64_t rows);
// With several ranks, combined with some of the others. The model is tp_invariant.
std::vector<Way> ways_with_ranks(const OpenModel& model, std::int64_t rows);

}  // namespace nvllm::runtime
