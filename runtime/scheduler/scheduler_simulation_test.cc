// Random workloads through the scheduler and a mock rank that verifies everything: tiny caches,
// long prompts, shared prefixes, aborts, stops, both policies, both kinds of preemption, up to two
// steps ahead. Every sequence must get the tokens of a model without batches and blocks, in bounded
// time, and leave no resources allocated.
//
// NVLLM_STRESS=10 runs ten times as many; NVLLM_SIMULATION_SEED=N only that one.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/scheduler/testing/mock_rank.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr std::uint64_t kSlowdown = testing::kSanitized ? 10 : 1;
constexpr std::uint64_t kSimulations = 6000;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::int64_t from(std::int64_t low, std::int64_t high) {
    const std::uint64_t x = split_mix(state_);
    state_ += kSplitMixStep;
    return low + static_cast<std::int64_t>(x % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(std::int64_t percent) { return from(0, 99) < percent; }

 private:
  std::uint64_t state_;
};

// A sequence as seen from outside, and its expected output.
struct Watched {
  Sequence given;
  std::vector<std::int32_t> expected;
  FinishReason expected_finish = FinishReason::none;

  std::vector<std::int32_t> answer;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::none;
  bool aborted = false;

  bool over() const { return aborted || finish != FinishReason::none; }
};

struct Workload {
  SchedulerLimits limits;
  MockModel model;
  std::vector<Sequence> arrivals;
  std::int64_t max_in_flight = 0;  // in-flight steps when another one is scheduled
  std::int64_t arrival_percent = 0, abort_percent = 0, wait_percent = 0;
};

// Only some layers have the window, and form a group with a random number of blocks that is enough
// for one sequence.
void as_group(Random& random, SchedulerLimits& limits) {
  const std::int64_t needed =
      std::min(kvcache::window_blocks(limits.window, limits.block_size), limits.blocks);
  limits.window_group = {.window = limits.window,
                         .blocks = needed + (random.chance(30) ? 0 : random.from(1, 30)),
                         .host_blocks = random.chance(20) ? 0 : random.from(1, 30)};
  limits.window = 0;
}

SchedulerLimits random_limits(Random& random) {
  SchedulerLimits limits;
  limits.block_size = random.from(1, 8);
  limits.blocks = random.chance(20) ? random.from(1, 4) : random.from(3, 30);
  limits.host_blocks = random.chance(30) ? 0 : random.from(1, 30);
  limits.resident_blocks = random.chance(30) ? 0 : random.from(1, limits.blocks);
  if (random.chance(50)) limits.chunked_seqs = random.from(1, 4);
  limits.max_model_len = random.chance(20) ? random.from(2, 10) : random.from(10, 120);
  limits.max_num_seqs = random.from(1, 12);
  limits.max_num_batched_tokens = random.chance(40) ? random.from(1, 8) : random.from(8, 80);
  limits.max_logit_rows = random.chance(30) ? random.from(1, 4) : random.from(4, 30);
  limits.prefix_caching = random.chance(75);
  limits.scheduling = random.chance(50) ? Scheduling::mixed : Scheduling::prefill_first;
  limits.preemption = random.chance(65) ? Preemption::swap : Preemption::recompute;
  if (random.chance(40)) {  // with windows, all blocks are on the device
    limits.window = random.chance(50) ? random.from(1, 4) : random.from(5, 60);
    limits.resident_blocks = limits.blocks;
    limits.chunked_seqs = std::numeric_limits<std::int64_t>::max();
    if (random.chance(60)) as_group(random, limits);
  }
  return limits;
}

// Some layers have linear attention. A separate random generator leaves other workloads unchanged.
void add_states(std::uint64_t seed, SchedulerLimits& limits) {
  Random random(seed ^ 0x57a7e);
  if (limits.window > 0 || limits.window_group.window > 0 || random.chance(40)) return;
  limits.states = {.kept = true,
                   .snapshots = random.chance(15) ? 0 : random.from(1, random.chance(50) ? 3 : 20),
                   .snapshot_tokens = random.chance(50) ? 1 : random.from(1, 24),
                   .host = random.chance(15) ? 0 : random.from(1, 8)};
}

std::vector<std::int32_t> random_tokens(Random& random, std::int64_t count, int vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(random.from(0, vocabulary - 1)));
  return tokens;
}

Sequence random_sequence(Random& random, SequenceId id, const Workload& workload,
                         const std::vector<std::vector<std::int32_t>>& prefixes) {
  const int vocabulary = workload.model.vocabulary;
  Sequence sequence;
  sequence.id = id;
  if (random.chance(50)) sequence.tokens = prefixes.at(static_cast<std::size_t>(random.from(0, 2)));
  const auto own = random_tokens(
      random, random.chance(30) ? random.from(1, 60) : random.from(1, 12), vocabulary);
  sequence.tokens.insert(sequence.tokens.end(), own.begin(), own.end());
  sequence.max_tokens =
      static_cast<std::int32_t>(random.chance(20) ? random.from(1, 2) : random.from(1, 80));
  if (random.chance(30)) sequence.stop_tokens = random_tokens(random, 1, vocabulary);
  if (random.chance(15)) sequence.prompt_logprobs = 0;
  if (id > 1 && random.chance(20)) sequence.tokens = workload.arrivals.back().tokens;
  sequence.rules.prompt_length = static_cast<std::int32_t>(sequence.tokens.size());
  sequence.rules.logprobs = random.chance(20) ? 0 : -1;
  return sequence;
}

Workload random_workload(std::uint64_t seed, std::int64_t stages) {
  Random random(seed);
  Workload workload;
  workload.limits = random_limits(random);
  workload.limits.stages = stages;
  if (stages == 1) add_states(seed, workload.limits);
  workload.model.vocabulary = static_cast<std::int32_t>(random.from(2, 60));
  workload.max_in_flight = random.from(0, 2);
  if (stages > 1) workload.max_in_flight = stages - 1;
  workload.arrival_percent = random.from(5, 100);
  workload.abort_percent = random.chance(50) ? 0 : random.from(1, 8);
  workload.wait_percent = random.from(0, 60);
  std::vector<std::vector<std::int32_t>> prefixes;
  for (int i = 0; i < 3; ++i)
    prefixes.push_back(random_tokens(random, random.from(1, 40), workload.model.vocabulary));
  const std::int64_t count = random.from(1, 24);
  for (std::int64_t i = 1; i <= count; ++i)
    workload.arrivals.push_back(
        random_sequence(random, static_cast<SequenceId>(i), workload, prefixes));
  return workload;
}

// Computes the expected output: one sequence at a time, token by token.
void answer_alone(Watched& watched, const Workload& workload) {
  const SchedulerLimits& limits = workload.limits;
  const auto prompt = static_cast<std::int64_t>(watched.given.tokens.size());
  const std::int64_t limit = std::min(
      {prompt + watched.given.max_tokens, limits.max_model_len, limits.blocks * limits.block_size});
  std::uint64_t hash = MockModel::hash(watched.given.tokens);
  const auto& stops = watched.given.stop_tokens;
  while (watched.expected_finish == FinishReason::none) {
    const std::int32_t token = workload.model.next(hash);
    watched.expected.push_back(token);
    hash = MockModel::hash(hash, token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end())
      watched.expected_finish = FinishReason::stop;
    else if (prompt + static_cast<std::int64_t>(watched.expected.size()) == limit)
      watched.expected_finish = FinishReason::length;
  }
}

void require(bool good, const std::string& what) {
  if (!good) throw Error(what);
}

class Simulation {
 public:
  // stages: pipeline stages, which is also the number of steps in flight if more than one.
  explicit Simulation(std::uint64_t seed, std::int64_t stages = 1)
      : workload_(random_workload(seed, stages)),
        random_(seed ^ 0x5eed),
        scheduler_(workload_.limits),
        rank_(workload_.limits, workload_.model) {
    std::reverse(workload_.arrivals.begin(), workload_.arrivals.end());
  }

  // Throws an Error that describes the failure.
  void run() {
    while (!workload_.arrivals.empty() || !scheduler_.idle()) {
      if (random_.chance(workload_.arrival_percent)) arrive();
      if (random_.chance(workload_.abort_percent)) abort_somebody();
      turn();
      scheduler_.check_invariants();
    }
    while (!results_.empty()) complete();
    scheduler_.check_invariants();
    for (const auto& [id, watched] : watched_) check_answer(watched);
    const SchedulerStatistics end = scheduler_.statistics();
    require(end.free_blocks == end.total_blocks, "blocks are in use at the end");
    require(end.free_window_blocks == end.total_window_blocks,
            "blocks of the group of windows are in use at the end");
    require(end.waiting == 0 && end.running == 0, "somebody waits or runs at the end");
  }

  SchedulerStatistics statistics() const { return scheduler_.statistics(); }
  bool has_states() const { return workload_.limits.states.kept; }

 private:
  void arrive() {
    if (workload_.arrivals.empty()) return;
    Watched watched;
    watched.given = std::move(workload_.arrivals.back());
    workload_.arrivals.pop_back();
    const auto prompt = static_cast<std::int64_t>(watched.given.tokens.size());
    const SchedulerLimits& limits = workload_.limits;
    const bool fits = prompt < std::min(limits.max_model_len, limits.blocks * limits.block_size);
    bool refused = false;
    try {
      scheduler_.add(watched.given);
    } catch (const Error&) {
      refused = true;
    }
    require(refused != fits, "a prompt that fits was refused, or one that does not was taken");
    if (refused) return;
    answer_alone(watched, workload_);
    max_rounds_ += 400 + 40 * (prompt + static_cast<std::int64_t>(watched.expected.size()));
    const SequenceId id = watched.given.id;
    watched_.emplace(id, std::move(watched));
  }

  void abort_somebody() {
    if (watched_.empty()) return;
    const auto id = static_cast<SequenceId>(random_.from(1, 24));
    const auto found = watched_.find(id);
    const bool lives = found != watched_.end() && !found->second.over();
    require(scheduler_.abort(id) == lives, "abort() is wrong about who lives");
    if (lives) found->second.aborted = true;
  }

  // Schedules a step, or takes a result.
  void turn() {
    require(++rounds_ < max_rounds_ + 1000, "it never ends");
    const bool full = scheduler_.in_flight() > workload_.max_in_flight;
    if (!full && !(scheduler_.in_flight() > 0 && random_.chance(workload_.wait_percent))) {
      if (const auto step = scheduler_.schedule()) {
        results_.push_back(rank_.step(*step));
        check_order();
        return;
      }
      require(!results_.empty() || scheduler_.idle(), "nothing to do, but somebody waits");
    }
    if (!results_.empty()) complete();
  }

  // No sequence starts before an older one.
  void check_order() {
    for (const SequenceId id : scheduler_.started()) {
      require(id > last_started_, "somebody was overtaken");
      last_started_ = id;
    }
  }

  void complete() {
    const StepResult result = std::move(results_.front());
    results_.pop_front();
    for (SequenceOutput& output : scheduler_.complete(result)) {
      Watched& watched = watched_.at(output.id);
      require(!watched.over(), "news of a sequence that is over");
      watched.answer.insert(watched.answer.end(), output.tokens.begin(), output.tokens.end());
      watched.logprobs.insert(watched.logprobs.end(), output.logprobs.begin(),
                              output.logprobs.end());
      require(output.prompt_logprobs.empty() || watched.answer.size() <= 1,
              "logprobs of the prompt after the first token");
      watched.prompt_logprobs.insert(watched.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                     output.prompt_logprobs.end());
      watched.finish = output.finish;
      require(output.cached_tokens >= 0, "it runs, but never began");
    }
  }

  static void check_answer(const Watched& watched) {
    require(watched.over(), "a sequence was forgotten");
    require(watched.answer.size() <= watched.expected.size() &&
                std::equal(watched.answer.begin(), watched.answer.end(), watched.expected.begin()),
            "an answer is not what it is alone");
    if (!watched.aborted) {
      require(watched.answer == watched.expected, "an answer is not complete");
      require(watched.finish == watched.expected_finish, "it ended for another reason than alone");
    }
    check_logprobs(watched);
  }

  static void check_logprobs(const Watched& watched) {
    std::vector<std::int32_t> tokens = watched.given.tokens;
    if (watched.given.prompt_logprobs < 0) require(watched.prompt_logprobs.empty(), "unasked");
    if (watched.given.prompt_logprobs >= 0 && !watched.aborted)
      require(watched.prompt_logprobs.size() == tokens.size() - 1,
              "logprobs of the prompt are not complete");
    for (std::size_t i = 0; i < watched.prompt_logprobs.size(); ++i)
      check_logprob(std::span(tokens).first(i + 1), tokens[i + 1], watched.prompt_logprobs[i]);
    require(
        watched.logprobs.size() == (watched.given.rules.logprobs >= 0 ? watched.answer.size() : 0),
        "as many logprobs as tokens where they are asked for");
    for (std::size_t i = 0; i < watched.logprobs.size(); ++i) {
      check_logprob(tokens, watched.answer[i], watched.logprobs[i]);
      tokens.push_back(watched.answer[i]);
    }
  }

  static void check_logprob(std::span<const std::int32_t> before, std::int32_t token,
                            const TokenLogprobs& given) {
    require(given.chosen.token == token &&
                given.chosen.logprob == MockModel::logprob(MockModel::hash(before), token),
            "a logprob is of something else");
  }

  Workload workload_;
  Random random_;
  Scheduler scheduler_;
  MockRank rank_;
  std::map<SequenceId, Watched> watched_;
  std::deque<StepResult> results_;
  std::int64_t rounds_ = 0, max_rounds_ = 0;
  SequenceId last_started_ = 0;
};

// A failed CHECK ends the program; this handler prints the seed first. Doctest's own handler runs
// next.
volatile std::sig_atomic_t seed_at_work = 0;
struct sigaction handler_before;

void name_seed(int signal) {
  char text[] = "NVLLM_SIMULATION_SEED=0000000000\n";
  int digit = static_cast<int>(sizeof text) - 3;
  for (std::sig_atomic_t rest = seed_at_work; rest > 0; rest /= 10)
    text[digit--] = static_cast<char>('0' + rest % 10);
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) return;
  sigaction(signal, &handler_before, nullptr);
  raise(signal);
}

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

void simulate(std::uint64_t simulations, const std::function<std::int64_t(std::uint64_t)>& stages) {
  const std::uint64_t only = environment("NVLLM_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : 1;
  const std::uint64_t last =
      only != 0 ? only : simulations * environment("NVLLM_STRESS", 1) / kSlowdown;
  std::uint64_t preemptions = 0, swapped = 0, recomputed = 0, found = 0, found_with_group = 0;
  std::uint64_t saved = 0, restored = 0, swapped_states = 0, with_states = 0;
  struct sigaction handler = {};
  handler.sa_handler = name_seed;
  sigaction(SIGABRT, &handler, &handler_before);
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    INFO("NVLLM_SIMULATION_SEED=", seed);
    seed_at_work = static_cast<std::sig_atomic_t>(seed);
    Simulation simulation(seed, stages(seed));
    std::string wrong;
    try {
      simulation.run();
    } catch (const Error& error) {
      wrong = error.what();
    }
    CHECK(wrong == "");
    const SchedulerStatistics statistics = simulation.statistics();
    preemptions += statistics.preemptions;
    swapped += statistics.swapped_blocks;
    recomputed += statistics.recomputed_tokens;
    found += statistics.prefix.hit_tokens;
    saved += statistics.saved_states;
    restored += statistics.restored_states;
    swapped_states += statistics.swapped_states;
    with_states += simulation.has_states() ? 1 : 0;
    if (statistics.total_window_blocks > 0) found_with_group += statistics.prefix.hit_tokens;
  }
  sigaction(SIGABRT, &handler_before, nullptr);
  if (only != 0) return;
  // The workloads are hard enough to be meaningful.
  CHECK(preemptions > last / 2);
  CHECK(swapped > last / 2);
  CHECK(recomputed > last);
  CHECK(found > last);
  CHECK(found_with_group > last / 4);
  CHECK(saved >= with_states);
  CHECK(restored >= with_states / 4);
  CHECK(swapped_states >= with_states / 8);
}

TEST_CASE("random workloads: everybody's answer is what it is alone, and nothing is left behind") {
  simulate(kSimulations, [](std::uint64_t) { return 1; });
}

// A sequence that is swapped in may lose a block to its window at once, and another one that is
// swapped in by the same step gets it.
TEST_CASE("two sequences that are swapped in by one step get a block each") {
  for (const std::uint64_t seed : {31703, 72620, 80771, 95178}) {
    CAPTURE(seed);
    CHECK_NOTHROW(Simulation(seed, 1).run());
  }
}

TEST_CASE("the same in 2 to 5 pipeline stages: a row's token is known when it is scheduled") {
  simulate(kSimulations / 2, [](std::uint64_t seed) { return 2 + seed % 4; });
}

}  // namespace
}  // namespace nvllm::runtime
