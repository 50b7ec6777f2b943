#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/memory/testing/memory_plan_fixture.h"

namespace nvllm::runtime {
namespace {

TEST_CASE("GPU: the cache takes what the wished part of its memory leaves beside all else") {
  // 0.9 of 140 GiB is 126 GiB; minus 16 of our buffers, 1 of CUDA and 1 for graphs.
  const MemoryPlan got = plan({}, DeviceKind::cuda, {gpu()});
  CHECK(got.blocks == 108 * 1024);
  CHECK(got.max_model_len == kModelLimit);
  CHECK(got.notes.empty());
}

TEST_CASE("GPU: the rank with the least memory decides for all") {
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
      0.4;  // 56 GiB; minus 16 of our buffers, at most 2 of CUDA, 1 for graphs
  CHECK(plan(options, DeviceKind::cuda, {shared}).blocks == 37 * 1024);
  options.gpu_memory_utilization = 0.9;  // more than is free: the free memory minus graphs and the
                                         // reserve
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

TEST_CASE("a rank without KV heads takes no more of the requested bytes than its blocks do") {
  EngineOptions options;
  options.kv_cache_memory_bytes = static_cast<std::int64_t>(kGiB);
  RankMemory no_heads = cpu();
  no_heads.block = 64;
  CHECK(plan(options, DeviceKind::cpu, {cpu(), cpu(), no_heads}).blocks == 1024);
  RankMemory full = gpu();
  full.block = kMiB / 2;
  full.graphs = 0;
  full.available = kGpuReserveBytes + 100 * kMiB;  // of the 512 MiB that 1024 blocks take
  CHECK(refusal(options, DeviceKind::cuda, {gpu(), full}) ==
        "--kv-cache-memory-bytes 1073741824: rank 1 has 100 MiB left for its cache; pass 209715200 "
        "or less");
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

TEST_CASE("length: one that does not fit is refused with one that would") {
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
      "--max-model-len 40961 exceeds the model's limit (max_position_embeddings, stretched by RoPE "
      "scaling) of 40960; pass 40960 or less";
  CHECK(refusal(options, DeviceKind::cpu, {cpu()}) == wanted);
  options.max_model_len = kModelLimit;
  CHECK(wanted_model_len(options, kModelLimit) == kModelLimit);
  CHECK(wanted_model_len({}, kModelLimit) == kModelLimit);
}

TEST_CASE("contiguous: one block of the length, whatever else was asked for") {
  EngineOptions requested;
  requested.max_seq_len = 5000;
  const EngineOptions options = resolve_options(requested, kModelLimit);
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
  requested.max_model_len = 4000;
  CHECK(plan(resolve_options(requested, kModelLimit), DeviceKind::cuda, {gpu()}).max_model_len ==
        4000);
}

TEST_CASE("contiguous: a length beyond the model's or the memory is refused") {
  EngineOptions options;
  options.max_seq_len = kModelLimit + 1;
  CHECK(refusal(resolve_options(options, kModelLimit), DeviceKind::cpu, {cpu()}) ==
        "--max-seq-len 40961 exceeds the model's limit (max_position_embeddings, stretched by RoPE "
        "scaling) of 40960; pass 40960 or less");
  options.max_seq_len = kModelLimit;
  RankMemory rank = gpu();
  rank.block = 200 * kGiB;
  CHECK(refusal(resolve_options(options, kModelLimit), DeviceKind::cuda, {rank}) ==
        "--max-seq-len 40960 needs 200 GiB of KV cache in one piece, there is 108 GiB on rank 0 "
        "(of 140 GiB, 123 GiB are free, --gpu-memory-utilization is 0.9); pass a smaller "
        "--max-seq-len, or use more GPUs (--tp)");
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
