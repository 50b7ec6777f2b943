// Requests that use every feature yield the same tokens in every configuration: they are answered
// one at a time by the plainest engine, and then with each optimization.
//
// float32 results differ by rounding if GEMMs have other shapes, so log-probabilities are close,
// not equal, and if two tokens are equally likely either may be sampled. On the CPU this happens to
// none of these requests. On GPUs, where GEMM configurations vary, a few answers in a hundred may
// diverge from the expected ones if everything before agrees.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/math.h"
#include "base/text.h"
#include "runtime/engine/testing/random_requests.h"
#include "runtime/engine/testing/test_engine.h"
#include "runtime/model/open_model.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModel = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads
// A few dozen requests reveal divergences and what sanitizers can find; only fast builds run all of
// them.
constexpr std::int64_t kRequests = testing::kSanitized ? 16 : 200;
constexpr std::int64_t kMaxModelLen = 160;
constexpr std::int64_t kTinyBlock = 4, kTinyCache = 44;  // holds little more than one sequence

bool on_gpu() {
  return testing::device_under_test() == DeviceKind::cuda;
}

OpenModel open_float32() {
  return open_model({.path = kModel, .dtype = DType::f32});
}

std::vector<Request> random_requests(const OpenModel& model, std::uint32_t seed) {
  RandomRequests random(
      {.vocabulary = model.config.vocab_size, .max_prompt = 100, .max_answer = 48}, seed);
  return random.next(kRequests);
}

Answers right_answers(const OpenModel& model, const std::vector<Request>& requests) {
  EngineOptions options;
  options.max_model_len = kMaxModelLen;
  Answers answers = plain_answers(model, requests, options);
  for (const std::vector<Answer>& of_request : answers) {
    for (const Answer& answer : of_request) CHECK(answer.error == "");
  }
  return answers;
}

// Describes a mismatch of log-probabilities; empty: none. Alternatives that are equally likely may
// swap their ids and ranks.
std::string compare_logprobs(const std::vector<TokenLogprobs>& got,
                             const std::vector<TokenLogprobs>& right) {
  const float limit = on_gpu() ? 1e-3f : 1e-4f;
  const auto near = [&](const TokenLogprob& a, const TokenLogprob& b) {
    return std::fabs(a.logprob - b.logprob) <= limit && std::abs(a.rank - b.rank) <= 1;
  };
  if (got.size() != right.size()) return str(got.size(), " log-probabilities, not ", right.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].chosen.token != right[i].chosen.token || !near(got[i].chosen, right[i].chosen)) {
      return str("log-probability ", i, " is ", got[i].chosen.logprob, " of token ",
                 got[i].chosen.token, ", not ", right[i].chosen.logprob, " of ",
                 right[i].chosen.token);
    }
    if (!std::ranges::equal(got[i].top, right[i].top, near)) {
      return str("alternatives ", i, " differ");
    }
  }
  return {};
}

// The part before the answers diverge.
std::vector<TokenLogprobs> first(const std::vector<TokenLogprobs>& all, std::size_t count) {
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), count))};
}

// How one configuration's answers differ from the expected ones.
struct Differences {
  int parted = 0;     // answers that sampled another token somewhere
  std::string first;  // the first that diverged
  std::string wrong;  // a difference that no near tie explains

  void compare(const std::string& name, const Answer& got, const Answer& right) {
    const auto [mine, theirs] = std::ranges::mismatch(got.tokens, right.tokens);
    const auto same = static_cast<std::size_t>(mine - got.tokens.begin());
    const bool equal = mine == got.tokens.end() && theirs == right.tokens.end();
    if (!equal) {
      ++parted;
      if (first.empty()) first = str(name, " parts at token ", same, " of ", right.tokens.size());
    }
    std::string what =
        compare_logprobs(runtime::first(got.logprobs, same), runtime::first(right.logprobs, same));
    if (what.empty()) what = compare_logprobs(got.prompt_logprobs, right.prompt_logprobs);
    if (equal && got.finish != right.finish) {
      what = str("ended by ", name_of(got.finish), ", not ", name_of(right.finish));
    }
    if (got.error != right.error) what = str("error '", got.error, "', not '", right.error, "'");
    if (!what.empty() && wrong.empty()) wrong = str(name, ": ", what);
  }
};

Differences compare(const Answers& got, const Answers& right) {
  Differences all;
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (got[i].size() != right[i].size()) {
      all.wrong = str("request ", i, " has ", got[i].size(), " answers, not ", right[i].size());
      break;
    }
    for (std::size_t index = 0; index < right[i].size(); ++index) {
      all.compare(str("request ", i, " answer ", index), got[i][index], right[i][index]);
    }
  }
  return all;
}

// One configuration, and how to verify that it took effect.
struct Way {
  std::string name;
  EngineOptions options;
  bool tiny_cache = false;
  bool prompts_first = false;                              // prompts run once before, so that they
                                                           // are cached
  bool among_aborted = false;                              // as many other requests are started and
                                                           // aborted
  std::uint64_t SchedulerStatistics::*happened = nullptr;  // this counter must not be 0
};

EngineOptions usual() {
  EngineOptions options;
  options.max_model_len = kMaxModelLen;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 512;
  options.swap_space_bytes = std::int64_t{64} << 20;
  return options;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  const auto add = [&](const std::string& name) -> Way& {
    ways.push_back({.name = name, .options = usual()});
    return ways.back();
  };
  add("batched");
  add("chunked").options.max_num_batched_tokens = 40;
  Way* way = &add("chunked, blocks of 4 tokens");
  way->options.max_num_batched_tokens = 33;
  way->options.block_size = 4;
  add("prefixes cached").prompts_first = true;
  add("no prefixes cached").options.prefix_caching = false;
  way = &add("preempted by swapping");
  way->tiny_cache = true;
  way->happened = &SchedulerStatistics::swapped_blocks;
  way = &add("preempted by recomputing");
  way->tiny_cache = true;
  way->options.preemption = Preemption::recompute;
  way->happened = &SchedulerStatistics::recomputed_tokens;
  add("without graphs").options.graphs = false;
  add("contiguous").options.max_seq_len = kMaxModelLen;
  way = &add("layer-wise");
  way->options.kv_offload = KvOffload::layerwise;
  way->options.transfer_block = 16;
  way->options.max_num_batched_tokens = 40;
  way->prompts_first = true;
  way = &add("offloaded in chunks, among aborted ones");
  way->options.kv_offload = KvOffload::chunked;
  way->options.resident_blocks = 0;
  way->options.transfer_block = 16;
  way->options.ring_slots = 3;
  way->options.max_num_batched_tokens = 40;
  way->among_aborted = true;
  way = &add("offloaded in chunks, some of which stay, among aborted ones");
  way->options.kv_offload = KvOffload::chunked;
  way->options.resident_blocks = 20;
  way->options.transfer_block = 16;
  way->options.ring_slots = 3;
  way->options.max_num_batched_tokens = 40;
  way->prompts_first = true;
  way->among_aborted = true;
  way = &add("offloaded in chunks, all of which stay");
  way->options.kv_offload = KvOffload::chunked;
  way->options.transfer_block = 16;
  way->prompts_first = true;
  way = &add("offloaded in chunks, the host's cores attending, among aborted ones");
  way->options.kv_offload = KvOffload::chunked;
  way->options.resident_blocks = 0;
  way->options.host_attention = 0.5;
  way->options.host_threads = 2;
  way->options.transfer_block = 16;
  way->options.ring_slots = 3;
  way->options.max_num_batched_tokens = 40;
  way->among_aborted = true;
  add("not ahead").options.async_scheduling = false;
  add("prefill first").options.scheduling = Scheduling::prefill_first;
  add("among aborted ones").among_aborted = true;
  way = &add("among aborted ones, preempted");
  way->among_aborted = true;
  way->tiny_cache = true;
  way = &add("all small: chunked, swapped, prefixes cached, prefill first");
  way->options.max_num_batched_tokens = 40;
  way->options.scheduling = Scheduling::prefill_first;
  way->tiny_cache = true;
  way->prompts_first = true;
  way->happened = &SchedulerStatistics::preemptions;
  way = &add("all small: chunked, recomputed, not ahead, without graphs");
  way->options.max_num_batched_tokens = 40;
  way->options.preemption = Preemption::recompute;
  way->options.async_scheduling = false;
  way->options.graphs = false;
  way->tiny_cache = true;
  way->happened = &SchedulerStatistics::preemptions;
  return ways;
}

// Bytes per rank of `blocks` blocks, for the first stage's layers on the rank with the most KV
// heads.
std::int64_t cache_bytes(const OpenModel& model, int ranks, int stages, std::int64_t blocks) {
  std::int64_t heads = 0;
  for (const RankDescription& rank : describe_model(model, ranks).ranks) {
    heads = std::max(heads, rank.kv_heads.size());
  }
  const kvcache::BlockShape shape = {.layers = divide_up<std::int64_t>(model.config.layers, stages),
                                     .block_size = kTinyBlock,
                                     .kv_heads = heads,
                                     .head_dim = model.config.head_dim,
                                     .dtype = DType::f32};
  return blocks * static_cast<std::int64_t>(shape.bytes());
}

// Every request has a copy, which is aborted at some point.
Answers run_among_aborted(TestEngine& engine, const std::vector<Request>& requests) {
  constexpr std::uint64_t kDoubles = 1'000'000;
  for (std::uint64_t i = 0; i < requests.size(); ++i) {
    engine.client().submit(1 + i, requests[i]);
    engine.client().submit(kDoubles + i, requests[i]);
  }
  TestEngine::Book book;
  for (std::uint64_t aborted = 0; engine.client().unfinished() > 0;) {
    engine.poll_into(book);
    if (aborted < requests.size()) engine.client().abort(kDoubles + aborted++);
  }
  Answers answers;
  for (std::uint64_t i = 0; i < requests.size(); ++i) answers.push_back(book[1 + i]);
  return answers;
}

void check_way(const OpenModel& model, int ranks, int stages, Way way,
               const std::vector<Request>& requests, const Answers& right) {
  CAPTURE(way.name);
  if (way.tiny_cache) {
    way.options.block_size = kTinyBlock;
    way.options.kv_cache_memory_bytes = cache_bytes(model, ranks, stages, kTinyCache);
  }
  TestEngine engine(model, ranks, way.options, stages);
  if (way.tiny_cache) CHECK(engine.info().blocks == kTinyCache);
  if (way.prompts_first) {
    std::vector<Request> prompts;
    for (const Request& request : requests) {
      prompts.emplace_back().prompt = request.prompt;
    }
    engine.run(prompts, 1'000'000);
  }
  const Differences found = compare(
      way.among_aborted ? run_among_aborted(engine, requests) : engine.run(requests), right);
  CHECK(found.wrong == "");
  CHECK_MESSAGE(found.parted <= (on_gpu() ? kRequests / 50 : 0), found.parted, ": ", found.first);

  const SchedulerStatistics statistics = engine.client().statistics().scheduler;
  if (way.happened != nullptr) CHECK(statistics.*way.happened > 0);
  if (way.prompts_first) CHECK(statistics.prefix.hit_tokens > 0);
  CHECK(statistics.running == 0);
  CHECK(statistics.waiting == 0);
  CHECK(statistics.free_blocks == statistics.total_blocks);
  engine.stop();
}

// NVLLM_TEST_SCALE: number of rounds, each with other requests.
std::uint32_t rounds() {
  const char* scale = std::getenv("NVLLM_TEST_SCALE");
  return static_cast<std::uint32_t>(scale == nullptr ? 1 : std::max(1, std::atoi(scale)));
}

// In a pipeline, only the configurations that keep everything on the device.
void check_all_ways(int ranks, int stages = 1) {
  const OpenModel model = open_float32();
  for (std::uint32_t seed = 0; seed < rounds(); ++seed) {
    CAPTURE(seed);
    const std::vector<Request> requests = random_requests(model, seed);
    const Answers right = right_answers(model, requests);
    for (const Way& way : all_ways()) {
      if (stages > 1 && way.options.kv_offload != KvOffload::off) continue;
      check_way(model, ranks, stages, way, requests, right);
    }
  }
}

TEST_CASE("one rank gives the same tokens, whichever way") {
  RANKS_OR_SKIP(1);
  check_all_ways(1);
}

TEST_CASE("two ranks give the tokens of one, whichever way") {
  RANKS_OR_SKIP(2);
  check_all_ways(2);
}

TEST_CASE("two pipeline stages give the tokens of one rank, whichever way") {
  RANKS_OR_SKIP(2);
  check_all_ways(1, 2);
}

}  // namespace
}  // namespace nvllm::runtime
