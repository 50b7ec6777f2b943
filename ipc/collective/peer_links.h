// What the host gives the kernels of the peer communicator, and what they give back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/group.h"

namespace nvllm::ipc::peer {

// A rank's receive memory: two areas that calls use in turn (peer_protocol.cuh), each so large.
inline constexpr std::size_t kAreaBytes = std::size_t{16} << 20;
inline constexpr int kAreas = 2;

enum class Operation : std::uint32_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
  barrier,
  all_reduce_rms_norm,
};
const char* name_of(Operation operation);

// In device memory; kept by the kernels themselves, so that a captured graph can be replayed.
struct alignas(16) Control {
  std::uint32_t call = 0;    // how many calls were made
  std::uint32_t failed = 0;  // a wait was given up: nothing waits or sends any more
  std::uint32_t padding[2] = {};
  std::uint32_t ticket = 0;     // blocks of the running kernel that know their call's number
  std::uint64_t next_look = 0;  // %globaltimer when somebody may read host memory again
};

// In pinned host memory: what the host tells the kernels (abort) and what they tell it.
struct Report {
  std::uint32_t abort = 0;
  enum State : std::uint32_t { none, timed_out, aborted };
  std::uint32_t state = none;  // written last
  std::uint32_t missing_rank = 0;
  std::uint32_t call = 0;
  Operation operation = Operation::all_reduce;
};

// Passed to each kernel by value.
struct Links {
  int rank = 0;
  int ranks = 1;
  Operation operation = Operation::all_reduce;  // for the report
  void* boxes[kMaxRanks] = {};  // every rank's receive memory, as this process sees it
  Control* control = nullptr;
  Report* report = nullptr;
  std::uint64_t deadline_ns = 0;  // of one wait
  // The same on all ranks, which must choose the same kernels (Abilities in choice.h).
  int multiprocessors = 1;  // that every GPU has
  // Whether kernels may be launched before the previous one has ended, and in clusters.
  std::uint32_t hopper = 0;
};

}  // namespace nvllm::ipc::peer
