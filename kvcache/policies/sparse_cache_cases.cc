// Policies in every cache that serves them, SparseCache over a paged and a layer-wise one, and ChunkedCache: with budgets
// for everything it is attention to everything; with less, a sequence's results depend neither on the cache, nor on what
// runs beside it, nor on who had its slot and blocks before.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/cases.h"
#include "kvcache/chunked_cache.h"
#include "kvcache/policies/sparse_cache.h"
#include "testing/sanitizers.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::Placed;

constexpr std::int64_t kLayers = 2, kKvHeads = 2, kGroup = 2, kHeads = 4, kHeadDim = 64;
constexpr std::int64_t kBlocks = 160, kSequences = 6, kMostRows = 700, kMostTokens = 1024;

// Its values depend on its seed and its places alone.
struct Sequence {
  Sequence(std::uint32_t slot, unsigned seed) : slot(slot), seed(seed) {}

  std::uint32_t slot;
  unsigned seed;
  std::vector<BlockId> blocks;
  std::int64_t length = 0;
  std::vector<float> results[kLayers];  // of all its rows so far

  std::vector<float> values(std::int64_t layer, std::int64_t position, unsigned what,
                            std::int64_t heads) const {
    const auto at = static_cast<std::uint64_t>((position * kLayers + layer) * 3) + what;
    std::uint64_t state = (seed * 1000003 + at) << 32;
    std::vector<float> values(static_cast<std::size_t>(heads * kHeadDim));
    for (float& value : values) value = (what == 0 ? 2.0f : 1.0f) * bell(state += kStep);
    return values;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

  // Nearly normal, as sums of four are, with a variance of 1 (splitmix64: millions of values are needed).
  static float bell(std::uint64_t state) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    state = (state ^ state >> 27) * 0x94d049bb133111eb;
    state ^= state >> 31;
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(state >> 16 * i & 0xffff) / 65536 - 0.5f;
    return sum * 1.7320508f;
  }
};

// Which cache plays: the policies' or, for everything, the storage's own.
struct Policies {
  std::function<std::unique_ptr<PromptPolicy>(Backend&, const PromptLimits&)>
      prompts;                    // may be none
  std::int64_t quest_budget = 0;  // tokens; 0: none
  double host_share = 0;          // in chunks: of the host's cores
};

const PromptLimits kPromptLimits{.rows = kMostRows, .tokens = kMostTokens, .heads = kHeads};

Policies xattention(float threshold) {
  return {[=](Backend& backend, const PromptLimits& limits) {
    return XAttention::create(backend, limits, threshold);
  }};
}
Policies minference(float budget) {
  return {[=](Backend& backend, const PromptLimits& limits) {
    return MInference::create(backend, limits, budget);
  }};
}

// hybrid: chunked, but some sequences keep blocks on the device: those of slot 0 all, and of slot 1 the first.
enum class Where { paged, chunked, hybrid, layerwise };
constexpr Where kEverywhere[] = {Where::paged, Where::chunked, Where::hybrid, Where::layerwise};
constexpr std::int64_t kKept[] = {64, 3, 0, 0, 0, 0};
// Of kMostRows in a step, layer-wise in one part.
constexpr std::int64_t kLeastTokens = 100, kRingSlots = 2, kBuffers = 2;

class Player {
 public:
  Player(Backend& backend, const Policies& policies, std::int64_t block_size = 16,
         Where where = Where::paged)
      : backend_(backend),
        hybrid_(where == Where::hybrid),
        stream_(backend.create_stream()),
        shape_{.layers = kLayers,
               .block_size = block_size,
               .kv_heads = kKvHeads,
               .head_dim = kHeadDim,
               .dtype = DType::f32} {
    std::optional<QuestLimits> quest;
    if (policies.quest_budget > 0) {
      quest = QuestLimits{.shape = shape_,
                          .blocks = kBlocks,
                          .sequences = kSequences,
                          .tokens = kMostTokens,
                          .budget = policies.quest_budget};
    }
    const std::size_t before = backend.ledger().total(MemoryKind::device);
    if (policies.prompts) prompts_ = policies.prompts(backend, kPromptLimits);
    policy_bytes_ = backend.ledger().total(MemoryKind::device) - before;
    const SparseLimits limits{
        .rows = kMostRows, .sequences = kSequences, .least_tokens = kLeastTokens};
    if (where == Where::paged) {
      auto storage = std::make_unique<PagedStorage>(backend, shape_, kBlocks, 0);
      cache_ =
          std::make_unique<SparseCache>(backend, *stream_, *storage, prompts_.get(), quest, limits);
      storage_ = std::move(storage);
      predicted_ = kBlocks * shape_.bytes() + SparseCache::bytes(quest, limits);
    } else if (where == Where::layerwise) {
      auto storage = std::make_unique<LayerwiseStorage>(backend, shape_, kBlocks, kBuffers, 0,
                                                        quest.has_value());
      cache_ =
          std::make_unique<SparseCache>(backend, *stream_, *storage, prompts_.get(), quest, limits);
      storage_ = std::move(storage);
      predicted_ = kBlocks * LayerwiseStorage::device_bytes(shape_, kBuffers, quest.has_value()) +
                   SparseCache::bytes(quest, limits, true);
    } else {
      ChunkedOptions options;
      options.blocks = kBlocks;
      options.device_slots =
          most_write_slots(kSequences, kMostRows, block_size) + (hybrid_ ? kKept[0] + kKept[1] : 0);
      options.ring_slots = kRingSlots;
      options.sequences = kSequences;
      options.rows = kMostRows;
      options.heads = kHeads;
      options.quest = quest.has_value();
      if (quest) options.quest_budget = quest->budget;
      options.prompts = prompts_.get();
      options.least_tokens = kLeastTokens;
      options.tokens = kMostTokens;
      options.host_share = policies.host_share;
      options.host_threads = 1;
      cache_ = std::make_unique<ChunkedCache>(backend, shape_, options);
      predicted_ = ChunkedCache::device_bytes(shape_, options) +
                   kBlocks * ChunkedCache::device_bytes_per_block(shape_, options.quest);
    }
  }
  ~Player() { stream_->synchronize(); }

  using Rows = std::vector<std::pair<Sequence*, std::int64_t>>;

  // The next rows of some sequences; their results are added to them. part_rows: a layer takes so many at a time.
  void step(const Rows& rows, std::int64_t part_rows = kMostRows) {
    std::vector<StepSequence> parts;
    for (const auto& [sequence, count] : rows) {
      parts.push_back({sequence->slot, sequence->blocks, sequence->length, count,
                       hybrid_ ? kKept[sequence->slot] : 0});
    }
    cache_->begin_step({.number = ++number_, .sequences = parts, .may_repeat = false}, *stream_);
    fetch_homes();
    cache_->begin_pass(*stream_);
    const std::vector<Call> calls = cut(rows, part_rows);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (const Call& call : calls) attend(layer, call);
    }
    cache_->end_pass(*stream_);
    cache_->end_step(*stream_);
    for (const auto& [sequence, count] : rows) sequence->length += count;
  }

  // Its slot and its blocks are free.
  void end(const Sequence& sequence) { cache_->end_sequence(sequence.slot); }
  KvTraffic traffic() const { return cache_->traffic(); }
  // By arithmetic, of the device.
  std::size_t predicted_bytes() const { return policy_bytes_ + predicted_; }

 private:
  // Rows of sequences that a layer takes at a time.
  struct Piece {
    Sequence* sequence;
    std::int64_t first, rows;
  };
  using Call = std::vector<Piece>;

  static std::vector<Call> cut(const Rows& rows, std::int64_t part_rows) {
    std::vector<Call> calls(1);
    std::int64_t room = part_rows;
    for (const auto& [sequence, count] : rows) {
      for (std::int64_t done = 0; done < count;) {
        if (room == 0) {
          calls.emplace_back();
          room = part_rows;
        }
        const std::int64_t some = std::min(room, count - done);
        calls.back().push_back({sequence, sequence->length + done, some});
        done += some;
        room -= some;
      }
    }
    return calls;
  }

  // Where a cache keeps blocks that it has not where their numbers say.
  void fetch_homes() {
    const TensorView homes = cache_->homes();
    homes_.clear();
    if (homes.data == nullptr) return;
    const Buffer here = backend_.allocate(MemoryKind::pinned, homes.bytes(), "test");
    backend_.copy(here.data(), homes.data, homes.bytes(), *stream_);
    stream_->synchronize();
    const auto* const first = static_cast<const std::int32_t*>(here.data());
    homes_.assign(first, first + kBlocks);
  }

  void attend(std::int64_t layer, const Call& call) {
    std::vector<std::int32_t> starts{0}, lengths, tables;
    std::vector<float> q;
    std::int64_t width = 1;
    kernels::Attention args;
    for (const Piece& piece : call) {
      width = std::max(width, static_cast<std::int64_t>(piece.sequence->blocks.size()));
    }
    for (const Piece& piece : call) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(piece.rows));
      lengths.push_back(static_cast<std::int32_t>(piece.first + piece.rows));
      const std::vector<BlockId>& blocks = piece.sequence->blocks;
      tables.insert(tables.end(), blocks.begin(), blocks.end());
      tables.resize(lengths.size() * static_cast<std::size_t>(width), 0);
      args.max_query_rows = std::max(args.max_query_rows, piece.rows);
      for (std::int64_t t = piece.first; t < piece.first + piece.rows; ++t) {
        store(layer, *piece.sequence, t);
        const std::vector<float> row = piece.sequence->values(layer, t, 0, kHeads);
        q.insert(q.end(), row.begin(), row.end());
      }
    }
    const Placed<std::int32_t> starts_there(backend_, *stream_, starts),
        lengths_there(backend_, *stream_, lengths), tables_there(backend_, *stream_, tables);
    const auto sequences = static_cast<std::int64_t>(call.size());
    args.query_start = starts_there.view({sequences + 1});
    args.kv_length = lengths_there.view({sequences});
    args.kv.block_table = tables_there.view({sequences, width});
    args.group = kGroup;
    args.scale = 0.125f;
    args.max_kv_length = kMostTokens;
    const std::int64_t count = starts.back();
    const Placed<float> q_there(backend_, *stream_, q);
    Placed<float> out(backend_, *stream_, std::vector<float>(q.size(), -77));
    args.q = q_there.view({count, kHeads, kHeadDim});
    args.out = out.view({count, kHeads, kHeadDim});
    cache_->attend(layer, args, *stream_);
    const std::vector<float> results = out.fetch();
    stored_.clear();
    auto from = results.begin();
    for (const Piece& piece : call) {
      const auto to = from + piece.rows * kHeads * kHeadDim;
      std::vector<float>& mine = piece.sequence->results[static_cast<std::size_t>(layer)];
      mine.insert(mine.end(), from, to);
      from = to;
    }
  }

  void store(std::int64_t layer, const Sequence& sequence, std::int64_t t) {
    const kernels::KvView view = cache_->store_view(layer, *stream_);
    const BlockId block = sequence.blocks.at(static_cast<std::size_t>(t / shape_.block_size));
    const std::int64_t home = homes_.empty() ? block : homes_.at(static_cast<std::size_t>(block));
    REQUIRE(home >= 0);
    for (const unsigned what : {1u, 2u}) {
      const TensorView& cache = what == 1 ? view.keys : view.values;
      const std::vector<float>& row =
          stored_.emplace_back(sequence.values(layer, t, what, kKvHeads));
      float* to =
          cache.as<float>() + home * cache.stride[0] + t % shape_.block_size * cache.stride[1];
      backend_.copy(to, row.data(), row.size() * sizeof(float), *stream_);
    }
  }

  Backend& backend_;
  const bool hybrid_;
  std::unique_ptr<Stream> stream_;
  BlockShape shape_;
  std::unique_ptr<PromptPolicy> prompts_;
  std::unique_ptr<KvCache> storage_;  // of cache_
  std::unique_ptr<KvCache> cache_;
  std::vector<std::int32_t> homes_;
  std::vector<std::vector<float>> stored_;  // on its way
  std::size_t policy_bytes_ = 0, predicted_ = 0;
  std::uint64_t number_ = 0;
};

// Blocks from all over the cache, room for a few hundred tokens.
Sequence sequence_of(std::uint32_t slot, unsigned seed, unsigned places) {
  Sequence sequence(slot, seed);
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
constexpr double kRoundings = 2e-5;

double most_apart(const Sequence& a, const Sequence& b) {
  double most = 0;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    REQUIRE(a.results[layer].size() == b.results[layer].size());
    for (std::size_t i = 0; i < a.results[layer].size(); ++i) {
      const double apart = std::fabs(double{a.results[layer][i]} - b.results[layer][i]);
      if (!(apart <= most)) most = apart;
    }
  }
  return most;
}

bool same_bits(const Sequence& a, const Sequence& b) {
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    if (!kernels::testing::same_bits(a.results[layer], b.results[layer])) return false;
  }
  return true;
}

std::vector<Sequence> three() {
  return {sequence_of(0, 1, 0), sequence_of(1, 2, 1), sequence_of(2, 3, 2)};
}

std::vector<Sequence> played(Backend& backend, const Policies& policies, Where where) {
  Player player(backend, policies, 16, where);
  std::vector<Sequence> sequences = three();
  play(player, sequences[0], sequences[1], sequences[2]);
  return sequences;
}

TEST_CASE("with budgets for everything, policies attend to everything, wherever it is kept") {
  BACKEND_OR_SKIP(backend);
  const std::vector<Sequence> right = played(*backend, {}, Where::paged);
  Policies all = xattention(1);
  all.quest_budget = kMostTokens;
  Policies lines = minference(MInference::kEverything);
  lines.quest_budget = kMostTokens;
  for (const Where where : kEverywhere) {
    CAPTURE(static_cast<int>(where));
    for (const Policies& policies : {all, lines}) {
      const std::vector<Sequence> got = played(*backend, policies, where);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK(most_apart(got[i], right[i]) < kRoundings);
      }
    }
  }
}

// What races there are, are the caches', whatever the policy.
std::vector<Policies> frugal() {
  Policies tiles = xattention(0.6f);
  Policies lines = minference(MInference::kPublished);
  tiles.quest_budget = 64;
  lines.quest_budget = 48;
  if (testing::kSanitized) return {tiles};
  return {tiles, lines};
}

TEST_CASE("with less, they attend to less") {
  BACKEND_OR_SKIP(backend);
  const std::vector<Sequence> full = played(*backend, {}, Where::paged);
  for (const Policies& policies : frugal()) {
    const std::vector<Sequence> got = played(*backend, policies, Where::paged);
    CHECK(most_apart(got[0], full[0]) > 1e-3);
    CHECK(most_apart(got[2], full[2]) > 1e-3);
  }
}

TEST_CASE("of keys and values in host memory they choose the same") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    const std::vector<Sequence> right = played(*backend, policies, Where::paged);
    for (const Where where : {Where::chunked, Where::hybrid, Where::layerwise}) {
      CAPTURE(static_cast<int>(where));
      const std::vector<Sequence> got = played(*backend, policies, where);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK(most_apart(got[i], right[i]) < kRoundings);
      }
    }
  }
}

TEST_CASE("layer by layer, parts of a step are chosen for as steps are") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    Player parts(*backend, policies, 16, Where::layerwise), steps(*backend, policies);
    std::vector<Sequence> got = three(), right = three();
    // 140 of the first; then 111 of it and 29 of the second; then 1 and 139 of the third; then 121 of it.
    parts.step({{&got[0], 251}, {&got[1], 30}, {&got[2], 260}}, 140);
    steps.step({{&right[0], 140}});
    steps.step({{&right[0], 111}, {&right[1], 29}});
    steps.step({{&right[1], 1}, {&right[2], 139}});
    steps.step({{&right[2], 121}});
    for (int i = 0; i < 3; ++i) {
      parts.step({{&got[1], 1}, {&got[0], 1}, {&got[2], 1}});
      steps.step({{&right[1], 1}, {&right[0], 1}, {&right[2], 1}});
    }
    for (std::size_t i = 0; i < right.size(); ++i) {
      CHECK(most_apart(got[i], right[i]) < kRoundings);
    }
  }
}

// Three long prompts, in one step, of which each has blocks in common with the one before the last.
TEST_CASE("prompts that share prefixes find each its own") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    std::vector<std::vector<Sequence>> all;
    for (const Where where : kEverywhere) {
      Player player(*backend, policies, 16, where);
      Sequence first = sequence_of(0, 1, 0), other = sequence_of(1, 2, 1);
      player.step({{&first, 160}, {&other, 40}});
      player.step({{&other, 90}, {&first, 2}});
      Sequence like_first = sequence_of(2, 1, 2), like_other = sequence_of(3, 2, 3);
      std::copy_n(first.blocks.begin(), 10, like_first.blocks.begin());
      std::copy_n(other.blocks.begin(), 6, like_other.blocks.begin());
      like_first.length = 160;
      like_other.length = 96;
      player.step({{&first, 33}, {&other, 18}, {&like_first, 50}, {&like_other, 17}});
      player.step({{&like_other, 1}, {&like_first, 20}, {&first, 1}, {&other, 3}});
      all.push_back({first, other, like_first, like_other});
    }
    for (const std::vector<Sequence>& got : all) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(most_apart(got[i], all.front()[i]) < kRoundings);
      }
    }
  }
}

TEST_CASE("what a sequence gets does not depend on what runs beside it") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      const Sequence a = played(*backend, policies, where)[0];
      Player alone(*backend, policies, 16, where);
      Sequence a_alone = sequence_of(0, 1, 0);
      for (const std::int64_t rows : {150, 101, 1, 1, 1, 1, 1, 1, 1, 2}) {
        alone.step({{&a_alone, rows}});
      }
      // Where one step loads layers and another reads on the host, tokens are attended to by two kernels.
      CHECK((where == Where::layerwise ? most_apart(a, a_alone) < kRoundings
                                       : same_bits(a, a_alone)));
    }
  }
}

TEST_CASE("who takes a slot and blocks over finds nothing of the one before") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      Player used(*backend, policies, 16, where), fresh(*backend, policies, 16, where);
      Sequence before = sequence_of(0, 77, 0), other = sequence_of(1, 78, 1),
               third = sequence_of(2, 79, 2);
      play(used, before, other, third);
      used.end(before);
      Sequence after = sequence_of(0, 5, 0), right = after;
      for (Player* player : {&used, &fresh}) {
        Sequence& mine = player == &used ? after : right;
        player->step({{&mine, 130}});
        for (int i = 0; i < 20; ++i) player->step({{&mine, 1}});
      }
      CHECK(same_bits(after, right));
    }
  }
}

TEST_CASE("chunked: prompts are chosen for beside rows that the host's cores attend to") {
  BACKEND_OR_SKIP(backend);
  for (Policies policies : frugal()) {
    policies.quest_budget = 0;
    const std::vector<Sequence> right = played(*backend, policies, Where::paged);
    policies.host_share = 0.5;
    const std::vector<Sequence> got = played(*backend, policies, Where::chunked);
    for (std::size_t i = 0; i < right.size(); ++i) {
      CHECK(most_apart(got[i], right[i]) < kRoundings);
    }
  }
}

TEST_CASE("chunked: a prompt policy moves what attention to everything moves") {
  BACKEND_OR_SKIP(backend);
  KvTraffic traffic[2];
  for (const bool chooses : {false, true}) {
    Player player(*backend, chooses ? xattention(0.6f) : Policies{}, 16, Where::chunked);
    std::vector<Sequence> sequences = three();
    play(player, sequences[0], sequences[1], sequences[2]);
    traffic[chooses ? 1 : 0] = player.traffic();
  }
  CHECK(traffic[0].to_device > 0);
  CHECK(traffic[1] == traffic[0]);
}

TEST_CASE("caches with policies take what the arithmetic says, to the byte") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      CAPTURE(static_cast<int>(where));
      const Player player(*backend, policies, 16, where);
      CHECK(backend->ledger().total(MemoryKind::device) == player.predicted_bytes());
    }
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
