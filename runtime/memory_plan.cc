#include "runtime/memory_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/divide.h"
#include "base/error.h"
#include "kvcache/device_slots.h"

namespace nvllm::runtime {
namespace {

// What CUDA and its libraries take in a process that our ledger does not know: contexts, NCCL, cuBLAS. More
// than this on a GPU is somebody else's.
constexpr std::uint64_t kMostOverhead = std::uint64_t{2} << 30;

constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

std::uint64_t times(std::int64_t count, std::uint64_t bytes) {
  return static_cast<std::uint64_t>(count) * bytes;
}

// How many blocks there can be, and why not more: of each rank's device, and, where blocks lie in host
// memory, of that.
class Budget {
 public:
  Budget(const EngineOptions& options, DeviceKind device, std::span<const RankMemory> ranks)
      : options_(options), device_(device), ranks_(ranks) {
    if (options.kv_cache_memory_bytes) check_wish();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      NVLLM_CHECK(ranks[rank].block > 0, "rank ", rank);
      consider(rank, false, minus(of(rank), ranks[rank].fixed) / ranks[rank].block);
      if (ranks[rank].host_block == 0) continue;
      consider(rank, true, host_of(rank) / ranks[rank].host_block);
    }
  }

  std::int64_t blocks() const { return blocks_; }

  // "1.20 GiB on rank 1 (of 140 GiB, 8 GiB are free, --gpu-memory-utilization is 0.9)"
  std::string describe() const { return in_host_memory_ ? describe_host() : describe_device(); }

  std::string describe_device() const {
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
    if (in_host_memory_) {
      const std::uint64_t all = times(blocks, host_blocks_bytes());
      if (all <= host_available()) return str("pass --kv-offloading-size ", gib_up(all));
      return "use a machine with more of it";
    }
    if (const std::string more = more_on_device(blocks); !more.empty()) return more;
    return smaller_part() + (device_ == DeviceKind::cpu ? "free memory" : "use more GPUs (--tp)");
  }

  // The same of the devices alone, with the slots that one sequence fills; empty: they have no room for it.
  std::string more_on_device(std::int64_t blocks) const {
    const std::int64_t slots = slots_to_fill(blocks);
    std::uint64_t bytes = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankMemory& own = ranks_[rank];
      const std::uint64_t needed =
          own.fixed + times(blocks, own.block) + times(slots, own.device_slot);
      if (needed > most(rank)) return "";
      bytes = std::max(bytes, needed);
    }
    return str("pass --kv-cache-memory-bytes ", bytes);
  }

  // That fit beside so many blocks on every rank's device.
  std::int64_t device_slots(std::int64_t blocks) const {
    std::uint64_t slots = kMostBlocks;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankMemory& own = ranks_[rank];
      if (own.device_slot == 0) continue;  // it has no KV heads
      slots =
          std::min(slots, minus(of(rank), own.fixed + times(blocks, own.block)) / own.device_slot);
    }
    return static_cast<std::int64_t>(slots);
  }

  // On the poorest rank, or of all of them in host memory: where the blocks are bounded.
  std::uint64_t bytes_for(std::int64_t blocks) const {
    if (in_host_memory_) return times(blocks, host_blocks_bytes());
    return ranks_[poorest_].fixed + times(blocks, ranks_[poorest_].block);
  }

  // Of host memory, for so many blocks of all ranks.
  std::uint64_t host_bytes_for(std::int64_t blocks) const {
    return times(blocks, host_blocks_bytes());
  }
  std::string describe_host() const {
    const std::uint64_t available = host_available();
    if (options_.kv_offloading_bytes) {
      return str(format_bytes(host_budget()), " of host memory (--kv-offloading-size)");
    }
    return str(format_bytes(host_budget()), " of host memory (half of the ",
               format_bytes(available), " that are available)");
  }

 private:
  // Chunked: what a step of one sequence fills.
  std::int64_t slots_to_fill(std::int64_t blocks) const {
    if (options_.kv_mode() != KvMode::chunked) return 0;
    const std::int64_t rows = std::max(options_.max_num_batched_tokens, options_.max_num_seqs);
    return std::min(kvcache::most_write_slots(1, rows, options_.block_size), blocks);
  }

  // What of a mode's own may be less: "pass a smaller --kv-buffers, or "; empty: nothing.
  std::string smaller_part() const {
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

  static std::uint64_t gib_up(std::uint64_t bytes) {
    return divide_up(bytes, std::uint64_t{1} << 30);
  }

  void consider(std::size_t rank, bool in_host_memory, std::uint64_t blocks) {
    if (blocks >= static_cast<std::uint64_t>(blocks_)) return;
    blocks_ = static_cast<std::int64_t>(blocks);
    poorest_ = rank;
    in_host_memory_ = in_host_memory;
  }

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

  // Host memory: of one block of all ranks; available now; to be used by all of them, and by one.
  std::uint64_t host_blocks_bytes() const {
    std::uint64_t all = 0;
    for (const RankMemory& each : ranks_) all += each.host_block;
    return all;
  }
  std::uint64_t host_available() const {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const RankMemory& each : ranks_) least = std::min(least, each.host_available);
    return least;
  }
  std::uint64_t host_budget() const {
    if (options_.kv_offloading_bytes) {
      return static_cast<std::uint64_t>(*options_.kv_offloading_bytes);
    }
    return host_available() / 2;
  }
  std::uint64_t host_of(std::size_t rank) const {
    return host_budget() / host_blocks_bytes() * ranks_[rank].host_block;
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
  std::int64_t blocks_ = kMostBlocks;
  std::size_t poorest_ = 0;      // the rank that has no room for more
  bool in_host_memory_ = false;  // or: the host's memory has none
};

[[noreturn]] void fail_for_no_block(const EngineOptions& options, const Budget& budget) {
  if (options.kv_mode() == KvMode::contiguous) {
    fail("--max-seq-len ", options.max_seq_len, " needs ", format_bytes(budget.bytes_for(1)),
         " of KV cache in one piece, there is ", budget.describe(),
         "; pass a smaller --max-seq-len, or ", budget.mend(1));
  }
  fail("the KV cache has no room for a single block of ", options.block_size, " tokens, ",
       format_bytes(budget.bytes_for(1)), ": there is ", budget.describe(), "; ", budget.mend(1));
}

// As long as the model can, or as fits, which a note then says.
std::int64_t choose_model_len(const EngineOptions& options, std::int64_t wanted,
                              const Budget& budget, std::vector<std::string>& notes) {
  const std::int64_t fits = budget.blocks() * options.block_size;
  if (wanted <= fits) return wanted;
  const std::int64_t needed = divide_up(wanted, options.block_size);
  const std::string need = str(wanted, " tokens need ", format_bytes(budget.bytes_for(needed)),
                               " of KV cache, there is ", budget.describe());
  if (budget.blocks() == 0) fail_for_no_block(options, budget);
  if (options.max_model_len) {
    fail("--max-model-len ", need, "; pass --max-model-len ", fits, " or less, or ",
         budget.mend(needed));
  }
  notes.push_back(
      str("max_model_len is ", fits, ": the model's ", need, "; for more, ", budget.mend(needed)));
  return fits;
}

// Host memory that is asked for must be there: to take more than there is would end in the middle of it.
void check_host_memory(const EngineOptions& options, std::span<const RankMemory> ranks) {
  if (!options.kv_offloading_bytes) return;
  const auto wished = static_cast<std::uint64_t>(*options.kv_offloading_bytes);
  for (const RankMemory& rank : ranks) {
    if (rank.host_block == 0 || wished <= rank.host_available) continue;
    fail("--kv-offloading-size: ", format_bytes(wished), " of host memory were asked for, ",
         format_bytes(rank.host_available), " are available; pass ", rank.host_available >> 30,
         " or less");
  }
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

// Chunked: how many blocks stay on the device, and how many sequences may run that do not stay there whole: each of
// these has a block there that is not full, and steps fill others. All of them together never need more slots
// than there are blocks.
class DeviceSlotPlan {
 public:
  // Of a plan that has its blocks, of which no more than `useful` would be of use.
  DeviceSlotPlan(const EngineOptions& options, const Budget& budget, std::int64_t useful,
                 MemoryPlan& plan)
      : options_(options),
        room_(budget),
        slots_(budget.device_slots(plan.blocks)),
        useful_(useful),
        budget_(budget.describe_device()),
        plan_(plan) {}

  void choose() {
    check_room();
    const bool all = options_.resident_blocks.value_or(plan_.blocks) >= plan_.blocks;
    if (all && plan_.blocks <= slots_) {
      plan_.device_slots = plan_.resident_blocks = plan_.blocks;
      return;
    }
    plan_.chunked_seqs = options_.max_num_seqs;
    while (to_fill(plan_.chunked_seqs) > room_to_fill()) --plan_.chunked_seqs;
    const std::int64_t filled = to_fill(plan_.chunked_seqs);
    plan_.resident_blocks =
        std::min(options_.resident_blocks.value_or(slots_ - filled), plan_.blocks);
    plan_.device_slots = std::min(filled + plan_.resident_blocks, plan_.blocks);
    plan_.max_num_seqs =
        std::min(options_.max_num_seqs, plan_.chunked_seqs + plan_.resident_blocks);
    if (plan_.chunked_seqs < options_.max_num_seqs) tell();
  }

 private:
  // Slots for what so many sequences fill.
  std::int64_t to_fill(std::int64_t sequences) const {
    const std::int64_t rows = std::max(options_.max_num_batched_tokens, options_.max_num_seqs);
    return std::min(kvcache::most_write_slots(sequences, rows, options_.block_size), plan_.blocks);
  }

  // By default a quarter of the room, and at least what one sequence needs.
  std::int64_t room_to_fill() const {
    if (options_.resident_blocks) return std::max(slots_ - *options_.resident_blocks, to_fill(1));
    return std::max(slots_ / 4, to_fill(1));
  }

  void check_room() const {
    if (to_fill(1) > slots_) {
      const std::string more = room_.more_on_device(useful_);
      fail("a step of ", options_.max_num_batched_tokens, " tokens fills ", to_fill(1),
           to_fill(1) == 1 ? " block of " : " blocks of ", options_.block_size,
           " tokens, there is room for ", slots_, " in ", budget_, "; pass a smaller ",
           options_.ring_slots > 2 ? "--ring-slots, " : "",
           "--max-num-batched-tokens or --transfer-block", more.empty() ? "" : ", or ", more);
    }
    const std::int64_t wished = std::min(options_.resident_blocks.value_or(0), plan_.blocks);
    if (std::min(to_fill(1) + wished, plan_.blocks) <= slots_) return;
    fail("--kv-resident-blocks ", *options_.resident_blocks, ": beside ", to_fill(1),
         " blocks that are filled there is room for ", slots_ - to_fill(1), " of ",
         options_.block_size, " tokens, in ", budget_, "; pass ", slots_ - to_fill(1),
         " or less, or auto");
  }

  void tell() {
    const std::string what =
        plan_.resident_blocks == 0
            ? str("max_num_seqs is ", plan_.max_num_seqs, " instead of ", options_.max_num_seqs)
            : str("at most ", plan_.chunked_seqs,
                  plan_.chunked_seqs == 1 ? " sequence runs at a time that does"
                                          : " sequences run at a time that do",
                  " not stay on the device whole");
    plan_.notes.push_back(str(what, ": each sequence fills a block of ", options_.block_size,
                              " tokens on the device, in ", budget_,
                              "; for more, pass a smaller --transfer-block"));
  }

  const EngineOptions& options_;
  const Budget& room_;
  const std::int64_t slots_;  // that there is room for
  const std::int64_t useful_;
  const std::string budget_;
  MemoryPlan& plan_;
};

// Of blocks that lie in host memory.
std::string describe_residents(const EngineOptions& options, const MemoryPlan& plan) {
  if (plan.resident_blocks == 0) return "nothing of it stays on the device";
  return str(plan.resident_blocks * options.block_size, " tokens of it stay on the device (",
             plan.resident_blocks, " blocks, --kv-resident-blocks)");
}

}  // namespace

std::int64_t usual_transfer_block(std::int64_t longest) {
  constexpr std::int64_t kLeast = 256, kMost = 4096;
  const auto eighth = static_cast<std::uint64_t>(longest / 8);
  return std::clamp(static_cast<std::int64_t>(std::bit_floor(eighth)), kLeast, kMost);
}

EngineOptions settled(EngineOptions options, std::int64_t model_limit) {
  const KvMode mode = options.kv_mode();
  // Bounds of pages stay on the device, so what is computed anew has them, and what was swapped would not.
  if (options.decode_attention == DecodeAttention::quest) {
    options.preemption = Preemption::recompute;
  }
  if (mode == KvMode::paged) return options;
  options.preemption = Preemption::recompute;
  if (mode == KvMode::contiguous) {
    options.block_size = options.max_seq_len;
    options.max_num_seqs = 1;
    options.prefix_caching = false;
    return options;
  }
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t longest = wanted_model_len(options, model_limit);
  if (mode == KvMode::layerwise) {
    options.max_num_batched_tokens = longest + options.max_num_seqs;
  }
  options.block_size = std::min(options.transfer_block.value_or(usual_transfer_block(longest)),
                                round_up(longest, kMultiple));
  return options;
}

std::int64_t wanted_model_len(const EngineOptions& options, std::int64_t model_limit) {
  if (options.max_seq_len > model_limit) {
    fail("--max-seq-len ", options.max_seq_len,
         " exceeds the model's limit (max_position_embeddings) of ", model_limit, "; pass ",
         model_limit, " or less");
  }
  const std::int64_t wanted = options.max_model_len.value_or(
      options.kv_mode() == KvMode::contiguous ? options.max_seq_len : model_limit);
  if (wanted > model_limit) {
    fail("--max-model-len ", wanted, " exceeds the model's limit (max_position_embeddings) of ",
         model_limit, "; pass ", model_limit, " or less");
  }
  return wanted;
}

KvOffload choose_offload(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                         std::span<const RankMemory> ranks, std::vector<std::string>& notes) {
  const Budget budget(options, device, ranks);
  const std::int64_t longest = wanted_model_len(options, model_limit);
  const std::int64_t wished = options.max_num_seqs * divide_up(longest, options.block_size);
  if (wished <= budget.blocks()) return KvOffload::off;
  const bool alone = options.max_num_seqs == 1;
  const bool layerwise = alone && 2 * budget.blocks() < wished;
  notes.push_back(
      str("--kv-offload auto is ", layerwise ? "layerwise: " : "chunked: ", options.max_num_seqs,
          alone ? " sequence of " : " sequences of ", longest, " tokens need ",
          format_bytes(budget.bytes_for(wished)), " on the device, there is ", budget.describe()));
  return layerwise ? KvOffload::layerwise : KvOffload::chunked;
}

MemoryPlan plan_memory(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                       std::span<const RankMemory> ranks) {
  NVLLM_CHECK(!ranks.empty() && options.block_size > 0);
  check_host_memory(options, ranks);
  const Budget budget(options, device, ranks);
  MemoryPlan plan;
  plan.max_model_len =
      choose_model_len(options, wanted_model_len(options, model_limit), budget, plan.notes);
  const std::int64_t useful =
      options.max_num_seqs * divide_up(plan.max_model_len, options.block_size);
  const bool as_wished = options.kv_cache_memory_bytes && options.kv_mode() == KvMode::paged;
  plan.blocks = as_wished ? budget.blocks() : std::min(budget.blocks(), useful);
  plan.host_blocks = choose_host_blocks(options, device, ranks, plan.blocks, useful, plan.notes);
  plan.max_num_seqs = plan.chunked_seqs = options.max_num_seqs;
  if (options.kv_mode() == KvMode::chunked) {
    DeviceSlotPlan(options, budget, useful, plan).choose();
  }
  if (plan.all_stay()) {
    plan.notes.push_back(str("KV cache: ", plan.blocks, " blocks of ", options.block_size,
                             " tokens, all of them on the device; none is written to the host"));
    return plan;
  }
  if (ranks.front().host_block > 0) {
    plan.notes.push_back(str("KV cache: ", plan.blocks, " blocks of ", options.block_size,
                             " tokens in ", format_bytes(budget.host_bytes_for(plan.blocks)),
                             " of host memory; there may be ", budget.describe_host()));
  }
  if (options.kv_mode() == KvMode::chunked) {
    plan.notes.push_back(str("KV cache: ", describe_residents(options, plan)));
  }
  return plan;
}

}  // namespace nvllm::runtime
