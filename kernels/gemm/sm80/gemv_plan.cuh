// Plans a GEMV: which instance of its kernel, and the share of outputs per block.
#pragma once

#include <algorithm>
#include <cmath>

namespace nvllm::kernels::cuda {

inline constexpr int kGemvTileOutputs = 8;
inline constexpr int kGemvSliceBytes = 64;  // of an output's weights, loaded by four lanes at once

constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// Parameters of the kernel.
struct GemvInstance {
  int tiles, slices, warps, blocks;
};

struct GemvPlan {
  int share = 0;                   // outputs per block
  bool all_run = false;            // all blocks run at once
  bool loads_all_at_once = false;  // and load the whole weight at once
  double efficiency = -1;          // estimated share of the bandwidth

  bool better_than(const GemvPlan& other) const { return efficiency > other.efficiency + 0.005; }
};

// Constants of the estimate, fitted to measurements of 13 shapes on an H200.
inline constexpr double kBytesInFlight =
    72 << 10;  // per multiprocessor, enough to hide the memory latency
inline constexpr double kStartRounds = 0.3;  // the cost of starting a block, in rounds
inline constexpr int kManyWaves = 3;         // of blocks: from here on the tail is negligible

// A number of outputs per block that gives multiprocessors about equally many: at least min_share,
// and otherwise more than half of max_share.
inline int balanced_share(int outputs, int max_share, int min_share, int multiprocessors) {
  if (ceil_div(outputs, max_share) > 4 * multiprocessors) return max_share;
  int best = max_share, min_outputs = outputs + max_share;
  for (int share = max_share; share >= min_share; --share) {
    const int busiest = ceil_div(ceil_div(outputs, share), multiprocessors) * share;
    if (busiest < min_outputs) min_outputs = busiest, best = share;
  }
  return best;
}

// A GEMM as plans see it. gated: `outputs`, like shares, counts gate rows, each paired with an up
// row.
struct GemvProblem {
  int outputs = 0, inputs = 0;
  bool gated = false;
  int slice_inputs = 0;  // with kGemvSliceBytes of weights
};

inline GemvPlan plan_gemv(const GemvInstance& instance, const GemvProblem& gemm,
                          int multiprocessors) {
  const int outputs = gemm.outputs;
  const int slices = ceil_div(gemm.inputs, gemm.slice_inputs);
  const int in_a_round = instance.slices * instance.warps;
  const int rounds = ceil_div(slices, in_a_round);
  const double filled = static_cast<double>(slices) / (rounds * in_a_round);
  const int width = gemm.gated ? 2 : 1;
  const int max_share = instance.tiles * kGemvTileOutputs / width;
  const int resident_blocks = instance.blocks * multiprocessors;
  if (rounds == 1 && ceil_div(outputs, max_share) <= resident_blocks) {
    return {max_share, true, true, filled};
  }
  GemvPlan plan;
  plan.share = balanced_share(outputs, max_share, max_share / 2 + 1, multiprocessors);
  const int blocks = ceil_div(outputs, plan.share);
  plan.all_run = blocks <= resident_blocks;
  const int at_once = plan.all_run ? multiprocessors : resident_blocks;
  const bool many = blocks > kManyWaves * resident_blocks;
  const double spread =
      many ? 1.0 : static_cast<double>(blocks) / (ceil_div(blocks, at_once) * at_once);
  const double started = many ? 1.0 : rounds / (rounds + kStartRounds);
  const int neighbours = std::min(instance.blocks, ceil_div(blocks, multiprocessors));
  const double in_flight =
      static_cast<double>(neighbours) * in_a_round * plan.share * width * kGemvSliceBytes;
  plan.efficiency =
      filled * spread * started * std::sqrt(std::min(1.0, in_flight / kBytesInFlight));
  return plan;
}

// Instances of a kernel. `plan_of` is called with each one's `value`; among equally good plans the
// first instance wins.
template <typename First, typename... Others>
struct GemvChoice {
  template <typename PlanOf>
  static auto best_of(const PlanOf& plan_of, int* which) {
    decltype(plan_of(First::value)) best;
    int index = 0;
    const auto consider = [&](const auto& instance) {
      const auto plan = plan_of(instance);
      if (plan.better_than(best)) best = plan, *which = index;
      ++index;
    };
    consider(First::value);
    (consider(Others::value), ...);
    return best;
  }

  // Calls function(instance) with instance number `which`.
  template <typename Function>
  static void with(int which, Function&& function) {
    int index = 0;
    if (index++ == which) function(First{});
    ((index++ == which ? function(Others{}) : void()), ...);
  }
};

}  // namespace nvllm::kernels::cuda
