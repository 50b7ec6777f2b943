// Tests for every implementation of Communicator. Each function is one test, which all ranks run
// together.
#pragma once

#include <cstdint>

#include "ipc/collective/testing/test_calls.h"

namespace nvllm::ipc::suite {

// Scales the number of calls: 1 for a normal run, less under sanitizers, more for a soak
// (NVLLM_TEST_SCALE).
double scale();

// All operations, types, sizes and alignments, one call at a time.
void single_calls(Rig& rig, std::uint64_t seed, int count, const CallLimits& limits);
// The same calls enqueued back to back, with late ranks.
void back_to_back(Rig& rig, std::uint64_t seed, int batches, int batch, const CallLimits& limits);
// Captured once, replayed with other data, among calls outside of the graph.
void in_a_graph(Rig& rig, std::uint64_t seed, int replays, int batch, const CallLimits& limits);
// Two streams used alternately, ordered by events.
void on_two_streams(Rig& rig, std::uint64_t seed, const CallLimits& limits);
// all_reduce_rms_norm with all kinds of row lengths, with few rows and with more than fit at once.
void fused_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements);
// all_reduce_rms_norm in three calls yields the same bits as in one call, for all kinds of row
// lengths, `rounds` times in succession with the residual of the previous round.
void overlapped_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements, int rounds);
// Repeating a sum gives the same bits, on all ranks.
void same_bits(Rig& rig, std::uint64_t seed, std::int64_t elements);
// Invalid arguments are rejected with an Error, and nothing is enqueued.
void refuses_wrong_arguments(Rig& rig);
// After abort() by rank 0, collectives on all ranks fail with its reason.
void ends_when_aborted(Rig& rig);

}  // namespace nvllm::ipc::suite
