// Sampler: samples the same tokens for any number of ranks and any batch, and only tokens that a
// direct reading of the rules allows.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <string>

#include "layers/embedding.h"
#include "layers/sampler.h"
#include "layers/testing/sampler_rank.h"

namespace nvllm::layers {
namespace {

bool has_logprobs(const World& world, const TestRow& row) {
  return row.slot < 0 ? row.target >= 0 : world.rules[row.slot].logprobs >= 0;
}

// "" or the first difference between two answers to the same rows.
std::string difference(const World& world, const std::vector<TestRow>& rows, const Answer& a,
                       const Answer& b) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Answer tokens_only = a;
    if (!has_logprobs(world, rows[row])) tokens_only.logprob.clear();
    const std::string what = tokens_only.difference(row, b, row);
    if (!what.empty()) return what + " of row " + std::to_string(row);
  }
  return "";
}

TEST_CASE("any number of ranks samples what one samples, with all rules at once") {
  on_groups([](LayerRank& rank) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      const World world(70, seed);
      SamplerRank alone(rank, world, true), together(rank, world, false);
      std::vector<TestRow> rows = world.rows;
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

TEST_CASE("with tp_invariant log-probabilities of any number of ranks have the bits of one") {
  on_groups([](LayerRank& rank) {
    const World world(70, 5);
    const auto answer_of = [&](bool alone, bool tp_invariant) {
      return SamplerRank(rank, world, alone, tp_invariant).sample(world.rows);
    };
    const auto wanted = [&](const std::vector<float>& values, std::int64_t columns) {
      std::vector<float> of_rows;
      for (std::size_t row = 0; row < world.rows.size(); ++row) {
        if (!has_logprobs(world, world.rows[row])) continue;
        const float* begin = values.data() + row * columns;
        of_rows.insert(of_rows.end(), begin, begin + columns);
      }
      return of_rows;
    };
    const Answer one = answer_of(true, true), all = answer_of(false, true);
    CHECK(difference(world, world.rows, all, one) == "");
    CHECK((wanted(all.logprob, 1) == wanted(one.logprob, 1)));
    CHECK((wanted(all.top_logprobs, kLimits.max_logprobs) ==
           wanted(one.top_logprobs, kLimits.max_logprobs)));
    // Otherwise they are close, but not equal.
    const Answer plain = answer_of(true, false), plain_all = answer_of(false, false);
    CHECK(difference(world, world.rows, all, plain) == "");
    CHECK((wanted(plain.logprob, 1) != wanted(plain_all.logprob, 1)));
  });
}

// A row's logits after bias and penalties, as documented.
std::vector<double> plain_penalties(const World& world, const TestRow& row) {
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
  if (row.position < rules.min_length) {
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

// Which tokens may be sampled after truncation, with tolerance for rounding at a boundary.
std::vector<bool> plain_truncation(const SamplingRules& rules, const std::vector<double>& logits) {
  std::vector<std::pair<double, std::int64_t>> order;  // relative probability, token
  const double max = *std::max_element(logits.begin(), logits.end());
  const double temperature = rules.temperature > 0 ? rules.temperature : 1e-9;
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    order.emplace_back(std::exp((logits[id] - max) / temperature), id);
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
        const TestRow& row = world.rows[r];
        const std::int32_t token = answer.tokens[r];
        forbidden += !plain_truncation(world.rules[row.slot], plain_penalties(world, row))[token];
        if (!has_logprobs(world, row)) continue;
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
    std::vector<TestRow> turned(world.rows.rbegin(), world.rows.rend());
    const Answer backwards = together.sample(turned);
    for (std::size_t row = 0; row < 60; ++row) {
      CHECK(backwards.tokens[59 - row] == all.tokens[row]);
      if (row % 6 != 0) continue;
      const std::vector<TestRow> single = {world.rows[row]};
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
    CHECK_FALSE(step.penalties);
    CHECK_FALSE(step.top_k_top_p);
    const Answer lean = together.sample(world.rows);
    step.penalties = step.top_k_top_p = true;
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

TEST_CASE("logits that are still to be made: tokens are those of logits that are there") {
  static constexpr std::int64_t kWords = 101'376, kHidden = 64, kRows = 24;
  on_groups([](LayerRank& rank) {
    World world(kRows, 9);
    for (SamplingRules& rules : world.rules) {
      const float temperature = rules.temperature;
      rules = SamplingRules();
      rules.temperature = temperature;
      rules.seed = static_cast<std::uint64_t>(temperature * 100);
    }
    for (const bool alone : {true, false}) {
      SamplerRank there(rank, world, alone);
      LmHead head("head", "lm_head.weight", kWords, kHidden, there.shard_);
      rank.bind(head, DType::bf16);
      Sampler sampler(head.vocabulary(), head.stride(), kWords, there.shard_, kLimits,
                      rank.backend());
      for (std::int64_t slot = 0; slot < kRows; ++slot)
        sampler.set(slot, world.rules[static_cast<std::size_t>(slot)], rank.stream());
      SampleStep step = there.step_of(world.rows);
      step.logits = rank.empty(DType::f32, kRows, head.stride());
      step.logits.shape[1] = head.vocabulary().size();
      const TensorView x = rank.noise_tensor("x", DType::bf16, kRows, kHidden);
      const LogitsCall call = head.call(step.logits, {.out = {}, .x = x}, there.context_);

      const auto tokens = [&](const LogitsCall* head, bool top_k_top_p, std::int32_t logprobs) {
        step.head = head;
        step.top_k_top_p = top_k_top_p;
        step.logprobs = logprobs;
        return there.integers(sampler.sample(step, there.last_tokens_, there.context_).tokens);
      };
      const std::vector<std::int32_t> at_once = tokens(&call, false, -1);
      CHECK(tokens(&call, true, -1) == at_once);
      CHECK(tokens(&call, false, 2) == at_once);
      CHECK(tokens(nullptr, false, -1) == at_once);  // the logits are still there
      CHECK(std::ranges::count(at_once, at_once[0]) < kRows);
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

TEST_CASE("new rules hold from the next step on; steps that are enqueued keep theirs") {
  on_groups([](LayerRank& rank) {
    World world(1, 7);
    SamplingRules& rules = world.rules[0];
    rules = SamplingRules();
    rules.temperature = 0;
    std::fill(world.rows[0].logits.begin(), world.rows[0].logits.end(), 0.0f);
    SamplerRank together(rank, world, false);
    const std::vector<std::int32_t> wanted = {500, 3, 1002, 0, 64};
    std::vector<SampleStep> steps;  // each with its own logits, which rules change
    std::vector<TensorView> tokens;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      steps.push_back(together.step_of(world.rows));
      steps.back().penalties = true;
      tokens.push_back(rank.ids({-1}));
    }
    const auto enqueue = [&] {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        SamplingRules next;
        next.temperature = 0;
        if (wanted[i] == 500) next.allowed = {500, 600};
        if (wanted[i] == 3) next.bad_words = {{0}, {1}, {2}};
        if (wanted[i] == 1002) next.bias = {{1002, 1.0f}};
        if (wanted[i] == 64) next.allowed = {1000, 64};
        together.sampler().set(0, next, rank.stream());
        const Sampled sampled =
            together.sampler().sample(steps[i], together.last_tokens_, rank.together());
        rank.backend().copy(tokens[i].data, sampled.tokens.data, sizeof(std::int32_t),
                            rank.stream());
      }
    };
    enqueue();  // a kernel's first use waits for the device, which must not be delayed later
    std::promise<void> enqueued;
    rank.stream().host_call([all = enqueued.get_future().share()] { all.wait(); });
    enqueue();
    enqueued.set_value();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CHECK(together.integers(tokens[i])[0] == wanted[i]);
    }
  });
}

TEST_CASE("captured in a graph, it samples by the rules of the moment") {
  on_groups([](LayerRank& rank) {
    const World world(20, 9), other(20, 10);
    SamplerRank alone(rank, world, true);
    const SampleStep step = alone.step_of(world.rows);
    REQUIRE(step.penalties);
    REQUIRE(step.top_k_top_p);
    // Rules change the logits, so each launch starts with fresh ones.
    const SampleStep fresh = alone.step_of(world.rows);
    Sampled sampled;
    const auto graph = rank.backend().capture(rank.stream(), [&] {
      rank.backend().copy(step.logits.data, fresh.logits.data, step.logits.bytes(), rank.stream());
      sampled = alone.sampler().sample(step, alone.last_tokens_, rank.alone());
    });
    for (const World* rules : {&world, &other, &world}) {
      for (std::int64_t slot = 0; slot < 20; ++slot) {
        alone.sampler().set(slot, rules->rules[slot], rank.stream());
      }
      graph->launch(rank.stream());
      const std::vector<std::int32_t> sampled_tokens = alone.integers(sampled.tokens);
      CHECK(sampled_tokens == alone.sample(world.rows).tokens);
    }
  });
}

TEST_CASE("its memory is what it said") {
  on_groups([](LayerRank& rank) {
    const World world(1, 8);
    const std::size_t before = rank.backend().ledger().total(MemoryKind::device);
    const Shard shard = rank.shard();
    const Range own = shard_range(kVocabulary, shard);
    const std::int64_t stride = shard_range(kVocabulary, {0, shard.ranks}).size();
    const Sampler sampler(own, stride, kVocabulary, shard, kLimits, rank.backend());
    CHECK(rank.backend().ledger().total(MemoryKind::device) - before ==
          Sampler::bytes(stride, shard, kLimits));
  });
}

}  // namespace
}  // namespace nvllm::layers
