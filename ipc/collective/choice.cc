#include "ipc/collective/choice.h"

#include <cstddef>

namespace nvllm::ipc {
namespace {

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

struct Row {
  Collective collective;
  int up_to_ranks;
  std::size_t up_to_bytes;
  Method method;
};

// The first row that fits counts. For up to 4 ranks written by benchmarks/choose_collectives from
// benchmarks/results/2026-11-21-h200-x4.json; limits are the largest sizes measured where the method
// still won there. For 8 ranks, which were not measured, the one-shot limits are scaled by the
// bytes that a rank sends.
constexpr Row kTable[] = {
    {Collective::all_reduce, 2, 2 * MiB, Method::one_shot},
    {Collective::all_reduce, 2, 64 * MiB, Method::two_shot},
    {Collective::all_reduce, 4, 256 * KiB, Method::one_shot},
    {Collective::all_reduce, 4, 32 * MiB, Method::two_shot},
    {Collective::all_reduce, 8, 64 * KiB, Method::one_shot},
    {Collective::all_reduce, 8, 4 * MiB, Method::two_shot},
    {Collective::all_reduce_rms_norm, 2, 2 * MiB, Method::one_shot},
    {Collective::all_reduce_rms_norm, 2, 64 * MiB, Method::two_shot},
    {Collective::all_reduce_rms_norm, 4, 512 * KiB, Method::one_shot},
    {Collective::all_reduce_rms_norm, 4, 32 * MiB, Method::two_shot},
    {Collective::all_reduce_rms_norm, 8, 64 * KiB, Method::one_shot},
    {Collective::all_reduce_rms_norm, 8, 4 * MiB, Method::two_shot},
    {Collective::reduce_scatter, 2, 4 * MiB, Method::one_shot},
    {Collective::reduce_scatter, 4, 2 * MiB, Method::one_shot},
    {Collective::reduce_scatter, 8, 256 * KiB, Method::one_shot},
    {Collective::all_gather, 2, 4 * MiB, Method::one_shot},
    {Collective::all_gather, 4, 2 * MiB, Method::one_shot},
    {Collective::all_gather, 8, 256 * KiB, Method::one_shot},
    {Collective::gather, 2, 2 * MiB, Method::one_shot},
    {Collective::gather, 4, 512 * KiB, Method::one_shot},
    {Collective::gather, 8, 128 * KiB, Method::one_shot},
    {Collective::broadcast, 2, 2 * MiB, Method::one_shot},
    {Collective::broadcast, 4, 256 * KiB, Method::one_shot},
    {Collective::broadcast, 8, 64 * KiB, Method::one_shot},
};

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
    case Method::nccl: return "nccl";
  }
  return "?";
}

Method choose(Collective collective, int ranks, std::size_t bytes) {
  for (const Row& row : kTable) {
    if (row.collective == collective && ranks <= row.up_to_ranks && bytes <= row.up_to_bytes) {
      return row.method;
    }
  }
  return Method::nccl;
}

Method choose_peer(Collective collective, int ranks, std::size_t bytes) {
  const Method method = choose(collective, ranks, bytes);
  if (method != Method::nccl) return method;
  const bool reduces =
      collective == Collective::all_reduce || collective == Collective::all_reduce_rms_norm;
  return reduces ? Method::two_shot : Method::one_shot;
}

}  // namespace nvllm::ipc
