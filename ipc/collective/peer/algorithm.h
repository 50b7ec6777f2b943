// Which algorithm a collective uses over peer memory: one trip or two, decided by a measured table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nvllm::ipc {

enum class Collective {
  all_reduce,
  all_reduce_rms_norm,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
};

enum class Algorithm {
  one_shot,  // one trip
  two_shot,  // two trips: of all_reduce, with rms_norm and without
};

struct OneShotLimit {
  Collective collective;
  int up_to_ranks;
  std::size_t up_to_bytes;
};

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

// Where one_shot is used: up to the largest size measured at which it was still the faster one. For
// up to 4 ranks written by benchmarks/choose_collectives from
// benchmarks/results/2026-11-22-h200-x4-collectives.json. For 8 ranks, which were not measured, the
// limits are scaled by the bytes that a rank sends.
inline constexpr OneShotLimit kOneShotLimits[] = {
    {Collective::all_reduce, 2, 2 * MiB},
    {Collective::all_reduce, 4, 256 * KiB},
    {Collective::all_reduce, 8, 64 * KiB},
    {Collective::all_reduce_rms_norm, 2, 512 * KiB},
    {Collective::all_reduce_rms_norm, 4, 256 * KiB},
    {Collective::all_reduce_rms_norm, 8, 64 * KiB},
};

// For `bytes` of each rank's part. Operations other than all_reduce have only one algorithm:
// one_shot.
inline Algorithm choose_algorithm(Collective collective, int ranks, std::size_t bytes) {
  if (collective != Collective::all_reduce && collective != Collective::all_reduce_rms_norm) {
    return Algorithm::one_shot;
  }
  for (const OneShotLimit& limit : kOneShotLimits) {
    if (limit.collective == collective && ranks <= limit.up_to_ranks) {
      return bytes <= limit.up_to_bytes ? Algorithm::one_shot : Algorithm::two_shot;
    }
  }
  return Algorithm::two_shot;
}

struct GpuCapabilities {
  std::int32_t multiprocessors = 0;
  std::uint32_t hopper = 0;  // 1: runs code for compute capability 9.0

  bool operator==(const GpuCapabilities&) const = default;
};

// What the GPUs of all ranks have. Ranks must take the same algorithm and the same kernels, so they
// choose by this and not by what each has itself.
inline GpuCapabilities common_capabilities(std::span<const GpuCapabilities> ranks) {
  GpuCapabilities common = ranks.front();
  for (const GpuCapabilities& each : ranks) {
    common.multiprocessors = std::min(common.multiprocessors, each.multiprocessors);
    common.hopper = std::min(common.hopper, each.hopper);
  }
  return common;
}

}  // namespace nvllm::ipc
