// TestBatch: batches and a cache for tests and benchmarks, with a common maximum sequence length,
// in paged or contiguous memory.
//
//   TestCache cache(*backend, {.sequences = 2, .tokens = 256, .kv_heads = 2, ...});
//   TestBatch batch(*backend, cache, 64);
//   batch.load({{.sequence = 1, .begin = 7, .tokens = {4, 8, 15}}}, TestBatch::Logits::last,
//              *stream);
//   decoder.forward(batch.batch(), cache.cache(), ...);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/kv_cache.h"
#include "layers/context.h"

namespace nvllm::layers {

struct TestCacheShape {
  std::int64_t layers = 1;
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;  // max. per sequence
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t block_size = 16;  // 0: contiguous
  DType dtype = DType::f32;
  std::vector<kvcache::BlockShape::Heads> by_layer{};  // kvcache::BlockShape's
};

// Keys and values of all layers, and each sequence's block table: block ids descend and interleave
// the sequences, so that no two adjacent blocks are in order.
class TestCache {
 public:
  TestCache(Backend& backend, const TestCacheShape& shape);

  std::span<const kernels::KvView> views() const { return cache_.views(); }
  kvcache::KvCache& cache() { return cache_; }
  std::int64_t slot(std::int64_t sequence, std::int64_t token) const;
  std::vector<std::int32_t> blocks_of(std::int64_t sequence) const;
  const TestCacheShape& shape() const { return shape_; }

 private:
  std::int64_t block(std::int64_t sequence, std::int64_t number) const;

  TestCacheShape shape_;
  std::int64_t block_size_, blocks_per_sequence_;
  Buffer memory_;
  kvcache::ViewCache cache_;
};

class TestBatch {
 public:
  // The newest tokens of a sequence, the first of them at position `begin`.
  struct Part {
    std::int64_t sequence = 0;
    std::int64_t begin = 0;
    std::vector<std::int32_t> tokens;
  };
  enum class Logits { none, last, all };  // of each part

  TestBatch(Backend& backend, const TestCache& cache, std::int64_t rows);

  // Waits for the stream; later work on it may use the batch. Sequences may be left out and in any
  // order, except in contiguous memory, where part i belongs to sequence i.
  void load(const std::vector<Part>& parts, Logits logits, Stream& stream);

  // The tensors keep their addresses across loads; their shapes are those of the last load.
  const Batch& batch() const { return batch_; }

 private:
  template <typename T>
  TensorView place(const std::vector<T>& values);

  Backend& backend_;
  const TestCache& cache_;
  Buffer memory_, staging_;
  std::size_t used_ = 0;
  Batch batch_;
};

}  // namespace nvllm::layers
