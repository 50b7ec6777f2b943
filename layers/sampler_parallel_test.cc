// Sampler: whatever the number of ranks and whatever else is in the batch, the same tokens; and they are
// among those that a plain reading of the rules leaves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "layers/layer_rank.h"
#include "layers/sampler.h"

namespace nvllm::layers {
namespace {

constexpr std::int64_t kVocabulary = 1003;  // no cut is where a word of bits ends
constexpr std::int64_t kBlockSize = 4, kBlocks = 40, kTableBlocks = 10;
constexpr SamplerLimits kLimits{.slots = 80, .rows = 80, .max_logprobs = 7};

// What is asked of one row, everywhere the same.
struct Asked {
  std::int32_t slot = 0, position = 0, target = -1;
  std::vector<float> logits;
  std::vector<std::int32_t> blocks;
};

struct Answer {
  std::vector<std::int32_t> tokens, rank, top_ids;
  std::vector<float> logprob, top_logprobs;

  // Of one row; logprobs are sums whose parts depend on the ranks.
  std::string difference(std::size_t row, const Answer& other, std::size_t other_row) const {
    if (tokens[row] != other.tokens[other_row]) return "tokens";
    if (logprob.empty() || other.logprob.empty()) return "";
    if (rank[row] != other.rank[other_row]) return "ranks";
    if (std::fabs(logprob[row] - other.logprob[other_row]) > 1e-4f) return "logprobs";
    for (std::int64_t i = 0; i < kLimits.max_logprobs; ++i) {
      const std::size_t own = row * kLimits.max_logprobs + i;
      const std::size_t theirs = other_row * kLimits.max_logprobs + i;
      if (top_ids[own] != other.top_ids[theirs]) return "alternatives";
      if (std::fabs(top_logprobs[own] - other.top_logprobs[theirs]) > 1e-4f) {
        return "logprobs of alternatives";
      }
    }
    return "";
  }
};

// Sequences with all sorts of rules and a row of each; the same for the same seed.
struct World {
  std::vector<SamplingRules> rules;
  std::vector<Asked> rows;
  std::vector<std::int32_t> history;

  World(std::int64_t count, unsigned seed) : history(kBlocks * kBlockSize) {
    std::mt19937 random(seed);
    for (std::int32_t& token : history) token = static_cast<std::int32_t>(random() % 50 * 20);
    for (std::int64_t slot = 0; slot < count; ++slot) {
      Asked row;
      row.slot = static_cast<std::int32_t>(slot);
      row.position = 1 + static_cast<std::int32_t>(random() % (kTableBlocks * kBlockSize - 1));
      std::normal_distribution<float> normal(0, 3);
      for (std::int64_t i = 0; i < kVocabulary; ++i) row.logits.push_back(normal(random));
      for (std::int64_t i = 0; i < kTableBlocks; ++i) {
        row.blocks.push_back(static_cast<std::int32_t>(random() % kBlocks));
      }
      rules.push_back(random_rules(random, row));
      rows.push_back(row);
    }
  }

  std::int32_t token(const Asked& row, std::int64_t position) const {
    return history[row.blocks[position / kBlockSize] * kBlockSize + position % kBlockSize];
  }

  SamplingRules random_rules(std::mt19937& random, const Asked& row) const {
    const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
    const auto id = [&] { return static_cast<std::int32_t>(random() % kVocabulary); };
    SamplingRules rules;
    constexpr float kTemperatures[] = {0, 0.3f, 0.8f, 1, 1.5f};
    rules.temperature = kTemperatures[random() % 5];
    rules.seed = random();
    rules.prompt_length = static_cast<std::int32_t>(random() % (row.position + 1));
    if (chance(30)) rules.min_p = 0.02f;
    if (chance(40)) rules.top_k = 1 + static_cast<std::int32_t>(random() % 60);
    if (chance(40)) rules.top_p = 0.85f;
    if (chance(30)) rules.repetition_penalty = 1.4f;
    if (chance(30)) rules.presence_penalty = 0.7f;
    if (chance(30)) rules.frequency_penalty = 0.4f;
    if (chance(30)) rules.least_length = row.position + 1;
    if (chance(50)) rules.logprobs = static_cast<std::int32_t>(random() % 8);
    if (chance(60)) rules.ends = {id(), id()};
    if (chance(30)) rules.bias = {{id(), 5.0f}, {id(), -100.0f}};
    if (chance(20)) {
      for (int i = 0; i < 300; ++i) rules.allowed.push_back(id());
    }
    if (chance(30)) rules.bad_words = {{id()}, {token(row, row.position - 1), id()}};
    return rules;
  }
};

// One rank's sampler with a world in its memory.
class SamplerRank {
 public:
  SamplerRank(LayerRank& rank, const World& world, bool alone)
      : rank_(rank),
        world_(world),
        context_(alone ? rank.alone() : rank.together()),
        shard_(alone ? Shard{0, 1} : rank.shard()),
        own_(part_of(kVocabulary, shard_)),
        stride_(part_of(kVocabulary, {0, shard_.ranks}).size()),
        sampler_(own_, stride_, kVocabulary, shard_, kLimits, rank.backend()),
        history_(rank.ids(world.history)),
        last_tokens_(rank.ids(std::vector<std::int32_t>(kLimits.slots, -9))) {
    history_ = TensorView(history_.data, DType::i32, {kBlocks, kBlockSize});
    for (std::size_t slot = 0; slot < world.rules.size(); ++slot) {
      sampler_.set(static_cast<std::int64_t>(slot), world.rules[slot], rank.stream());
    }
  }

  Sampler& sampler() { return sampler_; }
  Range own() const { return own_; }
  std::vector<std::int32_t> last_tokens() { return integers(last_tokens_); }

  Answer sample(const std::vector<Asked>& asked) {
    const SampleStep step = step_of(asked);
    const Sampled sampled = sampler_.sample(step, last_tokens_, context_);
    Answer answer;
    answer.tokens = integers(sampled.tokens);
    if (step.logprobs < 0) return answer;
    answer.rank = integers(sampled.rank);
    answer.logprob = floats(sampled.logprob);
    answer.top_ids = integers(sampled.top_ids);
    answer.top_logprobs = floats(sampled.top_logprobs);
    return answer;
  }

  SampleStep step_of(const std::vector<Asked>& asked) {
    const auto count = static_cast<std::int64_t>(asked.size());
    std::vector<float> logits;
    std::vector<std::int32_t> slots, positions, targets, table;
    SampleStep step;
    for (const Asked& row : asked) {
      logits.insert(logits.end(), row.logits.begin() + own_.begin, row.logits.begin() + own_.end);
      logits.resize(logits.size() + stride_ - own_.size());
      slots.push_back(row.slot);
      positions.push_back(row.position);
      targets.push_back(row.target);
      table.insert(table.end(), row.blocks.begin(), row.blocks.end());
      if (row.slot >= 0) {
        step.adjust |= world_.rules[row.slot].adjusts();
        step.filter |= world_.rules[row.slot].filters();
      }
      // All that there may be, so that answers can be compared.
      if (row.slot < 0 || world_.rules[row.slot].logprobs >= 0) {
        step.logprobs = static_cast<std::int32_t>(kLimits.max_logprobs);
      }
    }
    step.logits = rank_.tensor(logits, DType::f32, count, stride_);
    step.logits.shape[1] = own_.size();
    step.slots = rank_.ids(slots);
    step.positions = rank_.ids(positions);
    step.targets = rank_.ids(targets);
    step.history = history_;
    step.block_table = TensorView(rank_.ids(table).data, DType::i32, {count, kTableBlocks});
    return step;
  }

  template <typename T>
  std::vector<T> fetched(const TensorView& tensor) {
    std::vector<T> values(tensor.elements());
    const Buffer here = rank_.backend().allocate(MemoryKind::pinned, tensor.bytes() + 1, "test");
    rank_.backend().copy(here.data(), tensor.data, tensor.bytes(), rank_.stream());
    if (context_.alone()) {
      rank_.stream().synchronize();
    } else {
      context_.communicator->wait(rank_.stream());
    }
    std::copy_n(static_cast<const T*>(here.data()), values.size(), values.begin());
    return values;
  }
  std::vector<std::int32_t> integers(const TensorView& tensor) {
    return fetched<std::int32_t>(tensor);
  }
  std::vector<float> floats(const TensorView& tensor) { return fetched<float>(tensor); }

  LayerRank& rank_;
  const World& world_;
  const Context context_;
  const Shard shard_;
  const Range own_;
  const std::int64_t stride_;
  Sampler sampler_;
  TensorView history_, last_tokens_;
};

bool scored(const World& world, const Asked& row) {
  return row.slot < 0 ? row.target >= 0 : world.rules[row.slot].logprobs >= 0;
}

// "" or where two answers to the same rows differ.
std::string difference(const World& world, const std::vector<Asked>& rows, const Answer& a,
                       const Answer& b) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Answer tokens_only = a;
    if (!scored(world, rows[row])) tokens_only.logprob.clear();
    const std::string what = tokens_only.difference(row, b, row);
    if (!what.empty()) return what + " of row " + std::to_string(row);
  }
  return "";
}

TEST_CASE("any number of ranks draws what one draws, with all rules at once") {
  on_groups([](LayerRank& rank) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      const World world(70, seed);
      SamplerRank alone(rank, world, true), together(rank, world, false);
      std::vector<Asked> rows = world.rows;
      rows[5].slot = -1;
      rows[5].target = 77;
      rows[6].slot = -1;
      rows[69].slot = -1;
      rows[69].target = 1002;
      const Answer one = alone.sample(rows);
      CHECK(one.tokens[5] == 77);
      CHECK(one.tokens[6] == -1);
      const Answer all = together.sample(rows);
      CHECK(difference(world, rows, all, one) == "");
      CHECK(together.last_tokens() == alone.last_tokens());
      CHECK(together.last_tokens()[69] == -9);
      CHECK(together.last_tokens()[7] == all.tokens[7]);
    }
  });
}

// A row's logits after bias and penalties, by the words of the documentation.
std::vector<double> plainly_adjusted(const World& world, const Asked& row) {
  const SamplingRules& rules = world.rules[row.slot];
  std::vector<double> logits(row.logits.begin(), row.logits.end());
  for (const auto& entry : rules.bias) logits[entry.first] += entry.second;
  std::vector<int> in_all(kVocabulary), in_answer(kVocabulary);
  for (std::int32_t i = 0; i < row.position; ++i) {
    ++in_all[world.token(row, i)];
    in_answer[world.token(row, i)] += i >= rules.prompt_length;
  }
  std::vector<bool> out(kVocabulary, !rules.allowed.empty());
  for (const std::int32_t id : rules.allowed) out[id] = false;
  if (row.position < rules.least_length) {
    for (const std::int32_t id : rules.ends) out[id] = true;
  }
  for (const auto& word : rules.bad_words) {
    const auto before = static_cast<std::int32_t>(word.size()) - 1;
    bool matches = before <= row.position;
    for (std::int32_t i = 0; matches && i < before; ++i) {
      matches = world.token(row, row.position - before + i) == word[i];
    }
    if (matches) out[word.back()] = true;
  }
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    double& logit = logits[id];
    if (in_all[id] > 0) {
      logit = logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
    }
    logit -= rules.frequency_penalty * in_answer[id];
    if (in_answer[id] > 0) logit -= rules.presence_penalty;
    if (out[id]) logit = -std::numeric_limits<double>::infinity();
  }
  return logits;
}

// Which tokens may be drawn then, with room for what rounding does at a boundary.
std::vector<bool> plainly_kept(const SamplingRules& rules, const std::vector<double>& logits) {
  std::vector<std::pair<double, std::int64_t>> order;  // relative probability, token
  const double most = *std::max_element(logits.begin(), logits.end());
  const double temperature = rules.temperature > 0 ? rules.temperature : 1e-9;
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    order.emplace_back(std::exp((logits[id] - most) / temperature), id);
  }
  std::sort(order.rbegin(), order.rend());
  while (order.back().first < rules.min_p * 0.9999) order.pop_back();
  const auto k = static_cast<std::size_t>(rules.top_k);
  if (rules.top_k > 0 && k < order.size()) order.resize(k);
  double total = 0, sum = 0;
  for (const auto& one : order) total += one.first;
  std::size_t count = 0;
  for (; count < order.size() && sum < rules.top_p * total * 1.0001; ++count) {
    sum += order[count].first;
  }
  std::vector<bool> kept(kVocabulary, false);
  for (std::size_t i = 0; i < count; ++i) kept[order[i].second] = true;
  return kept;
}

TEST_CASE("tokens are among those that the rules leave, and logprobs are those of the raw logits") {
  on_groups([](LayerRank& rank) {
    for (unsigned seed = 11; seed <= 13; ++seed) {
      const World world(70, seed);
      SamplerRank together(rank, world, false);
      const Answer answer = together.sample(world.rows);
      int forbidden = 0, wrong = 0;
      for (std::size_t r = 0; r < world.rows.size(); ++r) {
        const Asked& row = world.rows[r];
        const std::int32_t token = answer.tokens[r];
        forbidden += !plainly_kept(world.rules[row.slot], plainly_adjusted(world, row))[token];
        if (!scored(world, row)) continue;
        double sum = 0;
        int higher = 0;
        for (const float logit : row.logits) {
          sum += std::exp(static_cast<double>(logit));
          higher += logit > row.logits[token];
        }
        wrong += std::fabs(answer.logprob[r] - (row.logits[token] - std::log(sum))) > 1e-5;
        wrong += answer.rank[r] != higher + 1;
        const std::int32_t best = answer.top_ids[r * kLimits.max_logprobs];
        wrong += row.logits[best] != *std::max_element(row.logits.begin(), row.logits.end());
      }
      CHECK(forbidden == 0);
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("what else is in the batch changes nothing") {
  on_groups([](LayerRank& rank) {
    const World world(60, 4);
    SamplerRank together(rank, world, false);
    const Answer all = together.sample(world.rows);
    std::vector<Asked> turned(world.rows.rbegin(), world.rows.rend());
    const Answer backwards = together.sample(turned);
    for (std::size_t row = 0; row < 60; ++row) {
      CHECK(backwards.tokens[59 - row] == all.tokens[row]);
      if (row % 6 != 0) continue;
      const std::vector<Asked> single = {world.rows[row]};
      CHECK(together.sample(single).tokens[0] == all.tokens[row]);
    }
  });
}

TEST_CASE("greedy and temperature alone: the short way gives what the long one gives") {
  on_groups([](LayerRank& rank) {
    World world(40, 5);
    for (std::size_t slot = 0; slot < 40; ++slot) {
      const SamplingRules old = world.rules[slot];
      world.rules[slot] = SamplingRules();
      world.rules[slot].temperature = old.temperature;
      world.rules[slot].seed = old.seed;
    }
    SamplerRank together(rank, world, false);
    SampleStep step = together.step_of(world.rows);
    CHECK_FALSE(step.adjust);
    CHECK_FALSE(step.filter);
    const Answer lean = together.sample(world.rows);
    step.adjust = step.filter = true;
    step.logprobs = 3;
    const Sampled sampled = together.sampler().sample(step, together.last_tokens_, rank.together());
    CHECK(together.integers(sampled.tokens) == lean.tokens);
    for (std::size_t slot = 0; slot < 40; ++slot) {
      if (world.rules[slot].temperature != 0) continue;
      const auto& logits = world.rows[slot].logits;
      CHECK(lean.tokens[slot] == std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
  });
}

TEST_CASE("no rows: the collective calls are the same, and nothing happens") {
  on_groups([](LayerRank& rank) {
    const World world(3, 6);
    SamplerRank together(rank, world, false);
    CHECK(together.sample({}).tokens.empty());
    CHECK(together.sample(world.rows).tokens.size() == 3);
  });
}

TEST_CASE(
    "a slot's new rules hold from the next step on, old lists are gone, steps in flight keep "
    "theirs") {
  on_groups([](LayerRank& rank) {
    World world(1, 7);
    SamplingRules& rules = world.rules[0];
    rules = SamplingRules();
    rules.temperature = 0;
    std::fill(world.rows[0].logits.begin(), world.rows[0].logits.end(), 0.0f);
    SamplerRank together(rank, world, false);
    // All enqueued before any is looked at.
    std::vector<std::int32_t> expected;
    std::vector<TensorView> kept;
    for (const std::int32_t wanted : {500, 3, 1002, 0, 64}) {
      SamplingRules next;
      next.temperature = 0;
      if (wanted == 500) next.allowed = {500, 600};
      if (wanted == 3) next.bad_words = {{0}, {1}, {2}};
      if (wanted == 1002) next.bias = {{1002, 1.0f}};
      if (wanted == 64) next.allowed = {1000, 64};
      together.sampler().set(0, next, rank.stream());
      SampleStep own = together.step_of(world.rows);
      own.adjust = true;
      const Sampled sampled =
          together.sampler().sample(own, together.last_tokens_, rank.together());
      kept.push_back(rank.ids({-1}));
      rank.backend().copy(kept.back().data, sampled.tokens.data, sizeof(std::int32_t),
                          rank.stream());
      expected.push_back(wanted);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      CHECK(together.integers(kept[i])[0] == expected[i]);
    }
  });
}

TEST_CASE("its memory is what it said") {
  on_groups([](LayerRank& rank) {
    const World world(1, 8);
    const std::size_t before = rank.backend().ledger().total(MemoryKind::device);
    const Shard shard = rank.shard();
    const Range own = part_of(kVocabulary, shard);
    const std::int64_t stride = part_of(kVocabulary, {0, shard.ranks}).size();
    const Sampler sampler(own, stride, kVocabulary, shard, kLimits, rank.backend());
    CHECK(rank.backend().ledger().total(MemoryKind::device) - before ==
          Sampler::bytes(stride, kVocabulary, shard, kLimits));
  });
}

}  // namespace
}  // namespace nvllm::layers
