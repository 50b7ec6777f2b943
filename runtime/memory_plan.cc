#include "runtime/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::runtime {
namespace {

// What CUDA and its libraries take in a process that our ledger does not know: contexts, NCCL, cuBLAS. More
// than this on a GPU is somebody else's.
constexpr std::uint64_t kMostOverhead = std::uint64_t{2} << 30;

constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

// Which memory there is for the cache, and why not more.
class Budget {
 public:
  Budget(const EngineOptions& options, DeviceKind device, std::span<const RankMemory> ranks)
      : options_(options), device_(device), ranks_(ranks) {
    if (options.kv_cache_memory_bytes) check_wish();
    blocks_ = kMostBlocks;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      NVLLM_CHECK(ranks[rank].block > 0, "rank ", rank);
      const auto blocks = static_cast<std::int64_t>(
          std::min<std::uint64_t>(of(rank) / ranks[rank].block, kMostBlocks));
      if (blocks < blocks_) blocks_ = blocks, poorest_ = rank;
    }
  }

  std::int64_t blocks() const { return blocks_; }

  // "1.20 GiB on rank 1 (of 140 GiB, 8 GiB are free, --gpu-memory-utilization is 0.9)"
  std::string describe() const {
    const std::string what = str(format_bytes(of(poorest_)), " on rank ", poorest_);
    if (options_.kv_cache_memory_bytes) return str(what, " (--kv-cache-memory-bytes)");
    const RankMemory& rank = ranks_[poorest_];
    if (device_ == DeviceKind::cpu) {
      return str(what, " (", format_bytes(rank.available), " of memory are available)");
    }
    return str(what, " (of ", format_bytes(rank.total), ", ", format_bytes(rank.available),
               " are free, --gpu-memory-utilization is ", options_.gpu_memory_utilization, ")");
  }

  // What gives room for so many blocks.
  std::string mend(std::int64_t blocks) const {
    const std::uint64_t bytes = bytes_for(blocks);
    if (bytes <= most(poorest_)) return str("pass --kv-cache-memory-bytes ", bytes);
    return device_ == DeviceKind::cpu ? "free memory" : "use more GPUs (--tp)";
  }

  // On the poorest rank.
  std::uint64_t bytes_for(std::int64_t blocks) const {
    return static_cast<std::uint64_t>(blocks) * ranks_[poorest_].block;
  }

 private:
  // What a rank may have at all.
  std::uint64_t most(std::size_t rank) const {
    const RankMemory& own = ranks_[rank];
    if (device_ == DeviceKind::cpu) return share(own.available, rank);
    return minus(own.available, own.graphs + kGpuReserveBytes);
  }

  std::uint64_t of(std::size_t rank) const {
    if (options_.kv_cache_memory_bytes) {
      return static_cast<std::uint64_t>(*options_.kv_cache_memory_bytes);
    }
    const RankMemory& own = ranks_[rank];
    if (device_ == DeviceKind::cpu) {
      return share(std::min(kCpuCacheBytes, own.available / 4), rank);
    }
    const auto ours = static_cast<std::uint64_t>(static_cast<double>(own.total) *
                                                 options_.gpu_memory_utilization);
    const std::uint64_t unknown = minus(own.total, own.available + own.taken);
    const std::uint64_t overhead = std::min(unknown, kMostOverhead);
    return std::min(minus(ours, own.taken + overhead + own.graphs), most(rank));
  }

  // A rank's part of memory that all share, by the size of its blocks.
  std::uint64_t share(std::uint64_t bytes, std::size_t rank) const {
    std::uint64_t all = 0;
    for (const RankMemory& each : ranks_) all += each.block;
    return bytes / all * ranks_[rank].block;
  }

  void check_wish() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (of(rank) <= most(rank)) continue;
      fail("--kv-cache-memory-bytes ", *options_.kv_cache_memory_bytes, ": rank ", rank, " has ",
           format_bytes(most(rank)), " left for its cache; pass ", most(rank), " or less");
    }
  }

  const EngineOptions& options_;
  DeviceKind device_;
  std::span<const RankMemory> ranks_;
  std::int64_t blocks_ = 0;
  std::size_t poorest_ = 0;
};

std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// As long as the model can, or as fits, which a note then says.
std::int64_t choose_model_len(const EngineOptions& options, std::int64_t wanted,
                              const Budget& budget, std::vector<std::string>& notes) {
  const std::int64_t fits = budget.blocks() * options.block_size;
  if (wanted <= fits) return wanted;
  const std::int64_t needed = blocks_for(wanted, options.block_size);
  const std::string need = str(wanted, " tokens need ", format_bytes(budget.bytes_for(needed)),
                               " of KV cache, there is ", budget.describe());
  if (budget.blocks() == 0) {
    fail("the KV cache has no room for a single block of ", options.block_size, " tokens, ",
         format_bytes(budget.bytes_for(1)), ": there is ", budget.describe(), "; ", budget.mend(1));
  }
  if (options.max_model_len) {
    fail("--max-model-len ", need, "; pass --max-model-len ", fits, " or less, or ",
         budget.mend(needed));
  }
  notes.push_back(
      str("max_model_len is ", fits, ": the model's ", need, "; for more, ", budget.mend(needed)));
  return fits;
}

std::int64_t choose_host_blocks(const EngineOptions& options, DeviceKind device,
                                std::span<const RankMemory> ranks, std::int64_t blocks,
                                std::int64_t useful, std::vector<std::string>& notes) {
  if (options.preemption != Preemption::swap) return 0;
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t cache = 0, largest_block = 0;
  for (const RankMemory& rank : ranks) {
    left = std::min(left, rank.host_available);
    cache += static_cast<std::uint64_t>(blocks) * rank.block;
    largest_block = std::max(largest_block, rank.block);
  }
  if (device == DeviceKind::cpu) left = minus(left, cache);
  const auto wished = static_cast<std::uint64_t>(options.swap_space_bytes);
  const std::uint64_t bytes = std::min(wished, left / 4 / ranks.size());
  const auto fits = static_cast<std::int64_t>(bytes / largest_block);
  if (bytes < wished && fits < useful &&
      options.swap_space_bytes != EngineOptions::kUsualSwapSpace) {
    notes.push_back(str("swap space is ", format_bytes(bytes), " of each rank instead of ",
                        format_bytes(wished), ": a quarter of the ", format_bytes(left),
                        " of host memory that are available"));
  }
  return std::min({fits, useful, kMostBlocks});
}

}  // namespace

std::int64_t wanted_model_len(const EngineOptions& options, std::int64_t model_limit) {
  const std::int64_t wanted = options.max_model_len.value_or(model_limit);
  if (wanted > model_limit) {
    fail("--max-model-len ", wanted, " exceeds the model's limit (max_position_embeddings) of ",
         model_limit, "; pass ", model_limit, " or less");
  }
  return wanted;
}

MemoryPlan plan_memory(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                       std::span<const RankMemory> ranks) {
  NVLLM_CHECK(!ranks.empty() && options.block_size > 0);
  const Budget budget(options, device, ranks);
  MemoryPlan plan;
  plan.max_model_len =
      choose_model_len(options, wanted_model_len(options, model_limit), budget, plan.notes);
  const std::int64_t useful =
      options.max_num_seqs * blocks_for(plan.max_model_len, options.block_size);
  plan.blocks = options.kv_cache_memory_bytes ? budget.blocks() : std::min(budget.blocks(), useful);
  plan.host_blocks = choose_host_blocks(options, device, ranks, plan.blocks, useful, plan.notes);
  return plan;
}

}  // namespace nvllm::runtime
