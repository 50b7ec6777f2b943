// Memory plans of caches whose blocks are in host memory.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/memory/testing/memory_plan_fixture.h"

namespace nvllm::runtime {
namespace {

EngineOptions layerwise() {
  EngineOptions options;
  options.kv_offload = KvOffload::layerwise;
  options.max_num_seqs = 4;
  return resolve_options(options, kModelLimit);
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
  CHECK(options.max_num_batched_tokens == kModelLimit + 4);  // a whole prompt, and a row of every
                                                             // other sequence
  options.max_model_len = 100;
  CHECK(resolve_options(options, kModelLimit).block_size == 112);
  options.max_model_len = 8000;
  CHECK(resolve_options(options, kModelLimit).block_size == 512);
  options.transfer_block = 2048;
  CHECK(resolve_options(options, kModelLimit).block_size == 2048);
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
        "memory (half of the 100 GiB that are available); prompts share whole blocks alone "
        "(--transfer-block)");
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
  options = resolve_options(options, kModelLimit);
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(150 * kGiB)}) ==
        "the KV cache has no room for a single block of 4096 tokens, 150 GiB: there is 108 GiB on "
        "rank 0 (of 140 GiB, 123 GiB are free, --gpu-memory-utilization is 0.9); pass a smaller "
        "--ring-slots or --transfer-block, or use more GPUs (--tp)");
  const std::string few = refusal(options, DeviceKind::cuda, {chunked_gpu(107 * kGiB)});
  const std::string fix =
      "--max-num-batched-tokens or --transfer-block, or pass --kv-cache-memory-bytes ";
  REQUIRE(few.find("fills 4 blocks of 4096 tokens, there is room for 1 in 108 GiB") != few.npos);
  REQUIRE(few.find(fix) != few.npos);
  EngineOptions fixed = options;
  fixed.kv_cache_memory_bytes = std::stoll(few.substr(few.find(fix) + fix.size()));
  CHECK(refusal(fixed, DeviceKind::cuda, {chunked_gpu(107 * kGiB)}) == "");
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(243 * kGiB / 2)})
            .ends_with("use more GPUs (--tp)"));
  CHECK(refusal(options, DeviceKind::cuda, {chunked_gpu(kGiB)}) == "");
}

TEST_CASE("chunked: what the device has room for stays there, or what was asked for") {
  EngineOptions options;
  options.kv_offload = KvOffload::chunked;
  options.max_num_seqs = 4;
  options = resolve_options(options, kModelLimit);
  const auto planned = [&](std::uint64_t fixed) {
    const std::vector<RankMemory> ranks = {chunked_gpu(kGiB), chunked_gpu(fixed)};
    return plan_memory(options, kModelLimit, DeviceKind::cuda, ranks);
  };
  // Four sequences of ten blocks each. Ten sequences can fill blocks at the same time: each has one
  // open block, and a step fills one of each and two more.
  MemoryPlan plan = planned(kGiB);
  CHECK(plan.blocks == 40);
  CHECK(plan.device_slots == 40);
  CHECK(plan.resident_blocks == 40);
  CHECK(plan.all_resident());
  CHECK(plan.notes.back() ==
        "KV cache: 40 blocks of 4096 tokens, all of them on the device; none is written to the "
        "host; prompts share whole blocks alone (--transfer-block)");
  plan = planned(93 * kGiB);  // of 108; the rank with the smallest free memory limits
  CHECK(plan.device_slots == 29);
  CHECK(plan.resident_blocks == 23);
  CHECK_FALSE(plan.all_resident());
  CHECK(plan.chunked_seqs == 2);  // in a quarter of the slots
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
  options.resident_blocks = 40;  // all of them, as `auto` would choose
  plan = planned(87 * kGiB);     // enough slots for them, and for one more
  CHECK(plan.device_slots == 40);
  CHECK(plan.all_resident());
  CHECK(plan.chunked_seqs == 4);
  CHECK(plan.max_num_seqs == 4);
  CHECK(plan.notes.size() == 1);
  options.resident_blocks = 41;  // more than there are
  plan = planned(kGiB);
  CHECK(plan.all_resident());
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
  CHECK(refusal(resolve_options(options, kModelLimit), DeviceKind::cuda, {chunked_gpu(kGiB)}) ==
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
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, ranks, notes, 0,
                       /*can_be_chunked=*/false) == KvOffload::layerwise);
  CHECK(notes[1].starts_with("--kv-offload auto is layerwise: 256 sequences of 40960 tokens"));
  options.max_num_seqs = 1;
  RankMemory small = gpu();
  small.block = kGiB;
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, std::vector<RankMemory>{small},
                       notes) == KvOffload::layerwise);
  small.block = 60 * kMiB;  // 2560 of them; most stay on the device
  CHECK(choose_offload(options, kModelLimit, DeviceKind::cuda, std::vector<RankMemory>{small},
                       notes) == KvOffload::chunked);
}

}  // namespace
}  // namespace nvllm::runtime
