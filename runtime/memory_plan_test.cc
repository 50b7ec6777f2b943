#include "runtime/memory_plan.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace nvllm::runtime {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
constexpr std::int64_t kModelLimit = 40960;

// An H200 with 16 GiB of ours on it, and 1 GiB that CUDA took.
RankMemory gpu() {
  return {.total = 140 * kGiB,
          .available = 123 * kGiB,
          .taken = 16 * kGiB,
          .graphs = 1 * kGiB,
          .block = 1 * kMiB,
          .host_available = 100 * kGiB};
}

RankMemory cpu() {
  return {.total = 64 * kGiB,
          .available = 40 * kGiB,
          .taken = 2 * kGiB,
          .graphs = 0,
          .block = 1 * kMiB,
          .host_available = 40 * kGiB};
}

MemoryPlan plan(const EngineOptions& options, DeviceKind device,
                const std::vector<RankMemory>& ranks) {
  return plan_memory(options, kModelLimit, device, ranks);
}

std::string refusal(const EngineOptions& options, DeviceKind device,
                    const std::vector<RankMemory>& ranks) {
  try {
    plan(options, device, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("GPU: the cache takes what the wished part of its memory leaves beside all else") {
  // 0.9 of 140 GiB is 126 GiB; less 16 of ours, 1 of CUDA's and 1 for graphs.
  const MemoryPlan got = plan({}, DeviceKind::cuda, {gpu()});
  CHECK(got.blocks == 108 * 1024);
  CHECK(got.max_model_len == kModelLimit);
  CHECK(got.notes.empty());
}

TEST_CASE("GPU: the poorest rank decides for all") {
  RankMemory poor = gpu();
  poor.available -= 10 * kGiB;
  poor.taken += 10 * kGiB;
  CHECK(plan({}, DeviceKind::cuda, {gpu(), poor, gpu()}).blocks == 98 * 1024);
  RankMemory large_blocks = gpu();
  large_blocks.block *= 2;
  CHECK(plan({}, DeviceKind::cuda, {gpu(), large_blocks}).blocks == 54 * 1024);
  RankMemory no_heads = gpu();
  no_heads.block = 64;  // token ids
  CHECK(plan({}, DeviceKind::cuda, {no_heads, gpu()}).blocks == 108 * 1024);
}

TEST_CASE("GPU: memory of other programs is theirs, but not counted as ours") {
  RankMemory shared = gpu();
  shared.available -= 60 * kGiB;
  EngineOptions options;
  options.gpu_memory_utilization =
      0.4;  // 56 GiB; less 16 of ours, at most 2 of CUDA's, 1 for graphs
  CHECK(plan(options, DeviceKind::cuda, {shared}).blocks == 37 * 1024);
  options.gpu_memory_utilization = 0.9;  // more than is free: that, less graphs and the reserve
  CHECK(plan(options, DeviceKind::cuda, {shared}).blocks == 62 * 1024 - 256);
}

TEST_CASE("GPU: even all of its memory leaves the reserve") {
  EngineOptions options;
  options.gpu_memory_utilization = 1;
  CHECK(plan(options, DeviceKind::cuda, {gpu()}).blocks == 122 * 1024 - 256);
}

TEST_CASE("no more than the most sequences of the greatest length need") {
  EngineOptions options;
  options.max_num_seqs = 3;
  options.max_model_len = 100;  // 7 blocks
  CHECK(plan(options, DeviceKind::cuda, {gpu()}).blocks == 21);
  CHECK(plan(options, DeviceKind::cpu, {cpu()}).blocks == 21);
  CHECK(plan(options, DeviceKind::cpu, {cpu()}).host_blocks == 21);
  CHECK(plan(options, DeviceKind::cpu, {cpu()}).notes.empty());
}

TEST_CASE("a cache of so many bytes is that, on either device") {
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len = 100;
  options.kv_cache_memory_bytes = static_cast<std::int64_t>(50 * kMiB + 17);
  CHECK(plan(options, DeviceKind::cuda, {gpu()}).blocks == 50);
  CHECK(plan(options, DeviceKind::cpu, {cpu()}).blocks == 50);
}

TEST_CASE("a cache of more bytes than there are is refused") {
  EngineOptions options;
  options.kv_cache_memory_bytes = static_cast<std::int64_t>(200 * kGiB);
  CHECK(refusal(options, DeviceKind::cuda, {gpu()}) ==
        "--kv-cache-memory-bytes 214748364800: rank 0 has 122 GiB left for its cache; pass "
        "130728067072 or less");
  CHECK(refusal(options, DeviceKind::cpu, {cpu(), cpu()}) ==
        "--kv-cache-memory-bytes 214748364800: rank 0 has 20 GiB left for its cache; pass "
        "21474836480 or less");
}

TEST_CASE("CPU: 4 GiB of all ranks together, or a quarter of what is available") {
  CHECK(plan({}, DeviceKind::cpu, {cpu()}).blocks == 4096);
  CHECK(plan({}, DeviceKind::cpu, {cpu(), cpu()}).blocks == 2048);
  RankMemory uneven = cpu();
  uneven.block *= 3;
  CHECK(plan({}, DeviceKind::cpu, {cpu(), uneven}).blocks == 1024);
  RankMemory little = cpu();
  little.available = 12 * kGiB;
  CHECK(plan({}, DeviceKind::cpu, {little}).blocks == 3072);
}

TEST_CASE("length: what does not fit is cut to what does, and said") {
  EngineOptions options;
  options.kv_cache_memory_bytes = static_cast<std::int64_t>(1 * kGiB);
  const MemoryPlan got = plan(options, DeviceKind::cuda, {gpu(), gpu()});
  CHECK(got.blocks == 1024);
  CHECK(got.max_model_len == 16384);
  REQUIRE(got.notes.size() == 1);
  CHECK(got.notes[0] ==
        "max_model_len is 16384: the model's 40960 tokens need 2.50 GiB of KV cache, there is 1 "
        "GiB on rank 0 (--kv-cache-memory-bytes); for more, pass --kv-cache-memory-bytes "
        "2684354560");
}

TEST_CASE("length: a wish that does not fit is refused with what would") {
  EngineOptions options;
  options.max_model_len = 32000;
  RankMemory full = gpu();
  full.available -= 106 * kGiB;
  full.taken += 106 * kGiB;
  full.block = 4 * kMiB;
  CHECK(refusal(options, DeviceKind::cuda, {gpu(), full}) ==
        "--max-model-len 32000 tokens need 7.81 GiB of KV cache, there is 2 GiB on rank 1 (of 140 "
        "GiB, 17 GiB are free, --gpu-memory-utilization is 0.9); pass --max-model-len 8192 or "
        "less, or pass --kv-cache-memory-bytes 8388608000");
  options.max_model_len = 40960;
  full.block = 16 * kMiB;
  CHECK(refusal(options, DeviceKind::cuda, {gpu(), full}).ends_with("or use more GPUs (--tp)"));
  full.available = kMiB;
  CHECK(refusal(options, DeviceKind::cuda, {full}) ==
        "the KV cache has no room for a single block of 16 tokens, 16 MiB: there is 0 B on rank 0 "
        "(of 140 GiB, 1 MiB are free, --gpu-memory-utilization is 0.9); use more GPUs (--tp)");
}

TEST_CASE("length: never more than the model's") {
  EngineOptions options;
  options.max_model_len = kModelLimit + 1;
  const std::string wanted =
      "--max-model-len 40961 exceeds the model's limit (max_position_embeddings) of 40960; pass "
      "40960 or less";
  CHECK(refusal(options, DeviceKind::cpu, {cpu()}) == wanted);
  options.max_model_len = kModelLimit;
  CHECK(wanted_model_len(options, kModelLimit) == kModelLimit);
  CHECK(wanted_model_len({}, kModelLimit) == kModelLimit);
}

TEST_CASE("contiguous: one block of the length, whatever else was asked for") {
  EngineOptions asked;
  asked.max_seq_len = 5000;
  const EngineOptions options = settled(asked, kModelLimit);
  CHECK(options.max_num_seqs == 1);
  CHECK(options.block_size == 5000);
  CHECK_FALSE(options.prefix_caching);
  for (const bool sized_by_hand : {false, true}) {
    EngineOptions sized = options;
    if (sized_by_hand) sized.kv_cache_memory_bytes = static_cast<std::int64_t>(kGiB);
    const MemoryPlan got = plan(sized, DeviceKind::cuda, {gpu()});
    CHECK(got.blocks == 1);
    CHECK(got.host_blocks == 0);
    CHECK(got.max_model_len == 5000);
  }
  asked.max_model_len = 4000;
  CHECK(plan(settled(asked, kModelLimit), DeviceKind::cuda, {gpu()}).max_model_len == 4000);
}

TEST_CASE("contiguous: a length beyond the model's or the memory is refused") {
  EngineOptions options;
  options.max_seq_len = kModelLimit + 1;
  CHECK(refusal(settled(options, kModelLimit), DeviceKind::cpu, {cpu()}) ==
        "--max-seq-len 40961 exceeds the model's limit (max_position_embeddings) of 40960; pass "
        "40960 or less");
  options.max_seq_len = kModelLimit;
  RankMemory rank = gpu();
  rank.block = 200 * kGiB;
  CHECK(refusal(settled(options, kModelLimit), DeviceKind::cuda, {rank}) ==
        "--max-seq-len 40960 needs 200 GiB of KV cache in one piece, there is 108 GiB on rank 0 "
        "(of 140 GiB, 123 GiB are free, --gpu-memory-utilization is 0.9); pass a smaller "
        "--max-seq-len, or use more GPUs (--tp)");
}

EngineOptions layerwise() {
  EngineOptions options;
  options.kv_offload = KvOffload::layerwise;
  options.max_num_seqs = 4;
  return settled(options, kModelLimit);
}

// A block of 4,096 tokens: 4 of 32 layers on the device.
RankMemory layerwise_gpu() {
  RankMemory rank = gpu();
  rank.block = 64 * kMiB;
  rank.host_block = 512 * kMiB;
  return rank;
}

TEST_CASE("host memory: blocks are as large as transfers, or as the longest sequence") {
  EngineOptions options = layerwise();
  CHECK(options.block_size == 4096);
  CHECK(options.preemption == Preemption::recompute);
  CHECK(options.max_num_batched_tokens == kModelLimit + 4);  // a whole prompt, and everybody's row
  options.max_model_len = 100;
  CHECK(settled(options, kModelLimit).block_size == 112);
  options.max_model_len = 8000;
  CHECK(settled(options, kModelLimit).block_size == 512);
  options.transfer_block = 2048;
  CHECK(settled(options, kModelLimit).block_size == 2048);
}

TEST_CASE("host memory: by default a block is about an eighth of the longest sequence") {
  CHECK(usual_transfer_block(1) == 256);
  CHECK(usual_transfer_block(4095) == 256);
  CHECK(usual_transfer_block(4096) == 512);
  CHECK(usual_transfer_block(32767) == 2048);
  CHECK(usual_transfer_block(kModelLimit) == 4096);
  CHECK(usual_transfer_block(1 << 20) == 4096);
}

TEST_CASE("host memory: by default half of what is available, and no more than sequences need") {
  const MemoryPlan got = plan(layerwise(), DeviceKind::cuda, {layerwise_gpu()});
  CHECK(got.blocks == 4 * 10);
  CHECK(got.max_model_len == kModelLimit);
  CHECK(got.host_blocks == 0);
  REQUIRE(got.notes.size() == 1);
  CHECK(got.notes[0] ==
        "KV cache: 40 blocks of 4096 tokens in 20 GiB of host memory; there may be 50 GiB of host "
        "memory (half of the 100 GiB that are available)");
  EngineOptions many = layerwise();
  many.max_num_seqs = 256;
  CHECK(plan(many, DeviceKind::cuda, {layerwise_gpu()}).blocks == 100);
  CHECK(plan(many, DeviceKind::cuda, {layerwise_gpu(), layerwise_gpu()}).blocks == 50);
}

TEST_CASE("host memory: as much as was asked for, of all ranks together") {
  EngineOptions options = layerwise();
  options.kv_offloading_bytes = static_cast<std::int64_t>(8 * kGiB);
  MemoryPlan got = plan(options, DeviceKind::cuda, {layerwise_gpu(), layerwise_gpu()});
  CHECK(got.blocks == 8);
  CHECK(got.max_model_len == 8 * 4096);
  REQUIRE(got.notes.size() == 2);
  CHECK(got.notes[0] ==
        "max_model_len is 32768: the model's 40960 tokens need 10 GiB of KV cache, there is 8 GiB "
        "of host memory (--kv-offloading-size); for more, pass --kv-offloading-size 10");
  options.kv_offloading_bytes = static_cast<std::int64_t>(101 * kGiB);
  CHECK(refusal(options, DeviceKind::cuda, {layerwise_gpu()}) ==
        "--kv-offloading-size: 101 GiB of host memory were asked for, 100 GiB are available; pass "
        "100 or less");
}

TEST_CASE("host memory: buffers that are too large for the device are refused") {
  EngineOptions options = layerwise();
  options.max_model_len = kModelLimit;
  RankMemory full = layerwise_gpu();
  full.available = 256 * kMiB + full.graphs + 3 * full.block;
  const std::string why = refusal(options, DeviceKind::cuda, {full});
  CHECK(why.starts_with("--max-model-len 40960 tokens need 640 MiB of KV cache, there is 192 MiB"));
  CHECK(
      why.ends_with("pass --max-model-len 12288 or less, or pass a smaller --kv-buffers, or use "
                    "more GPUs (--tp)"));
}

// A block of 4,096 tokens; a ring that takes what `fixed` says.
RankMemory chunked_gpu(std::uint64_t fixed) {
  RankMemory rank = gpu();
  rank.block = 32 << 10;
  rank.fixed = fixed;
  rank.host_block = rank.device_slot = 512 * kMiB;
  return rank;
}

TEST_CASE(
    "host memory: a ring that is too large for the device is refused, with what to make smaller") {
  EngineOptions options;
  options.kv_offload = KvOffload::chunked;
  options.max_num_seqs = 4;
  options.ring_slots = 1024;
  options = settled(options, kModelLimit);
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(150 * kGiB)}) ==
        "the KV cache has no room for a single block of 4096 tokens, 150 GiB: there is 108 GiB on "
        "rank 0 (of 140 GiB, 123 GiB are free, --gpu-memory-utilization is 0.9); pass a smaller "
        "--ring-slots or --transfer-block, or use more GPUs (--tp)");
  const std::string few = refusal(options, DeviceKind::cuda, {chunked_gpu(107 * kGiB)});
  const std::string mend =
      "--max-num-batched-tokens or --transfer-block, or pass --kv-cache-memory-bytes ";
  REQUIRE(few.find("fills 4 blocks of 4096 tokens, there is room for 1 in 108 GiB") != few.npos);
  REQUIRE(few.find(mend) != few.npos);
  EngineOptions mended = options;
  mended.kv_cache_memory_bytes = std::stoll(few.substr(few.find(mend) + mend.size()));
  CHECK(refusal(mended, DeviceKind::cuda, {chunked_gpu(107 * kGiB)}) == "");
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(243 * kGiB / 2)})
            .ends_with("use more GPUs (--tp)"));
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(kGiB)}) == "");
}

TEST_CASE("chunked: what the device has room for stays there, or what was asked for") {
  EngineOptions options;
  options.kv_offload = KvOffload::chunked;
  options.max_num_seqs = 4;
  options = settled(options, kModelLimit);
  const auto planned = [&](std::uint64_t fixed) {
    const std::vector<RankMemory> ranks = {chunked_gpu(kGiB), chunked_gpu(fixed)};
    return plan_memory(options, kModelLimit, DeviceKind::cuda, ranks);
  };
  // Four sequences of ten blocks each; so many may fill ten at once: one of each is open, a step fills one of each
  // and two more.
  MemoryPlan plan = planned(kGiB);
  CHECK(plan.blocks == 40);
  CHECK(plan.device_slots == 40);
  CHECK(plan.resident_blocks == 40);
  CHECK(plan.all_stay());
  CHECK(plan.notes.back() ==
        "KV cache: 40 blocks of 4096 tokens, all of them on the device; none is written to the "
        "host");
  plan = planned(93 * kGiB);  // of 108; the poorest decides
  CHECK(plan.device_slots == 29);
  CHECK(plan.resident_blocks == 23);
  CHECK_FALSE(plan.all_stay());
  CHECK(plan.chunked_seqs == 2);  // in a quarter of the room
  CHECK(plan.max_num_seqs == 4);
  REQUIRE(plan.notes.size() == 3);
  CHECK(plan.notes[0] ==
        "at most 2 sequences run at a time that do not stay on the device whole: each sequence "
        "fills a block of 4096 tokens on the device, in 108 GiB on rank 0 (of 140 GiB, 123 GiB are "
        "free, --gpu-memory-utilization is 0.9); for more, pass a smaller --transfer-block");
  CHECK(plan.notes[2] ==
        "KV cache: 94208 tokens of it stay on the device (23 blocks, --kv-resident-blocks)");
  options.resident_blocks = 0;
  plan = planned(kGiB);
  CHECK(plan.device_slots == 10);
  CHECK(plan.resident_blocks == 0);
  CHECK(plan.chunked_seqs == 4);
  options.resident_blocks = 40;  // all of them, as auto would have it
  plan = planned(87 * kGiB);     // room for them, and for one more
  CHECK(plan.device_slots == 40);
  CHECK(plan.all_stay());
  CHECK(plan.chunked_seqs == 4);
  CHECK(plan.max_num_seqs == 4);
  CHECK(plan.notes.size() == 1);
  options.resident_blocks = 41;  // more than there are
  plan = planned(kGiB);
  CHECK(plan.all_stay());
  CHECK(plan.notes.size() == 1);
  options.resident_blocks = 35;
  plan = planned(kGiB);
  CHECK(plan.device_slots == 40);
  CHECK(plan.resident_blocks == 35);
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(93 * kGiB)}) ==
        "--kv-resident-blocks 35: beside 4 blocks that are filled there is room for 25 of 4096 "
        "tokens, in 108 GiB on rank 0 (of 140 GiB, 123 GiB are free, --gpu-memory-utilization is "
        "0.9); pass 25 or less, or auto");
}

TEST_CASE("host memory: a length that does not fit is refused, with the one that does") {
  EngineOptions options;
  options.kv_offload = KvOffload::chunked;
  options.max_model_len = kModelLimit;
  options.kv_offloading_bytes = static_cast<std::int64_t>(2 * kGiB);
  CHECK(refusal(settled(options, kModelLimit), DeviceKind::cuda, {chunked_gpu(kGiB)}) ==
        "--max-model-len 40960 tokens need 5 GiB of KV cache, there is 2 GiB of host memory "
        "(--kv-offloading-size); pass --max-model-len 16384 or less, or pass --kv-offloading-size "
        "5");
}

TEST_CASE("--kv-offload auto: off while all sequences fit on the device") {
  EngineOptions options;
  options.kv_offload = KvOffload::automatic;
  options.max_num_seqs = 4;
  std::vector<std::string> notes;
  const std::vector<RankMemory> ranks = {gpu()};
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, ranks, notes) == KvOffload::off);
  CHECK(notes.empty());
  options.max_num_seqs = 256;
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, ranks, notes) == KvOffload::chunked);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] ==
        "--kv-offload auto is chunked: 256 sequences of 40960 tokens need 640 GiB on the device, "
        "there is 108 GiB on rank 0 (of 140 GiB, 123 GiB are free, --gpu-memory-utilization is "
        "0.9)");
  options.max_num_seqs = 1;
  RankMemory small = gpu();
  small.block = kGiB;
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, std::vector<RankMemory>{small},
                       notes) == KvOffload::layerwise);
  small.block = 60 * kMiB;  // 2560 of them; most stay on the device
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, std::vector<RankMemory>{small},
                       notes) == KvOffload::chunked);
}

TEST_CASE("swap space: as wished, of each rank") {
  EngineOptions options;
  options.swap_space_bytes = static_cast<std::int64_t>(1 * kGiB);
  CHECK(plan(options, DeviceKind::cuda, {gpu(), gpu()}).host_blocks == 1024);
  options.preemption = Preemption::recompute;
  CHECK(plan(options, DeviceKind::cuda, {gpu(), gpu()}).host_blocks == 0);
  options.preemption = Preemption::swap;
  options.swap_space_bytes = 0;
  CHECK(plan(options, DeviceKind::cuda, {gpu(), gpu()}).host_blocks == 0);
}

TEST_CASE(
    "swap space: at most a quarter of the host's memory, shared by all ranks; said where more was "
    "asked for") {
  RankMemory rank = gpu();
  rank.host_available = 8 * kGiB;
  const MemoryPlan usual = plan({}, DeviceKind::cuda, {rank, rank});
  CHECK(usual.host_blocks == 1024);
  CHECK(usual.notes.empty());
  EngineOptions options;
  options.swap_space_bytes = static_cast<std::int64_t>(3 * kGiB);
  const MemoryPlan got = plan(options, DeviceKind::cuda, {rank, rank});
  CHECK(got.host_blocks == 1024);
  REQUIRE(got.notes.size() == 1);
  CHECK(got.notes[0] ==
        "swap space is 1 GiB of each rank instead of 3 GiB: a quarter of the 8 GiB of host memory "
        "that are available");
}

}  // namespace
}  // namespace nvllm::runtime
