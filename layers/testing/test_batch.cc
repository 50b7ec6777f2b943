#include "layers/testing/test_batch.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace nvllm::layers {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

TestCache::TestCache(Backend& backend, const TestCacheShape& shape)
    : shape_(shape),
      block_size_(shape.block_size == 0 ? shape.tokens : shape.block_size),
      blocks_per_sequence_((shape.tokens + block_size_ - 1) / block_size_) {
  const std::int64_t blocks = shape.sequences * blocks_per_sequence_;
  const kvcache::BlockShape block{.layers = shape.layers,
                                  .block_size = block_size_,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .dtype = shape.dtype,
                                  .by_layer = shape.by_layer};
  memory_ = backend.allocate(MemoryKind::device,
                             static_cast<std::size_t>(blocks) * block.kv_bytes(), "cache");
  auto* data = static_cast<std::byte*>(memory_.data());
  const auto next = [&](const kvcache::BlockShape::Heads& heads) {
    const TensorView cache(data, shape.dtype,
                           {blocks, block_size_, heads.kv_heads, heads.head_dim});
    data += cache.bytes();
    return cache;
  };
  std::vector<kernels::KvView> views;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const kvcache::BlockShape::Heads heads = block.heads_of(layer);
    kernels::KvView view;
    view.keys = next(heads);
    view.values = next(heads);
    views.push_back(view);
  }
  cache_ = kvcache::ViewCache(std::move(views));
}

std::int64_t TestCache::block(std::int64_t sequence, std::int64_t number) const {
  if (shape_.block_size == 0) return sequence;
  return (blocks_per_sequence_ - 1 - number) * shape_.sequences + sequence;
}

std::int64_t TestCache::slot(std::int64_t sequence, std::int64_t token) const {
  NVLLM_CHECK_LT(token, shape_.tokens);
  return block(sequence, token / block_size_) * block_size_ + token % block_size_;
}

std::vector<std::int32_t> TestCache::blocks_of(std::int64_t sequence) const {
  std::vector<std::int32_t> blocks;
  for (std::int64_t number = 0; number < blocks_per_sequence_; ++number) {
    blocks.push_back(static_cast<std::int32_t>(block(sequence, number)));
  }
  return blocks;
}

TestBatch::TestBatch(Backend& backend, const TestCache& cache, std::int64_t rows)
    : backend_(backend), cache_(cache) {
  // Every tensor has at most this many elements per row and sequence, plus one.
  const std::int64_t elements =
      5 * (rows + 1) + cache.shape().sequences * (cache.shape().tokens + 4);
  const std::size_t bytes =
      static_cast<std::size_t>(elements) * sizeof(std::int64_t) + 9 * kAlignment;
  memory_ = backend.allocate(MemoryKind::device, bytes, "batch");
  staging_ = backend.allocate(MemoryKind::pinned, bytes, "batch");
}

template <typename T>
TensorView TestBatch::place(const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  NVLLM_CHECK_LE(used_ + bytes, memory_.bytes());
  if (bytes > 0) {
    std::memcpy(static_cast<std::byte*>(staging_.data()) + used_, values.data(), bytes);
  }
  const TensorView tensor(static_cast<std::byte*>(memory_.data()) + used_, dtype_of<T>,
                          {static_cast<std::int64_t>(values.size())});
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return tensor;
}

void TestBatch::load(const std::vector<Part>& parts, Logits logits, Stream& stream) {
  std::vector<std::int32_t> tokens, positions, query_start{0}, kv_length, table, logit_rows, states;
  std::vector<std::int64_t> slots;
  batch_ = {};
  for (const Part& part : parts) {
    NVLLM_CHECK(logits != Logits::last || !part.tokens.empty());
    for (const std::int32_t token : part.tokens) {
      const std::int64_t position =
          part.begin + static_cast<std::int64_t>(tokens.size()) - query_start.back();
      if (logits == Logits::all) logit_rows.push_back(static_cast<std::int32_t>(tokens.size()));
      tokens.push_back(token);
      positions.push_back(static_cast<std::int32_t>(position));
      slots.push_back(cache_.slot(part.sequence, position));
    }
    const auto rows = static_cast<std::int64_t>(part.tokens.size());
    query_start.push_back(static_cast<std::int32_t>(tokens.size()));
    kv_length.push_back(static_cast<std::int32_t>(part.begin + rows));
    states.push_back(static_cast<std::int32_t>(part.sequence));
    const std::vector<std::int32_t> blocks = cache_.blocks_of(part.sequence);
    table.insert(table.end(), blocks.begin(), blocks.end());
    if (logits == Logits::last) logit_rows.push_back(query_start.back() - 1);
    batch_.max_query_rows = std::max(batch_.max_query_rows, rows);
  }
  batch_.max_kv_length = cache_.shape().tokens;

  stream.synchronize();  // the last batch may still be read
  used_ = 0;
  batch_.slot_mapping = place(slots);
  batch_.tokens = place(tokens);
  batch_.positions = place(positions);
  batch_.query_start = place(query_start);
  batch_.kv_length = place(kv_length);
  batch_.state_slots = place(states);
  if (logit_rows.size() < tokens.size()) batch_.logit_rows = place(logit_rows);
  const TensorView flat = place(table);
  if (cache_.shape().block_size != 0) {
    const auto sequences = static_cast<std::int64_t>(parts.size());
    batch_.block_table = TensorView(flat.data, DType::i32, {sequences, flat.shape[0] / sequences});
  }
  backend_.copy(memory_.data(), staging_.data(), used_, stream);
  stream.synchronize();
}

}  // namespace nvllm::layers
