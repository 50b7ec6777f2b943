#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "kvcache/chunked/device_slots.h"
#include "runtime/memory/memory_plan.h"

namespace nvllm::runtime {
namespace {

// Upper limit of the memory that CUDA and its libraries (contexts, NCCL, cuBLAS) take in a process
// outside our accounting. Anything above it on a GPU belongs to other programs.
constexpr std::uint64_t kMaxOverhead = std::uint64_t{2} << 30;

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

std::uint64_t times(std::int64_t count, std::uint64_t bytes) {
  return static_cast<std::uint64_t>(count) * bytes;
}

std::uint64_t gib_up(std::uint64_t bytes) {
  return divide_up(bytes, std::uint64_t{1} << 30);
}

}  // namespace

MemoryBudget::MemoryBudget(const EngineOptions& options, DeviceKind device,
                           std::span<const RankMemory> ranks)
    : options_(options), device_(device), ranks_(ranks) {
  if (options.kv_cache_memory_bytes) check_requested_bytes();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    NVLLM_CHECK(ranks[rank].block > 0, "rank ", rank);
    consider(rank, false, minus(budget(rank), ranks[rank].fixed) / ranks[rank].block);
    if (ranks[rank].host_block == 0) continue;
    consider(rank, true, host_of(rank) / ranks[rank].host_block);
  }
}

std::string MemoryBudget::describe() const {
  return in_host_memory_ ? describe_host() : describe_device();
}

std::string MemoryBudget::describe_device() const {
  const std::string what = str(format_bytes(budget(limiting_rank_)), " on rank ", limiting_rank_);
  if (options_.kv_cache_memory_bytes) return str(what, " (--kv-cache-memory-bytes)");
  const RankMemory& rank = ranks_[limiting_rank_];
  if (device_ == DeviceKind::cpu) {
    return str(what, " (", format_bytes(rank.available), " of memory are available)");
  }
  return str(what, " (of ", format_bytes(rank.total), ", ", format_bytes(rank.available),
             " are free, --gpu-memory-utilization is ", options_.gpu_memory_utilization, ")");
}

std::string MemoryBudget::fix(std::int64_t blocks) const {
  if (in_host_memory_) {
    const std::uint64_t all = times(blocks, host_blocks_bytes());
    if (all <= host_available()) return str("pass --kv-offloading-size ", gib_up(all));
    return "use a machine with more of it";
  }
  if (const std::string more = more_on_device(blocks); !more.empty()) return more;
  return smaller_part() + (device_ == DeviceKind::cpu ? "free memory" : "use more GPUs (--tp)");
}

std::string MemoryBudget::more_on_device(std::int64_t blocks) const {
  const std::int64_t slots = slots_to_fill(blocks);
  std::uint64_t bytes = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankMemory& own = ranks_[rank];
    const std::uint64_t needed =
        own.fixed + times(blocks, own.block) + times(slots, own.device_slot);
    if (needed > max_bytes(rank)) return "";
    bytes = std::max(bytes, needed);
  }
  return str("pass --kv-cache-memory-bytes ", bytes);
}

std::int64_t MemoryBudget::device_slots(std::int64_t blocks) const {
  std::uint64_t slots = kMaxBlocks;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankMemory& own = ranks_[rank];
    if (own.device_slot == 0) continue;  // it has no KV heads
    slots = std::min(slots,
                     minus(budget(rank), own.fixed + times(blocks, own.block)) / own.device_slot);
  }
  return static_cast<std::int64_t>(slots);
}

std::uint64_t MemoryBudget::bytes_for(std::int64_t blocks) const {
  if (in_host_memory_) return times(blocks, host_blocks_bytes());
  return ranks_[limiting_rank_].fixed + times(blocks, ranks_[limiting_rank_].block);
}

std::uint64_t MemoryBudget::host_bytes_for(std::int64_t blocks) const {
  return times(blocks, host_blocks_bytes());
}

std::string MemoryBudget::describe_host() const {
  const std::uint64_t available = host_available();
  if (options_.kv_offloading_bytes) {
    return str(format_bytes(host_budget()), " of host memory (--kv-offloading-size)");
  }
  return str(format_bytes(host_budget()), " of host memory (half of the ", format_bytes(available),
             " that are available)");
}

std::int64_t MemoryBudget::slots_to_fill(std::int64_t blocks) const {
  if (options_.kv_mode() != KvMode::chunked) return 0;
  const std::int64_t rows = std::max(options_.max_num_batched_tokens, options_.max_num_seqs);
  return std::min(kvcache::max_write_slots(1, rows, options_.block_size), blocks);
}

std::string MemoryBudget::smaller_part() const {
  switch (options_.kv_mode()) {
    case KvMode::layerwise:
      return options_.kv_buffers > 2 ? "pass a smaller --kv-buffers, or " : "";
    case KvMode::chunked:
      return options_.ring_slots > 2 ? "pass a smaller --ring-slots or --transfer-block, or "
                                     : "pass a smaller --transfer-block, or ";
    case KvMode::paged:
    case KvMode::contiguous: break;
  }
  return "";
}

void MemoryBudget::consider(std::size_t rank, bool in_host_memory, std::uint64_t blocks) {
  if (blocks >= static_cast<std::uint64_t>(blocks_)) return;
  blocks_ = static_cast<std::int64_t>(blocks);
  limiting_rank_ = rank;
  in_host_memory_ = in_host_memory;
}

std::uint64_t MemoryBudget::max_bytes(std::size_t rank) const {
  const RankMemory& own = ranks_[rank];
  if (device_ == DeviceKind::cpu) return share(own.available, rank);
  return minus(own.available, own.graphs + kGpuReserveBytes);
}

std::uint64_t MemoryBudget::budget(std::size_t rank) const {
  if (options_.kv_cache_memory_bytes) {
    return static_cast<std::uint64_t>(*options_.kv_cache_memory_bytes);
  }
  const RankMemory& own = ranks_[rank];
  if (device_ == DeviceKind::cpu) {
    return share(std::min(kCpuCacheBytes, own.available / 4), rank);
  }
  const auto ours =
      static_cast<std::uint64_t>(static_cast<double>(own.total) * options_.gpu_memory_utilization);
  const std::uint64_t unknown = minus(own.total, own.available + own.taken);
  const std::uint64_t overhead = std::min(unknown, kMaxOverhead);
  return std::min(minus(ours, own.taken + overhead + own.graphs), max_bytes(rank));
}

std::uint64_t MemoryBudget::share(std::uint64_t bytes, std::size_t rank) const {
  std::uint64_t all = 0;
  for (const RankMemory& each : ranks_) all += each.block;
  return bytes / all * ranks_[rank].block;
}

std::uint64_t MemoryBudget::host_blocks_bytes() const {
  std::uint64_t all = 0;
  for (const RankMemory& each : ranks_) all += each.host_block;
  return all;
}

std::uint64_t MemoryBudget::host_available() const {
  std::uint64_t min = std::numeric_limits<std::uint64_t>::max();
  for (const RankMemory& each : ranks_) min = std::min(min, each.host_available);
  return min;
}

std::uint64_t MemoryBudget::host_budget() const {
  if (options_.kv_offloading_bytes) {
    return static_cast<std::uint64_t>(*options_.kv_offloading_bytes);
  }
  return host_available() / 2;
}

std::uint64_t MemoryBudget::host_of(std::size_t rank) const {
  return host_budget() / host_blocks_bytes() * ranks_[rank].host_block;
}

// All ranks get the same number of blocks, limited by the ranks with the largest blocks. So a rank
// with smaller blocks (without KV heads, if there are more ranks than KV heads) takes less memory
// than requested.
void MemoryBudget::check_requested_bytes() const {
  const auto requested = static_cast<std::uint64_t>(*options_.kv_cache_memory_bytes);
  const auto blocks_in = [](const RankMemory& rank, std::uint64_t bytes) {
    return minus(bytes, rank.fixed) / std::max<std::uint64_t>(rank.block, 1);
  };
  const auto bytes_of = [](const RankMemory& rank, std::uint64_t blocks) {
    return rank.fixed + blocks * rank.block;
  };
  std::uint64_t blocks = std::numeric_limits<std::uint64_t>::max();
  for (const RankMemory& rank : ranks_) blocks = std::min(blocks, blocks_in(rank, requested));
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankMemory& own = ranks_[rank];
    const bool takes_all = own.device_slot > 0 || blocks == blocks_in(own, requested);
    const std::uint64_t taken = takes_all ? requested : bytes_of(own, blocks);
    if (taken <= max_bytes(rank)) continue;
    std::uint64_t fitting = max_bytes(rank);  // of the ranks that take all that is requested
    for (const RankMemory& each : ranks_) {
      if (!takes_all) fitting = std::max(fitting, bytes_of(each, blocks_in(own, max_bytes(rank))));
    }
    fail("--kv-cache-memory-bytes ", requested, ": rank ", rank, " has ",
         format_bytes(max_bytes(rank)), " left for its cache; pass ", fitting, " or less");
  }
}

}  // namespace nvllm::runtime
