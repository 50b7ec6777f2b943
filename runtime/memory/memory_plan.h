// How many blocks the KV cache gets, and how long a sequence may be: arithmetic on what every
// rank's device has left once weights, runner and communicator exist. All ranks get the same number
// of blocks, as many as the rank with the least room can have; their blocks may differ in size.
// Modes that keep blocks in host memory (RankMemory::host_block) get as many as
// --kv-offloading-size holds, by default half of the memory that is available, if what they need on
// the device fits there, too.
//
// On GPUs the cache takes what --gpu-memory-utilization leaves beside all else, so that nothing can
// run out later. On the CPU, whose memory is the whole machine's, it takes kCpuCacheBytes in all,
// or a quarter of what is available if that is less. Neither takes more than max_num_seqs sequences
// of max_model_len tokens need. --kv-cache-memory-bytes is taken as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "runtime/options.h"

namespace nvllm::runtime {

inline constexpr std::uint64_t kCpuCacheBytes = std::uint64_t{4} << 30;  // of all ranks together
// What drivers and libraries may still take on a GPU when everything of ours exists: kernels that
// are loaded at their first launch, above all.
inline constexpr std::uint64_t kGpuReserveBytes = std::uint64_t{256} << 20;

// Of one rank, in bytes.
struct RankMemory {
  std::uint64_t total = 0;           // of the device
  std::uint64_t available = 0;       // now
  std::uint64_t taken = 0;           // by this program's buffers
  std::uint64_t graphs = 0;          // that graphs may take later
  std::uint64_t block = 0;           // of one block of the cache, on the device; more than 0
  std::uint64_t fixed = 0;           // of the cache, on the device, however many blocks it has
  std::uint64_t host_block = 0;      // of one block, in host memory; 0: there are none
  std::uint64_t device_slot = 0;     // of a whole block's slot, on the device; 0: there are none
  std::uint64_t host_available = 0;  // the machine's, which all ranks share
  // Of one block of the group of layers with a window (kvcache/window_blocks.h), on the device;
  // `block` is then of the other layers. 0: there is one group.
  std::uint64_t window_block = 0;
  // Of the states that linear attention keeps of a sequence (model/decoder.h); 0: there are none.
  std::uint64_t state = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(total, available, taken, graphs, block, fixed, host_block, device_slot, host_available,
            window_block, state);
  }
};

// The options that the engine goes by: the mode of the cache decides some of them itself.
// Contiguous: one sequence at a time, in one block of max_seq_len tokens that is not shared;
// nothing is swapped. With Quest nothing is swapped either. Host memory: blocks of transfer_block
// tokens, or of the longest sequence if that is less; nothing is swapped, as the blocks are on the
// host. Layer-wise: a step has room for the longest prompt and a row of every other sequence
// (max_num_batched_tokens then says how many rows a layer takes at a time, which is in
// RunnerOptions::part_rows).
EngineOptions resolve_options(EngineOptions options, std::int64_t model_limit);

// An eighth of the longest sequence, as a power of two from 256 to 4096 tokens: smaller blocks move
// more slowly, larger ones leave more memory empty behind each sequence, and fewer sequences run at
// a time.
std::int64_t usual_transfer_block(std::int64_t longest);

struct MemoryPlan {
  std::int64_t blocks = 0;           // of every rank
  std::int64_t host_blocks = 0;      // likewise, to swap sequences to
  std::int64_t device_slots = 0;     // likewise: for blocks that are filled, or stay on the device
  std::int64_t resident_blocks = 0;  // so many may stay
  // Of the group of layers with a window, if there is one; the others are of all other layers.
  std::int64_t window_blocks = 0, host_window_blocks = 0;
  // Of every rank: places for states of linear attention, for snapshots and to swap to.
  std::int64_t state_snapshots = 0, host_states = 0;
  // Every block has a slot on the device, for good.
  bool all_resident() const { return device_slots > 0 && resident_blocks == blocks; }
  std::int64_t max_model_len = 0;
  std::int64_t max_num_seqs = 0;   // no more than the option says
  std::int64_t chunked_seqs = 0;   // of these, that do not stay on the device whole; chunked
  std::vector<std::string> notes;  // for people, one line each: what became less than requested
};

// --kv-offload auto: what it comes to. `ranks`: as a paged cache would take it. Off if all
// sequences that may run at a time can be as long as one may be, and still be on the device; else a
// note says why not. One sequence at a time of which less than half can stay there: layer-wise,
// which moves nothing twice. Else chunked, where what stays does not move, and a prompt does not
// hold others up for as long as it takes.
KvOffload choose_offload(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                         std::span<const RankMemory> ranks, std::vector<std::string>& notes,
                         std::int64_t window = 0);

// The length that a runner has to be made for: --max-model-len, --max-seq-len or the model's limit.
// An Error if it is more than that limit.
std::int64_t wanted_model_len(const EngineOptions& options, std::int64_t model_limit);

// options: resolved. ranks: of every rank, in their order. window: of the group of layers that have
// one, if there is such a group. An Error, one line that says what would fit, if not even one
// sequence of --max-model-len does.
MemoryPlan plan_memory(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                       std::span<const RankMemory> ranks, std::int64_t window = 0);

// What the KV cache may take of each rank's device and of the host: the arithmetic that
// plan_memory() goes by.

// A block's number has 32 bits.
inline constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

// How many blocks there can be, and why not more: of each rank's device, and, where blocks lie in
// host memory, of that.
class MemoryBudget {
 public:
  MemoryBudget(const EngineOptions& options, DeviceKind device, std::span<const RankMemory> ranks);

  std::int64_t blocks() const { return blocks_; }

  // "1.20 GiB on rank 1 (of 140 GiB, 8 GiB are free, --gpu-memory-utilization is 0.9)"
  std::string describe() const;
  std::string describe_device() const;
  std::string describe_host() const;

  // What gives room for so many blocks.
  std::string fix(std::int64_t blocks) const;

  // The same of the devices alone, with the slots that one sequence fills; empty: they have no room
  // for it.
  std::string more_on_device(std::int64_t blocks) const;

  // That fit beside so many blocks on every rank's device.
  std::int64_t device_slots(std::int64_t blocks) const;

  // On the limiting rank, or of all of them in host memory: where the blocks are bounded.
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
  std::uint64_t max_bytes(std::size_t rank) const;
  std::uint64_t budget(std::size_t rank) const;

  // A rank's part of memory that all share, by the size of its blocks.
  std::uint64_t share(std::uint64_t bytes, std::size_t rank) const;

  // Host memory: of one block of all ranks; available now; to be used by all of them, and by one.
  std::uint64_t host_blocks_bytes() const;
  std::uint64_t host_available() const;
  std::uint64_t host_budget() const;
  std::uint64_t host_of(std::size_t rank) const;

  void check_requested_bytes() const;

  const EngineOptions& options_;  // outlive it, as the ranks do
  DeviceKind device_;
  std::span<const RankMemory> ranks_;
  std::int64_t blocks_ = kMaxBlocks;
  std::size_t limiting_rank_ = 0;  // the rank that has no room for more
  bool in_host_memory_ = false;    // or: the host's memory has none
};

// Chunked: how many blocks stay on the device, and how many sequences may run that do not stay
// there whole: each of these has a block there that is not full, and steps fill others. plan: has
// its blocks, of which no more than `useful` would be of use; it gets the rest. An Error if one
// sequence does not fit.
void choose_device_slots(const EngineOptions& options, const MemoryBudget& budget,
                         std::int64_t useful, MemoryPlan& plan);

}  // namespace nvllm::runtime
