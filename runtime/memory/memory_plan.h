// Computes how many blocks the KV cache gets, and how long a sequence may be, from the memory that
// is free on every rank's device once weights, runner and communicator exist. All ranks get the
// same number of blocks, limited by the rank on which the fewest fit; blocks may differ in size
// between ranks. Modes that keep blocks in host memory (RankMemory::host_block) get as many as
// --kv-offloading-size holds (default: half of the available memory), provided that the buffers
// which they need on the device also fit.
//
// On GPUs the cache takes the rest of --gpu-memory-utilization after all other allocations, so that
// nothing runs out of memory later. On the CPU, where memory is shared with the whole machine, it
// takes kCpuCacheBytes in total, or a quarter of the available memory if that is less. Neither
// takes more than max_num_seqs sequences of max_model_len tokens need. --kv-cache-memory-bytes
// overrides this.
//
// memory_plan.cc makes the plan, memory_budget.cc knows how many blocks fit, and cache_shares.cc
// how much of the cache the window group and snapshots of states get.
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

inline constexpr std::uint64_t kCpuCacheBytes = std::uint64_t{4} << 30;  // sum over all ranks
// GPU memory that drivers and libraries may still take after our allocations, above all for kernels
// that are loaded at their first launch.
inline constexpr std::uint64_t kGpuReserveBytes = std::uint64_t{256} << 20;

// Memory of one rank, in bytes.
struct RankMemory {
  std::uint64_t total = 0;           // of the device
  std::uint64_t available = 0;       // free now
  std::uint64_t taken = 0;           // by this program's buffers
  std::uint64_t graphs = 0;          // that captured graphs may take later
  std::uint64_t block = 0;           // one block of the cache on the device; more than 0
  std::uint64_t fixed = 0;           // cache memory on the device that does not depend on the
                                     // number of blocks
  std::uint64_t host_block = 0;      // one block in host memory; 0: blocks are not in host memory
  std::uint64_t device_slot = 0;     // one block's slot on the device; 0: there are no slots
  std::uint64_t host_available = 0;  // free host memory, which all ranks share
  // One device block of the window group (kvcache/window_blocks.h); `block` is then one of the
  // other layers. 0: there is one group.
  std::uint64_t window_block = 0;
  // One sequence's states of linear attention (model/decoder.h); 0: there are none.
  std::uint64_t state = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(total, available, taken, graphs, block, fixed, host_block, device_slot, host_available,
            window_block, state);
  }
};

// The options that the engine uses; the mode of the cache determines some of them. Contiguous: one
// sequence at a time, in one block of max_seq_len tokens that is not shared; no swapping. Quest: no
// swapping either. Blocks in host memory: blocks have transfer_block tokens, or the longest
// sequence's if that is less; no swapping, as the blocks are already on the host. Layer-wise: a
// step takes the longest prompt and a row of every other sequence (max_num_batched_tokens then
// limits the rows that a layer processes at a time: RunnerOptions::micro_batch_rows).
EngineOptions resolve_options(EngineOptions options, std::int64_t model_limit);

// The default block size in host memory: an eighth of the longest sequence, as a power of two from
// 256 to 4096 tokens. Smaller blocks are copied more slowly; larger ones waste more memory at the
// end of each sequence, so fewer sequences run at a time.
std::int64_t usual_transfer_block(std::int64_t longest);

struct MemoryPlan {
  std::int64_t blocks = 0;           // on every rank
  std::int64_t host_blocks = 0;      // likewise, for swapping
  std::int64_t device_slots = 0;     // likewise: for blocks that are being filled or stay on the
                                     // device
  std::int64_t resident_blocks = 0;  // maximum number of blocks that stay on the device
  // Blocks of the window group, if there is one; `blocks` and `host_blocks` are of the other
  // layers.
  std::int64_t window_blocks = 0, host_window_blocks = 0;
  // Slots for states of linear attention on every rank: for snapshots, and for swapping.
  std::int64_t state_snapshots = 0, host_states = 0;
  // Whether every block has a permanent slot on the device.
  bool all_resident() const { return device_slots > 0 && resident_blocks == blocks; }
  std::int64_t max_model_len = 0;
  std::int64_t max_num_seqs = 0;   // at most what the option says
  std::int64_t chunked_seqs = 0;   // chunked mode: how many of them may be only partly on the
                                   // device
  std::vector<std::string> notes;  // messages for the user, one line each: what is less than
                                   // requested
};

// Resolves --kv-offload auto. `ranks`: the memory with a paged cache. The result is `off` if
// max_num_seqs sequences of maximum length fit on the device; otherwise a note says why not. If
// only one sequence runs at a time and less than half of it fits: layer-wise, which copies nothing
// twice. Otherwise chunked, where resident blocks are not copied, and a prompt does not block other
// sequences until it is complete; layer-wise if the model's layers cannot be chunked.
KvOffload choose_offload(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                         std::span<const RankMemory> ranks, std::vector<std::string>& notes,
                         std::int64_t window = 0, bool can_be_chunked = true);

// The maximum length that the runner must support: --max-model-len, --max-seq-len or the model's
// limit. An Error if it exceeds that limit.
std::int64_t wanted_model_len(const EngineOptions& options, std::int64_t model_limit);

// options: resolved. ranks: the memory of every rank, in order. window: of the window group, if
// there is one. If not even one sequence of --max-model-len fits, throws an Error of one line that
// says what would.
MemoryPlan plan_memory(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                       std::span<const RankMemory> ranks, std::int64_t window = 0);

// The memory that the KV cache may take on each rank's device and on the host: the arithmetic
// behind plan_memory().

// Block ids have 32 bits.
inline constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

// How many blocks fit, and what limits them: each rank's device or, if blocks are in host memory,
// also that.
class MemoryBudget {
 public:
  MemoryBudget(const EngineOptions& options, DeviceKind device, std::span<const RankMemory> ranks);

  std::int64_t blocks() const { return blocks_; }

  // "1.20 GiB on rank 1 (of 140 GiB, 8 GiB are free, --gpu-memory-utilization is 0.9)"
  std::string describe() const;
  std::string describe_device() const;
  std::string describe_host() const;

  // Options with which this many blocks would fit, for error messages.
  std::string fix(std::int64_t blocks) const;

  // The same for devices alone, including the slots that one sequence fills; empty: it cannot fit.
  std::string more_on_device(std::int64_t blocks) const;

  // Slots that fit beside `blocks` blocks on every rank's device.
  std::int64_t device_slots(std::int64_t blocks) const;

  // Bytes of the blocks where they are limited: on the limiting rank, or in host memory for all
  // ranks.
  std::uint64_t bytes_for(std::int64_t blocks) const;

  // Host memory for `blocks` blocks of all ranks.
  std::uint64_t host_bytes_for(std::int64_t blocks) const;

 private:
  // Chunked mode: slots that a step of one sequence fills.
  std::int64_t slots_to_fill(std::int64_t blocks) const;

  // A mode's own option that could be smaller: "pass a smaller --kv-buffers, or "; empty: none.
  std::string smaller_part() const;

  void consider(std::size_t rank, bool in_host_memory, std::uint64_t blocks);

  // The most that a rank can have, and what it gets.
  std::uint64_t max_bytes(std::size_t rank) const;
  std::uint64_t budget(std::size_t rank) const;

  // A rank's share of memory common to all ranks, proportional to the size of its blocks.
  std::uint64_t share(std::uint64_t bytes, std::size_t rank) const;

  // Host memory: one block of all ranks; free now; usable by all ranks together, and by one.
  std::uint64_t host_blocks_bytes() const;
  std::uint64_t host_available() const;
  std::uint64_t host_budget() const;
  std::uint64_t host_of(std::size_t rank) const;

  void check_requested_bytes() const;

  const EngineOptions& options_;  // must outlive this object, as must the ranks
  DeviceKind device_;
  std::span<const RankMemory> ranks_;
  std::int64_t blocks_ = kMaxBlocks;
  std::size_t limiting_rank_ = 0;  // the rank with the fewest blocks
  bool in_host_memory_ = false;    // host memory is the limit
};

// Chunked mode: chooses how many blocks stay on the device, and how many sequences may run that are
// not entirely there: each of these has one partly filled block there, and steps fill others. plan:
// its blocks are already chosen, of which at most `useful` can be used; the other fields are set
// here. An Error if not even one sequence fits.
void choose_device_slots(const EngineOptions& options, const MemoryBudget& budget,
                         std::int64_t useful, MemoryPlan& plan);

// Divides the memory of a paged cache between two groups of layers: those that keep all tokens, and
// those with a window, which keep only the window (kvcache/window_blocks.h).
//
// One group cannot use memory that the other does not need. Long sequences need many blocks of the
// first group and few of the second; sequences shorter than the window need equally many of both.
// So the window group gets
//   1. at most as much as still lets one sequence of maximum length fit;
//   2. what it needs when as many sequences of that length run as fit at all; or, if that is more,
//   3. windows of max_num_seqs sequences and a step's rows, but not more than half of the memory.
// By 2 and 3 at least half as many of the longest sequences fit as could with any other division;
// and short ones find half of the memory for their windows, or as much as they can use.
//
// Returns the number of blocks of the window group on every rank. options: resolved. window:
// tokens.
std::int64_t choose_window_blocks(const EngineOptions& options, std::int64_t model_limit,
                                  DeviceKind device, std::span<const RankMemory> ranks,
                                  std::int64_t window);

// The ranks' memory with this many blocks of the window group, which count as `fixed`.
std::vector<RankMemory> ranks_beside_windows(std::span<const RankMemory> ranks,
                                             std::int64_t window_blocks);

// Divides the KV cache's memory between blocks and snapshots of linear attention's states
// (kvcache/state_snapshots.h), and the swap space between blocks and states.
//
// A state takes as much memory as the keys and values of hundreds or thousands of tokens, however
// short its prefix is. So by default snapshots take a quarter of the memory, but
//   1. no more than can be used: one per state_snapshot_tokens tokens of all sequences;
//   2. with --max-model-len, no more than leaves room for one sequence of that length.
//
// Returns the number of snapshots on every rank; 0: prefixes cannot be cached. options: resolved.
// An Error if the number that the options request leaves no memory for a block.
std::int64_t choose_state_snapshots(const EngineOptions& options, std::int64_t model_limit,
                                    DeviceKind device, std::span<const RankMemory> ranks);

// The ranks' memory with this many snapshots, which count as `fixed`.
std::vector<RankMemory> ranks_beside_snapshots(std::span<const RankMemory> ranks,
                                               std::int64_t snapshots);

// One line about the snapshots of a model with linear attention and prefix caching.
std::string describe_snapshots(std::span<const RankMemory> ranks, std::int64_t snapshots);

// Number of sequences whose states fit in half of a rank's swap_bytes. 0: the model has no states,
// or the space is too small.
std::int64_t choose_host_states(const EngineOptions& options, std::uint64_t swap_bytes,
                                std::uint64_t largest_state);

}  // namespace nvllm::runtime
