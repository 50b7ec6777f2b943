// What every implementation of Communicator must do. Each function is one test, run by one rank;
// the ranks call it together.
#pragma once

#include <cstdint>

#include "ipc/collective/testing/test_calls.h"

namespace nvllm::ipc::suite {

// How much to do: 1 for a normal run, less under sanitizers, more for a soak (NVLLM_TEST_SCALE).
double scale();

// All operations, types, sizes and alignments, one call at a time.
void single_calls(Rig& rig, std::uint64_t seed, int count, const CallLimits& limits);
// The same enqueued back to back, with ranks that come late.
void back_to_back(Rig& rig, std::uint64_t seed, int batches, int batch, const CallLimits& limits);
// Captured once, replayed with other data, among calls outside of the graph.
void in_a_graph(Rig& rig, std::uint64_t seed, int replays, int batch, const CallLimits& limits);
// Two streams used in turn, ordered by events.
void on_two_streams(Rig& rig, std::uint64_t seed, const CallLimits& limits);
// all_reduce_rms_norm of rows of all kinds of lengths, some rows and more than fit at once.
void fused_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements);
// all_reduce_rms_norm in three calls: the bits of one, of rows of all kinds of lengths, so many
// times one after the other with the residual of the time before.
void overlapped_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements, int rounds);
// The same sum again gives the same bits, on all ranks.
void same_bits(Rig& rig, std::uint64_t seed, std::int64_t elements);
// Wrong arguments are refused with an Error, and nothing is enqueued.
void refuses_wrong_arguments(Rig& rig);
// After abort() by rank 0 everybody's collectives fail with its reason.
void ends_when_aborted(Rig& rig);

}  // namespace nvllm::ipc::suite
