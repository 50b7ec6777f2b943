// Fixtures of sampler tests: sequences with varied rules, and a rank that samples for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "layers/sampler.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {

inline constexpr std::int64_t kVocabulary = 1003;  // no part ends at the end of a 32-bit word
inline constexpr std::int64_t kBlockSize = 4, kBlocks = 40, kTableBlocks = 10;
inline constexpr SamplerLimits kLimits{.slots = 80, .rows = 80, .max_logprobs = 7};

// A row of a step, with the same logits on all ranks.
struct TestRow {
  std::int32_t slot = 0, position = 0, target = -1;
  std::vector<float> logits;
  std::vector<std::int32_t> blocks;
};

struct Answer {
  std::vector<std::int32_t> tokens, rank, top_ids;
  std::vector<float> logprob, top_logprobs;

  // Compares one row; logprobs have a tolerance, since their sums depend on the ranks.
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

// Sequences with varied rules and one row each, determined by the seed.
struct World {
  std::vector<SamplingRules> rules;
  std::vector<TestRow> rows;
  std::vector<std::int32_t> history;

  World(std::int64_t count, unsigned seed) : history(kBlocks * kBlockSize) {
    std::mt19937 random(seed);
    for (std::int32_t& token : history) token = static_cast<std::int32_t>(random() % 50 * 20);
    for (std::int64_t slot = 0; slot < count; ++slot) {
      TestRow row;
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

  std::int32_t token(const TestRow& row, std::int64_t position) const {
    return history[row.blocks[position / kBlockSize] * kBlockSize + position % kBlockSize];
  }

  SamplingRules random_rules(std::mt19937& random, const TestRow& row) const {
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
    if (chance(30)) rules.min_length = row.position + 1;
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

// One rank's sampler with a World in its device memory.
class SamplerRank {
 public:
  SamplerRank(LayerRank& rank, const World& world, bool alone, bool tp_invariant = false)
      : rank_(rank),
        world_(world),
        context_(alone ? rank.alone() : rank.together()),
        shard_(shard_of(rank, alone, tp_invariant)),
        own_(vocabulary_part_of(kVocabulary, shard_)),
        stride_(vocabulary_part_of(kVocabulary, {0, shard_.ranks, tp_invariant}).size()),
        sampler_(own_, stride_, kVocabulary, shard_, kLimits, rank.backend()),
        history_(rank.ids(world.history)),
        last_tokens_(rank.ids(std::vector<std::int32_t>(kLimits.slots, -9))) {
    history_ = TensorView(history_.data, DType::i32, {kBlocks, kBlockSize});
    for (std::size_t slot = 0; slot < world.rules.size(); ++slot) {
      sampler_.set(static_cast<std::int64_t>(slot), world.rules[slot], rank.stream());
    }
  }

  static Shard shard_of(LayerRank& rank, bool alone, bool tp_invariant) {
    Shard shard = alone ? Shard{0, 1} : rank.shard();
    shard.tp_invariant = tp_invariant;
    return shard;
  }

  Sampler& sampler() { return sampler_; }
  Range own() const { return own_; }
  std::vector<std::int32_t> last_tokens() { return integers(last_tokens_); }

  Answer sample(const std::vector<TestRow>& rows) {
    const SampleStep step = step_of(rows);
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

  SampleStep step_of(const std::vector<TestRow>& rows) {
    const auto count = static_cast<std::int64_t>(rows.size());
    std::vector<float> logits;
    std::vector<std::int32_t> slots, positions, targets, table;
    SampleStep step;
    for (const TestRow& row : rows) {
      logits.insert(logits.end(), row.logits.begin() + own_.begin, row.logits.begin() + own_.end);
      logits.resize(logits.size() + stride_ - own_.size());
      slots.push_back(row.slot);
      positions.push_back(row.position);
      targets.push_back(row.target);
      table.insert(table.end(), row.blocks.begin(), row.blocks.end());
      if (row.slot >= 0) {
        step.penalties |= world_.rules[row.slot].changes_logits();
        step.top_k_top_p |= world_.rules[row.slot].truncates();
      }
      // As many as possible, so that answers can be compared.
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

}  // namespace nvllm::layers
