// The runner against transformers' continuations: sequences alone and together, chunked, in graphs,
// with steps enqueued ahead, in reused slots and blocks, swapped out and in, and with shared
// prefixes.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/memory/workspace.h"
#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"

namespace nvllm::runtime {
namespace {

using testing::DeviceRank;

constexpr const char* kModels[] = {"llama-dynamic",  "llama-llama3", "llama-tied",
                                   "mistral-hd128",  "qwen2-bias",   "qwen2-linear",
                                   "qwen3-gqa-tied", "qwen3-uneven", "qwen3-yarn"};

void all_models(int ranks, DType dtype) {
  RANKS_OR_SKIP(ranks);
  testing::run_on_devices(ranks, [&](DeviceRank& rank) {
    for (const char* name : kModels) {
      CHECK(continue_all(rank, GoldenModel(name), {.dtype = dtype}, 40) == "");
    }
  });
}

TEST_CASE("float32 on 1 rank: continuations are transformers'") {
  all_models(1, DType::f32);
}
TEST_CASE("float32 on 2 ranks: continuations are transformers'") {
  all_models(2, DType::f32);
}
TEST_CASE("float32 on 3 ranks: continuations are transformers'") {
  all_models(3, DType::f32);
}
TEST_CASE("float32 on 4 ranks: continuations are transformers'") {
  all_models(4, DType::f32);
}
TEST_CASE("bfloat16 on 1 rank: continuations are transformers' but for near ties") {
  all_models(1, DType::bf16);
}
TEST_CASE("bfloat16 on 2 ranks: continuations are transformers' but for near ties") {
  all_models(2, DType::bf16);
}

// On 1 and 2 ranks.
template <typename Body>
void on_few_ranks(const Body& body) {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2}) {
    if (testing::why_no_ranks(ranks).empty()) testing::run_on_devices(ranks, body);
  }
}

TEST_CASE("chunks of any size give the same tokens") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    for (const std::int64_t chunk : {std::int64_t{3}, std::int64_t{16}, std::int64_t{17}, kWhole}) {
      CAPTURE(chunk);
      CHECK(continue_all(rank, golden, {}, chunk) == "");
    }
  });
}

// The part of a cache's memory that does not depend on its blocks, ring included.
std::size_t fixed_bytes(DeviceRank& rank, const GoldenModel& golden, KvMode mode,
                        KvCacheDtype dtype) {
  const RunnerTestOptions options{.kv_mode = mode, .kv_cache_dtype = dtype};
  RunnerUnderTest runner(rank, golden, options);
  const auto slots = static_cast<std::size_t>(mode == KvMode::chunked ? options.ring_slots : 0);
  return runner.runner().cache_bytes().fixed - slots * runner.runner().block_shape().layer_bytes();
}

TEST_CASE("a cache of FP8 needs two scales for each KV head of each layer, in every mode") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");  // 3 KV heads
    const auto layers = static_cast<std::size_t>(golden.config.layers);
    for (const KvMode mode :
         {KvMode::paged, KvMode::contiguous, KvMode::layerwise, KvMode::chunked}) {
      CAPTURE(std::string(name_of(mode)));
      CHECK(fixed_bytes(rank, golden, mode, KvCacheDtype::fp8_e4m3) ==
            fixed_bytes(rank, golden, mode, KvCacheDtype::automatic) +
                layers * 2 * 3 * sizeof(float));
    }
  });
}

TEST_CASE("with graphs and without, any number of steps ahead: the same tokens") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    for (const bool graphs : {false, true}) {
      for (const int ahead : {0, 1, 2}) {
        CAPTURE(graphs);
        CAPTURE(ahead);
        CHECK(continue_all(rank, golden, {.graphs = graphs, .steps_ahead = ahead}, kWhole) == "");
      }
    }
  });
}

TEST_CASE("blocks of other sizes give the same tokens") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("llama-llama3");
    for (const std::int64_t block_size : {1, 7, 64}) {
      CAPTURE(block_size);
      CHECK(continue_all(rank, golden,
                         {.blocks = 7 * 224 / block_size + 1, .block_size = block_size}, 40) == "");
    }
  });
}

// Checks the slot's tokens against a prompt's continuation, on rank 0.
void check_tokens(DeviceRank& rank, RunnerUnderTest& runner, std::uint32_t slot,
                  const GoldenModel::Prompt& prompt, std::size_t min_tokens) {
  if (rank.member.rank() > 0) return;
  CHECK(why_not_golden(prompt, runner.tokens(slot), 0) == "");
  CHECK(runner.tokens(slot).size() >= min_tokens);
}

TEST_CASE("GEMMs tuned between steps: the same tokens, so no cache was written to") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* const model : {"qwen3-uneven", "qwen35-dense"}) {  // one with states, too
      CAPTURE(model);
      const GoldenModel golden(model);
      const auto& prompt = golden.prompts[0];
      const auto length = static_cast<std::int64_t>(prompt.ids.size());
      for (const KvMode mode : {KvMode::paged, KvMode::chunked}) {
        RunnerUnderTest runner(rank, golden, {.kv_mode = mode});
        for (const TunedSize& size : {TunedSize{224, false}, {4, true}, {1, true}}) {
          runner.runner().tune_gemms(size);
        }
        runner.start(0, prompt.ids).rows(0, length).step();
        runner.decode(4);
        runner.runner().tune_gemms({40, true});
        runner.decode(4);
        runner.finish();
        check_tokens(rank, runner, 0, prompt, 9);
      }
    }
  });
}

TEST_CASE("sequences come and go, in slots and blocks that others had a step before") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    RunnerUnderTest runner(rank, golden, {.slots = 3, .blocks = 20, .steps_ahead = 2});
    const auto& prompts = golden.prompts;
    come_and_go(runner, prompts);
    runner.start(0, prompts[0].ids).rows(0, 7).rows(1, 1).step();
    runner.decode(12);
    runner.finish();
    check_tokens(rank, runner, 0, prompts[0], 13);
    check_tokens(rank, runner, 1, prompts[1], 20);
    check_tokens(rank, runner, 2, prompts[1], 26);
  });
}

TEST_CASE("a sequence may end and another take its slot in one step") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("llama-tied");
    RunnerUnderTest runner(rank, golden, {.slots = 2});
    const auto& prompts = golden.prompts;
    runner.start(0, prompts[0].ids).start(1, prompts[1].ids).rows(0, 7).rows(1, 33).step();
    runner.decode(4);
    runner.end(0).start(0, prompts[2].ids).rows(0, 150).rows(1, 1).step();
    runner.decode(20);
    runner.finish();
    check_tokens(rank, runner, 0, prompts[2], 21);
    check_tokens(rank, runner, 1, prompts[1], 26);
  });
}

TEST_CASE("a sequence that is swapped out and in again goes on as before") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    RunnerUnderTest runner(rank, golden, {.blocks = 24});
    const auto& prompts = golden.prompts;
    runner.start(0, prompts[1].ids).rows(0, 33).step();
    runner.start(1, prompts[0].ids).rows(0, 1).rows(1, 7).step();
    runner.decode(8);
    runner.finish();
    // Ten tokens were sampled; the tenth has not been processed yet.
    std::vector<std::int32_t> known = prompts[1].ids;
    known.insert(known.end(), prompts[1].continuation.begin(),
                 prompts[1].continuation.begin() + 10);
    const std::int64_t blocks = runner.swap_out(0);
    // Another sequence uses the blocks meanwhile, from the same step on.
    runner.start(2, prompts[2].ids).rows(2, 150).rows(1, 1).step();
    runner.decode(2);
    runner.end(2);
    runner.swap_in(3, known, blocks).rows(3, 1).rows(1, 1).step();
    runner.decode(20);
    runner.finish();
    check_tokens(rank, runner, 1, prompts[0], 31);
    if (rank.member.rank() > 0) return;
    const std::vector<std::int32_t> rest(prompts[1].continuation.begin() + 10,
                                         prompts[1].continuation.begin() + 31);
    CHECK(runner.tokens(3) == rest);
  });
}

TEST_CASE("a sequence that is computed anew goes on as before") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    RunnerUnderTest runner(rank, golden, {});
    const auto& prompt = golden.prompts[1];
    std::vector<std::int32_t> known = prompt.ids;
    known.insert(known.end(), prompt.continuation.begin(), prompt.continuation.begin() + 10);
    layers::SamplingRules rules = greedy();
    rules.prompt_length = static_cast<std::int32_t>(prompt.ids.size());
    runner.start(1, known, {}, rules);
    runner.prefill(20);
    runner.decode(20);
    runner.finish();
    if (rank.member.rank() > 0) return;
    const std::vector<std::int32_t> rest(prompt.continuation.begin() + 10,
                                         prompt.continuation.begin() + 31);
    CHECK(runner.tokens(1) == rest);
  });
}

TEST_CASE("a shared prefix gives the same tokens, also within the step that computes it") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    RunnerUnderTest runner(rank, golden, {});
    const auto& prompt = golden.prompts[2];
    runner.start(0, prompt.ids).rows(0, 150);
    const std::vector<kvcache::BlockId> prefix(runner.blocks(0).begin(),
                                               runner.blocks(0).begin() + 9);
    runner.start(1, prompt.ids, prefix).rows(1, 6).step();
    runner.start(3, prompt.ids, {prefix.begin(), prefix.begin() + 4}).rows(3, 86);
    runner.rows(0, 1).rows(1, 1).step();
    runner.decode(10);
    runner.end(0);  // the others still hold its blocks
    runner.decode(20);
    runner.finish();
    check_tokens(rank, runner, 1, prompt, 32);
    check_tokens(rank, runner, 3, prompt, 31);
  });
}

TEST_CASE("a sequence of one row shares a block that another one's row fills in the same step") {
  on_few_ranks([](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    RunnerUnderTest runner(rank, golden, {});
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    std::vector<std::int32_t> longer = prompt.ids;
    longer.insert(longer.end(), prompt.continuation.begin(), prompt.continuation.end());
    const std::int64_t whole = (length / 16 + 1) * 16;  // the first block that generated tokens
                                                        // fill
    runner.start(0, prompt.ids).rows(0, length).step();
    runner.decode(static_cast<int>(whole - 1 - length));
    longer.resize(static_cast<std::size_t>(whole) + 1);
    runner.rows(0, 1);
    runner.start(1, longer, runner.blocks(0)).rows(1, 1).step();
    runner.decode(10);
    runner.finish();
    if (rank.member.rank() > 0) return;
    const auto first = prompt.continuation.begin() + (whole + 1 - length);
    CHECK(runner.tokens(1) == std::vector<std::int32_t>(first, first + 11));
  });
}

TEST_CASE("more new blocks than fit into a step's message to the device reach it before the step") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden("qwen3-uneven");
    // A step can send a sequence's table of 224 blocks, and one block per slot.
    RunnerUnderTest runner(rank, golden, {.rows = 8, .blocks = 900, .block_size = 1});
    const auto& prompt = golden.prompts[2];
    runner.start(3, prompt.ids);
    runner.prefill(8);
    const std::vector<kvcache::BlockId> prefix(runner.blocks(3).begin(),
                                               runner.blocks(3).begin() + 149);
    for (const std::uint32_t slot : {0, 1, 2}) runner.start(slot, prompt.ids, prefix);
    runner.decode(20);
    runner.finish();
    for (const std::uint32_t slot : {0, 1, 2}) check_tokens(rank, runner, slot, prompt, 20);
    check_tokens(rank, runner, 3, prompt, 21);
  });
}

// llama-dynamic has 3 heads; qwen3-uneven has 9, in 3 groups.
TEST_CASE("a rank may have few heads or none") {
  RANKS_OR_SKIP(4);
  testing::run_on_devices(4, [](DeviceRank& rank) {
    CHECK(continue_all(rank, GoldenModel("llama-dynamic"), {}, kWhole) == "");
    CHECK(continue_all(rank, GoldenModel("qwen3-uneven"), {.graphs = false}, 16) == "");
  });
}

TEST_CASE("a rank that takes no part in a step is named") {
  RANKS_OR_SKIP(2);
  const auto body = [](DeviceRank& rank) {
    const GoldenModel golden("llama-tied");
    RunnerUnderTest runner(rank, golden, {});
    runner.start(0, golden.prompts[0].ids).rows(0, 7);
    if (rank.member.rank() == 1) {
      const auto wait = [&] {
        for (;; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
          rank.member.check_abort();
      };
      CHECK_THROWS_AS(wait(), ipc::GroupAborted);
      return;
    }
    std::string what;
    try {
      runner.step();  // may wait for the device, where kernels are loaded at their first use
      runner.runner().take_result();
    } catch (const Error& error) {  // on a GPU the collective itself reports it
      what = error.what();
      rank.member.group().abort(what);  // as a worker does with an error that ends it
    }
    CHECK(what.find("rank 1") != std::string::npos);
  };
  testing::run_on_devices(2, body, {.step_timeout = std::chrono::seconds(3)});
}

void check_workspace(const char* model) {
  on_few_ranks([model](DeviceRank& rank) {
    const GoldenModel golden(model);
    const std::size_t before = rank.backend->ledger().total(MemoryKind::device);
    RunnerUnderTest runner(rank, golden, {.blocks = 24});
    std::size_t taken = 0;
    for (const Ledger::Entry& entry : rank.backend->ledger().entries()) {
      const bool other = entry.purpose == "weights" || entry.purpose == "kv cache";
      if (entry.kind == MemoryKind::device && !other) taken += entry.bytes;
    }
    CHECK(taken - before == workspace_bytes(runner.decoder(),
                                            {.max_model_len = runner.kMaxLength,
                                             .max_num_seqs = 4,
                                             .max_num_batched_tokens = 224,
                                             .max_logit_rows = 224,
                                             .block_size = 16,
                                             .keeps_results = rank.member.rank() == 0,
                                             .steps_ahead = RunnerTestOptions{}.steps_ahead},
                                            rank.backend->kind()));
  });
}

TEST_CASE("the workspace is what was said, to the byte") {
  check_workspace("qwen3-uneven");
}

TEST_CASE("the workspace with states of linear attention is what was said, to the byte") {
  RANKS_OR_SKIP(1);
  check_workspace("qwen35-dense");
}

TEST_CASE("a trace has every step on the host and on the device") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    Trace trace;
    const GoldenModel golden("llama-tied");
    RunnerUnderTest runner(rank, golden, {.trace = &trace});
    runner.start(0, golden.prompts[0].ids).rows(0, 7).step();
    runner.decode(9);
    runner.finish();
    runner.decode(1);  // reads the blocks of the sequence that ended
    runner.finish();
    std::vector<std::uint64_t> host, device;
    std::int64_t last_ns = 0;
    for (const TraceEvent& event : trace.drain()) {
      if (event.name != "step") continue;
      CHECK(event.begin_ns <= event.end_ns);
      if (event.track == "host") host.push_back(event.step);
      if (event.track != "device") continue;
      device.push_back(event.step);
      CHECK(event.begin_ns >= last_ns);
      last_ns = event.begin_ns;
    }
    std::vector<std::uint64_t> all(11);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
    CHECK(host == all);
    device.resize(10);
    all.resize(10);
    CHECK(device == all);
  });
}

}  // namespace
}  // namespace nvllm::runtime
