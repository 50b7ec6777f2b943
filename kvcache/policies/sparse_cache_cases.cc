// SparseCache: with budgets for everything it is attention to everything; with less, a sequence's results depend
// neither on what runs beside it nor on who had its slot and blocks before.
#include <cstring>
#include <functional>
#include <random>

#include "kernels/testing/cases.h"
#include "kvcache/policies/sparse_cache.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::normal_values;
using kernels::testing::Placed;

constexpr std::int64_t kLayers = 2, kKvHeads = 2, kGroup = 2, kHeads = 4, kHeadDim = 64;
constexpr std::int64_t kBlocks = 160, kSequences = 6, kMostRows = 700, kMostTokens = 1024;

// Its values depend on its seed and its places alone.
struct Sequence {
  std::uint32_t slot;
  unsigned seed;
  std::vector<BlockId> blocks;
  std::int64_t length = 0;
  std::vector<float> results;  // of all its rows so far, layer after layer in each step

  std::vector<float> values(std::int64_t layer, std::int64_t position, unsigned what,
                            std::int64_t heads) const {
    const auto at = static_cast<unsigned>((position * kLayers + layer) * 3) + what;
    return normal_values<float>(heads * kHeadDim, seed * 1000003 + at, 0, what == 0 ? 2.0f : 1.0f);
  }
};

// Which cache plays: the policies' or, for everything, the storage's own.
struct Policies {
  std::function<std::unique_ptr<PromptPolicy>(Backend&, const PromptLimits&)>
      prompts;                    // may be none
  std::int64_t quest_budget = 0;  // tokens; 0: none
};

const PromptLimits kPromptLimits{.rows = kMostRows, .tokens = kMostTokens, .heads = kHeads};

Policies xattention(float threshold) {
  return {[=](Backend& backend, const PromptLimits& limits) {
            return XAttention::create(backend, limits, threshold);
          },
          0};
}
Policies minference(MInference::Budget budget) {
  return {[=](Backend& backend, const PromptLimits& limits) {
            return MInference::create(backend, limits, budget);
          },
          0};
}

class Player {
 public:
  Player(Backend& backend, const Policies& policies, std::int64_t block_size = 16)
      : backend_(backend),
        stream_(backend.create_stream()),
        shape_{.layers = kLayers,
               .block_size = block_size,
               .kv_heads = kKvHeads,
               .head_dim = kHeadDim,
               .dtype = DType::f32},
        storage_(backend, shape_, kBlocks, 0) {
    std::optional<QuestLimits> quest;
    if (policies.quest_budget > 0) {
      quest = QuestLimits{.shape = shape_,
                          .blocks = kBlocks,
                          .sequences = kSequences,
                          .tokens = kMostTokens,
                          .budget = policies.quest_budget};
    }
    if (policies.prompts) prompts_ = policies.prompts(backend, kPromptLimits);
    sparse_.emplace(backend, *stream_, storage_, prompts_.get(), quest,
                    SparseLimits{.rows = kMostRows, .sequences = kSequences, .least_tokens = 100});
  }

  // The next rows of some sequences; their results are added to them.
  void step(const std::vector<std::pair<Sequence*, std::int64_t>>& rows) {
    std::vector<std::int32_t> starts{0}, lengths, tables;
    std::vector<StepSequence> parts;
    std::int64_t width = 1;
    for (const auto& [sequence, count] : rows) {
      width = std::max(width, static_cast<std::int64_t>(sequence->blocks.size()));
    }
    for (const auto& [sequence, count] : rows) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(count));
      lengths.push_back(static_cast<std::int32_t>(sequence->length + count));
      tables.insert(tables.end(), sequence->blocks.begin(), sequence->blocks.end());
      tables.resize(lengths.size() * static_cast<std::size_t>(width), 0);
      parts.push_back({sequence->slot, sequence->blocks, sequence->length, count});
    }
    const Placed<std::int32_t> starts_there(backend_, *stream_, starts),
        lengths_there(backend_, *stream_, lengths), tables_there(backend_, *stream_, tables);
    const auto sequences = static_cast<std::int64_t>(rows.size());
    kernels::Attention args;
    args.query_start = starts_there.view({sequences + 1});
    args.kv_length = lengths_there.view({sequences});
    args.kv.block_table = tables_there.view({sequences, width});
    args.group = kGroup;
    args.scale = 0.125f;
    args.max_kv_length = kMostTokens;
    for (const auto& part : parts) args.max_query_rows = std::max(args.max_query_rows, part.rows);

    sparse_->begin_step({.number = ++number_, .sequences = parts, .may_repeat = false}, *stream_);
    sparse_->begin_pass(*stream_);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) attend(layer, rows, args);
    sparse_->end_pass(*stream_);
    sparse_->end_step(*stream_);
    for (const auto& [sequence, count] : rows) sequence->length += count;
  }

 private:
  void attend(std::int64_t layer, const std::vector<std::pair<Sequence*, std::int64_t>>& rows,
              kernels::Attention args) {
    std::vector<float> q;
    for (const auto& [sequence, count] : rows) {
      for (std::int64_t t = sequence->length; t < sequence->length + count; ++t) {
        store(layer, *sequence, t);
        const std::vector<float> row = sequence->values(layer, t, 0, kHeads);
        q.insert(q.end(), row.begin(), row.end());
      }
    }
    const auto count = static_cast<std::int64_t>(q.size()) / (kHeads * kHeadDim);
    const Placed<float> q_there(backend_, *stream_, q);
    Placed<float> out(backend_, *stream_, std::vector<float>(q.size(), -77));
    args.q = q_there.view({count, kHeads, kHeadDim});
    args.out = out.view({count, kHeads, kHeadDim});
    sparse_->attend(layer, args, *stream_);
    const std::vector<float> results = out.fetch();
    auto from = results.begin();
    for (const auto& [sequence, each] : rows) {
      const auto to = from + each * kHeads * kHeadDim;
      sequence->results.insert(sequence->results.end(), from, to);
      from = to;
    }
  }

  void store(std::int64_t layer, const Sequence& sequence, std::int64_t t) {
    const kernels::KvView view = sparse_->store_view(layer, *stream_);
    const BlockId block = sequence.blocks.at(static_cast<std::size_t>(t / shape_.block_size));
    for (const unsigned what : {1u, 2u}) {
      const TensorView& cache = what == 1 ? view.keys : view.values;
      const std::vector<float> row = sequence.values(layer, t, what, kKvHeads);
      float* to =
          cache.as<float>() + block * cache.stride[0] + t % shape_.block_size * cache.stride[1];
      backend_.copy(to, row.data(), row.size() * sizeof(float), *stream_);
      stream_->synchronize();
    }
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  BlockShape shape_;
  PagedStorage storage_;
  std::unique_ptr<PromptPolicy> prompts_;
  std::optional<SparseCache> sparse_;
  std::uint64_t number_ = 0;
};

// Blocks from all over the cache, room for a few hundred tokens.
Sequence sequence_of(std::uint32_t slot, unsigned seed, unsigned places) {
  Sequence sequence{slot, seed, {}, 0, {}};
  for (BlockId i = 0; i < 22; ++i) {
    sequence.blocks.push_back(static_cast<BlockId>((places * 22 + i) * 7 % 157));
  }
  return sequence;
}

// Prompts, at once and in parts, long and short, and tokens, in steps of many kinds.
void play(Player& player, Sequence& a, Sequence& b, Sequence& c) {
  player.step({{&a, 150}, {&b, 30}});
  player.step({{&b, 1}, {&a, 101}, {&c, 260}});
  player.step({{&b, 1}, {&a, 1}, {&c, 40}});
  for (int i = 0; i < 6; ++i) player.step({{&b, 1}, {&a, 1}, {&c, 1}});
  player.step({{&c, 17}, {&b, 1}, {&a, 2}});
}

// A few roundings of float32 and different orders of summing up; values are below 5.
double most_apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = std::fabs(double{a[i]} - b[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

TEST_CASE("with budgets for everything, policies attend to everything") {
  BACKEND_OR_SKIP(backend);
  const auto play_with = [&](const Policies& policies) {
    Player player(*backend, policies);
    std::vector<Sequence> sequences{sequence_of(0, 1, 0), sequence_of(1, 2, 1),
                                    sequence_of(2, 3, 2)};
    play(player, sequences[0], sequences[1], sequences[2]);
    return sequences;
  };
  const std::vector<Sequence> right = play_with({});
  Policies all = xattention(1);
  all.quest_budget = kMostTokens;
  Policies lines = minference(MInference::Budget::everything);
  lines.quest_budget = kMostTokens;
  for (const Policies& policies : {all, lines}) {
    const std::vector<Sequence> got = play_with(policies);
    for (std::size_t i = 0; i < right.size(); ++i) {
      CHECK(most_apart(got[i].results, right[i].results) < 2e-5);
    }
  }
}

std::vector<Policies> frugal() {
  Policies tiles = xattention(0.6f);
  Policies lines = minference(MInference::Budget::published);
  tiles.quest_budget = 64;
  lines.quest_budget = 48;
  return {tiles, lines};
}

TEST_CASE("with less, they attend to less") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    Player player(*backend, policies), full(*backend, {});
    Sequence a = sequence_of(0, 1, 0), b = sequence_of(1, 2, 1), c = sequence_of(2, 3, 2);
    Sequence x = a, y = b, z = c;
    play(player, a, b, c);
    play(full, x, y, z);
    CHECK(most_apart(a.results, x.results) > 1e-3);
    CHECK(most_apart(c.results, z.results) > 1e-3);
  }
}

TEST_CASE("what a sequence gets does not depend on what runs beside it") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    Player together(*backend, policies), alone(*backend, policies);
    Sequence a = sequence_of(0, 1, 0), b = sequence_of(1, 2, 1), c = sequence_of(2, 3, 2);
    Sequence a_alone = a;
    play(together, a, b, c);
    for (const std::int64_t rows : {150, 101, 1, 1, 1, 1, 1, 1, 1, 2}) {
      alone.step({{&a_alone, rows}});
    }
    CHECK(kernels::testing::same_bits(a.results, a_alone.results));
  }
}

TEST_CASE("who takes a slot and blocks over finds nothing of the one before") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    Player used(*backend, policies), fresh(*backend, policies);
    Sequence before = sequence_of(0, 77, 0), other = sequence_of(1, 78, 1),
             third = sequence_of(2, 79, 2);
    play(used, before, other, third);
    Sequence after = sequence_of(0, 5, 0), right = after;
    for (Player* player : {&used, &fresh}) {
      Sequence& mine = player == &used ? after : right;
      player->step({{&mine, 130}});
      for (int i = 0; i < 20; ++i) player->step({{&mine, 1}});
    }
    CHECK(kernels::testing::same_bits(after.results, right.results));
  }
}

TEST_CASE("quest refuses blocks that are no multiple of its pages") {
  BACKEND_OR_SKIP(backend);
  Policies quest;
  quest.quest_budget = 64;
  std::string message;
  try {
    Player player(*backend, quest, 8);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == "quest: blocks have 8 tokens; pass --block-size a multiple of 16");
}

}  // namespace
}  // namespace nvllm::kvcache
