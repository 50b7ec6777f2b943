// What the KV cache may take of each rank's device and of the host: the arithmetic that plan_memory() goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "device/backend.h"
#include "runtime/engine_options.h"
#include "runtime/memory_plan.h"

namespace nvllm::runtime {

// A block's number has 32 bits.
inline constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

// How many blocks there can be, and why not more: of each rank's device, and, where blocks lie in host
// memory, of that.
class MemoryBudget {
 public:
  MemoryBudget(const EngineOptions& options, DeviceKind device, std::span<const RankMemory> ranks);

  std::int64_t blocks() const { return blocks_; }

  // "1.20 GiB on rank 1 (of 140 GiB, 8 GiB are free, --gpu-memory-utilization is 0.9)"
  std::string describe() const;
  std::string describe_device() const;
  std::string describe_host() const;

  // What gives room for so many blocks.
  std::string mend(std::int64_t blocks) const;

  // The same of the devices alone, with the slots that one sequence fills; empty: they have no room for it.
  std::string more_on_device(std::int64_t blocks) const;

  // That fit beside so many blocks on every rank's device.
  std::int64_t device_slots(std::int64_t blocks) const;

  // On the poorest rank, or of all of them in host memory: where the blocks are bounded.
  std::uint64_t bytes_for(std::int64_t blocks) const;

  // Of host memory, for so many blocks of all ranks.
  std::uint64_t host_bytes_for(std::int64_t blocks) const;

 private:
  // Chunked: what a step of one sequence fills.
  std::int64_t slots_to_fill(std::int64_t blocks) const;

  // What of a mode's own may be less: "pass a smaller --kv-buffers, or "; empty: nothing.
  std::string smaller_part() const;

  void consider(std::size_t rank, bool in_host_memory, std::uint64_t blocks);

  // What a rank may have at all, and what it is to have.
  std::uint64_t most(std::size_t rank) const;
  std::uint64_t of(std::size_t rank) const;

  // A rank's part of memory that all share, by the size of its blocks.
  std::uint64_t share(std::uint64_t bytes, std::size_t rank) const;

  // Host memory: of one block of all ranks; available now; to be used by all of them, and by one.
  std::uint64_t host_blocks_bytes() const;
  std::uint64_t host_available() const;
  std::uint64_t host_budget() const;
  std::uint64_t host_of(std::size_t rank) const;

  void check_wish() const;

  const EngineOptions& options_;  // outlive it, as the ranks do
  DeviceKind device_;
  std::span<const RankMemory> ranks_;
  std::int64_t blocks_ = kMostBlocks;
  std::size_t poorest_ = 0;      // the rank that has no room for more
  bool in_host_memory_ = false;  // or: the host's memory has none
};

}  // namespace nvllm::runtime
