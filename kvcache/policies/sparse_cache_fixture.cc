#include "kvcache/policies/sparse_cache_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "kernels/testing/cases.h"
#include "kvcache/paged/paged_cache.h"

namespace nvllm::kvcache::sparse_test {

using kernels::testing::Placed;

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

CachePlayer::CachePlayer(Backend& backend, const Policies& policies, std::int64_t block_size,
                         Where where)
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
                        .tokens = kMaxTokens,
                        .budget = policies.quest_budget};
  }
  const std::size_t before = backend.ledger().total(MemoryKind::device);
  if (policies.prompts) prompts_ = policies.prompts(backend, kPromptLimits);
  policy_bytes_ = backend.ledger().total(MemoryKind::device) - before;
  const SparseLimits limits{.rows = kMaxRows, .sequences = kSequences, .min_tokens = kMinTokens};
  if (where == Where::paged) {
    auto storage = std::make_unique<PagedCache>(backend, shape_, kBlocks, 0);
    cache_ =
        std::make_unique<SparseCache>(backend, *stream_, *storage, prompts_.get(), quest, limits);
    storage_ = std::move(storage);
    predicted_ = kBlocks * shape_.bytes() + SparseCache::bytes(quest, limits);
  } else if (where == Where::layerwise) {
    auto storage = std::make_unique<LayerwiseCache>(backend, shape_, kBlocks, kBuffers, 0,
                                                    quest.has_value(), kGroups);
    cache_ =
        std::make_unique<SparseCache>(backend, *stream_, *storage, prompts_.get(), quest, limits);
    storage_ = std::move(storage);
    predicted_ = kBlocks * LayerwiseCache::device_bytes(shape_, kBuffers, quest.has_value()) +
                 SparseCache::bytes(quest, limits, true);
  } else {
    ChunkedOptions options;
    options.blocks = kBlocks;
    options.device_slots =
        max_write_slots(kSequences, kMaxRows, block_size) + (hybrid_ ? kKept[0] + kKept[1] : 0);
    options.ring_slots = kRingSlots;
    options.sequences = kSequences;
    options.rows = kMaxRows;
    options.heads = kHeads;
    options.quest = quest.has_value();
    if (quest) options.quest_budget = quest->budget;
    options.prompts = prompts_.get();
    options.min_tokens = kMinTokens;
    options.tokens = kMaxTokens;
    options.host_share = policies.host_share;
    options.host_threads = 1;
    cache_ = std::make_unique<ChunkedCache>(backend, shape_, options);
    predicted_ = ChunkedCache::device_bytes(shape_, options) +
                 kBlocks * ChunkedCache::device_bytes_per_block(shape_, options.quest);
  }
}

void CachePlayer::step(const Rows& rows, std::int64_t micro_batch_rows, std::int64_t later_rows) {
  std::vector<StepSequence> parts;
  for (const auto& [sequence, count] : rows) {
    parts.push_back({sequence->slot, sequence->blocks, sequence->length, count,
                     hybrid_ ? kKept[sequence->slot] : 0, later_rows});
  }
  cache_->begin_step({.number = ++number_, .sequences = parts, .may_capture = false}, *stream_);
  fetch_block_map();
  cache_->begin_pass(*stream_);
  const std::vector<Call> calls = cut(rows, micro_batch_rows);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    for (const Call& call : calls) run_attention(layer, call);
  }
  cache_->end_pass(*stream_);
  cache_->end_step(*stream_);
  for (const auto& [sequence, count] : rows) sequence->length += count;
}

std::vector<CachePlayer::Call> CachePlayer::cut(const Rows& rows, std::int64_t micro_batch_rows) {
  std::vector<Call> calls(1);
  std::int64_t room = micro_batch_rows;
  for (const auto& [sequence, count] : rows) {
    for (std::int64_t done = 0; done < count;) {
      if (room == 0) {
        calls.emplace_back();
        room = micro_batch_rows;
      }
      const std::int64_t some = std::min(room, count - done);
      calls.back().push_back({sequence, sequence->length + done, some});
      done += some;
      room -= some;
    }
  }
  return calls;
}

void CachePlayer::fetch_block_map() {
  const TensorView block_map = cache_->block_map();
  block_map_.clear();
  if (block_map.data == nullptr) return;
  const Buffer here = backend_.allocate(MemoryKind::pinned, block_map.bytes(), "test");
  backend_.copy(here.data(), block_map.data, block_map.bytes(), *stream_);
  stream_->synchronize();
  const auto* const first = static_cast<const std::int32_t*>(here.data());
  block_map_.assign(first, first + kBlocks);
}

void CachePlayer::run_attention(std::int64_t layer, const Call& call) {
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
  const auto more = std::ranges::find_if(call, [](const Piece& piece) { return piece.rows != 1; });
  const std::int64_t decode_sequences = more - call.begin();
  args.query_start = starts_there.view({sequences + 1});
  args.kv_length = lengths_there.view({sequences});
  args.kv.block_table = tables_there.view({sequences, width});
  args.group = kGroup;
  args.scale = 0.125f;
  args.max_kv_length = kMaxTokens;
  const std::int64_t count = starts.back();
  const Placed<float> q_there(backend_, *stream_, q);
  Placed<float> out(backend_, *stream_, std::vector<float>(q.size(), -77));
  args.q = q_there.view({count, kHeads, kHeadDim});
  args.out = out.view({count, kHeads, kHeadDim});
  cache_->run_attention(layer, args, decode_sequences, *stream_);
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

void CachePlayer::store(std::int64_t layer, const Sequence& sequence, std::int64_t t) {
  const kernels::KvView view = cache_->store_view(layer, *stream_);
  const BlockId block = sequence.blocks.at(static_cast<std::size_t>(t / shape_.block_size));
  const std::int64_t home =
      block_map_.empty() ? block : block_map_.at(static_cast<std::size_t>(block));
  REQUIRE(home >= 0);
  for (const unsigned what : {1u, 2u}) {
    const TensorView& cache = what == 1 ? view.keys : view.values;
    const std::vector<float>& row = stored_.emplace_back(sequence.values(layer, t, what, kKvHeads));
    float* to =
        cache.as<float>() + home * cache.stride[0] + t % shape_.block_size * cache.stride[1];
    backend_.copy(to, row.data(), row.size() * sizeof(float), *stream_);
  }
}

}  // namespace nvllm::kvcache::sparse_test
