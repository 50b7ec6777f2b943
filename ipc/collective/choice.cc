#include "ipc/collective/choice.h"

#include <algorithm>
#include <cstddef>

namespace nvllm::ipc {
namespace {

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

struct Row {
  Collective collective;
  int up_to_ranks;
  std::size_t up_to_bytes;
};

// Where one_shot is used: up to the largest size measured at which it still won. For up to 4 ranks written by
// benchmarks/choose_collectives from benchmarks/results/2026-11-22-h200-x4-collectives.json. For 8 ranks,
// which were not measured, the limits are scaled by the bytes that a rank sends.
constexpr Row kOneShot[] = {
    {Collective::all_reduce, 2, 2 * MiB},
    {Collective::all_reduce, 4, 256 * KiB},
    {Collective::all_reduce, 8, 64 * KiB},
    {Collective::all_reduce_rms_norm, 2, 512 * KiB},
    {Collective::all_reduce_rms_norm, 4, 256 * KiB},
    {Collective::all_reduce_rms_norm, 8, 64 * KiB},
};

bool has_two_ways(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::all_reduce_rms_norm;
}

}  // namespace

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::all_reduce_rms_norm: return "all_reduce_rms_norm";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::gather: return "gather";
    case Collective::broadcast: return "broadcast";
  }
  return "?";
}

const char* name_of(Method method) {
  switch (method) {
    case Method::one_shot: return "one_shot";
    case Method::two_shot: return "two_shot";
  }
  return "?";
}

Method choose(Collective collective, int ranks, std::size_t bytes) {
  if (!has_two_ways(collective)) return Method::one_shot;
  for (const Row& row : kOneShot) {
    if (row.collective == collective && ranks <= row.up_to_ranks) {
      return bytes <= row.up_to_bytes ? Method::one_shot : Method::two_shot;
    }
  }
  return Method::two_shot;
}

Abilities common_to(std::span<const Abilities> ranks) {
  Abilities common = ranks.front();
  for (const Abilities& each : ranks) {
    common.multiprocessors = std::min(common.multiprocessors, each.multiprocessors);
    common.hopper = std::min(common.hopper, each.hopper);
  }
  return common;
}

}  // namespace nvllm::ipc
