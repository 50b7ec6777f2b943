#include "model/testing/test_model.h"

#include "base/check.h"
#include "model/loading/loader.h"
#include "model/loading/packing.h"

namespace nvllm::model {
namespace {

layers::Shard shard_of(const testing::DeviceRank& rank, bool tp_invariant) {
  layers::Shard shard{.tp_invariant = tp_invariant};
  if (rank.communicator == nullptr) return shard;
  shard.rank = rank.communicator->rank();
  shard.ranks = rank.communicator->size();
  return shard;
}

// On CPUs results are so by themselves.
bool invariant(const testing::DeviceRank& rank, const TestModelShape& shape) {
  return shape.tp_invariant && rank.backend->kind() == DeviceKind::cuda;
}

std::size_t logit_bytes(const Decoder& decoder, std::int64_t rows) {
  const std::int64_t columns = decoder.has_head() ? decoder.head().stride() : 0;
  return static_cast<std::size_t>(decoder.shard().ranks * rows * columns) * sizeof(float);
}

std::vector<float> as_floats(const void* data, DType dtype, std::size_t count) {
  std::vector<float> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::f32: values.push_back(static_cast<const float*>(data)[i]); break;
      case DType::bf16: values.push_back(to_float(static_cast<const Bf16*>(data)[i])); break;
      case DType::f16: values.push_back(to_float(static_cast<const F16*>(data)[i])); break;
      default: NVLLM_CHECK(false, "no float: ", name_of(dtype));
    }
  }
  return values;
}

layers::TestCacheShape cache_shape(const Decoder& decoder, const TestModelShape& shape) {
  const kvcache::BlockShape block = decoder.block_shape(/*block_size=*/16, shape.dtype);
  return {.layers = block.layers,
          .sequences = shape.sequences,
          .tokens = shape.tokens,
          .kv_heads = block.kv_heads,
          .head_dim = block.head_dim,
          .block_size = shape.paged ? 16 : 0,
          .dtype = shape.dtype,
          .by_layer = block.by_layer};
}

Buffer bind(const Decoder& decoder, const TestModelShape& shape, Backend& backend) {
  if (shape.keep_quantized != nullptr) {
    choose_quantization(decoder.parameters(), shape.keep_quantized, {.weight_only = true});
  }
  return bind_parameters(decoder.parameters(), shape.dtype, backend);
}

}  // namespace

TestModel::TestModel(testing::DeviceRank& rank, const ModelConfig& config,
                     const TestModelShape& shape)
    : rank_(rank),
      decoder_(config, shard_of(rank, shape.tp_invariant), shape.dtype, {rank.stage, rank.stages}),
      gemm_(kernels::create_gemm(*rank.backend, {.quantized = shape.keep_quantized != nullptr,
                                                 .invariant = invariant(rank, shape)})),
      weights_(bind(decoder_, shape, *rank.backend)),
      cache_(*rank.backend, cache_shape(decoder_, shape)),
      batch_(*rank.backend, cache_, shape.rows),
      memory_(decoder_,
              {.rows = shape.rows,
               .logit_rows = shape.rows,
               .positions = shape.tokens,
               .state_slots = shape.sequences,
               .invariant = invariant(rank, shape)},
              *rank.backend),
      all_logits_(
          rank.backend->allocate(MemoryKind::device, logit_bytes(decoder_, shape.rows), "test")) {}

void TestModel::load(const Checkpoint& checkpoint) {
  load_parameters(decoder_.parameters(), checkpoint, *rank_.backend, {});
}

TensorView TestModel::enqueue(const Observer& observer) {
  return decoder_.forward(batch_.batch(), cache_.cache(), memory_,
                          {*rank_.stream, *gemm_, rank_.communicator.get(), rank_.link.get()},
                          observer);
}

std::vector<std::vector<float>> TestModel::forward(const Parts& parts, Logits logits,
                                                   const Observer& observer) {
  batch_.load(parts, logits, *rank_.stream);
  return gathered(enqueue(observer));
}

std::vector<std::vector<float>> TestModel::forward_in_graph(const Parts& parts, Logits logits) {
  batch_.load(parts, logits, *rank_.stream);
  TensorView result;
  const auto graph = rank_.backend->capture(*rank_.stream, [&] { result = enqueue({}); });
  graph->launch(*rank_.stream);
  rank_.wait();
  return gathered(result);
}

void TestModel::tune(const Parts& parts, Logits logits) {
  batch_.load(parts, logits, *rank_.stream);
  decoder_.tune(batch_.batch(), cache_.cache(), memory_,
                {*rank_.stream, *gemm_, rank_.communicator.get(), rank_.link.get()});
}

std::vector<float> TestModel::values(TensorView tensor) {
  const Buffer here = rank_.backend->allocate(MemoryKind::pinned, tensor.bytes(), "test");
  rank_.backend->copy(here.data(), tensor.data, tensor.bytes(), *rank_.stream);
  rank_.wait();
  return as_floats(here.data(), tensor.dtype, static_cast<std::size_t>(tensor.elements()));
}

std::vector<std::vector<float>> TestModel::gathered(TensorView logits) {
  if (!decoder_.has_head()) {
    rank_.wait();
    return {};
  }
  const layers::LmHead& head = decoder_.head();
  const int ranks = decoder_.shard().ranks;
  const std::int64_t rows = logits.shape[0], stride = head.stride();
  TensorView all(logits.data, DType::f32, {ranks, rows, stride});  // those of one rank are all
  layers::Scratch no_scratch;
  if (ranks > 1) {
    all.data = all_logits_.data();
    head.gather(all, logits, {*rank_.stream, *gemm_, no_scratch, rank_.communicator.get()});
  }
  const std::vector<float> flat = values(all);
  std::vector<std::vector<float>> result(static_cast<std::size_t>(rows));
  for (int rank = 0; rank < ranks; ++rank) {
    layers::Shard shard = decoder_.shard();
    shard.rank = rank;
    const auto own = layers::vocabulary_part_of(decoder_.config().vocab_size, shard).size();
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = flat.begin() + (rank * rows + row) * stride;
      auto& whole = result[static_cast<std::size_t>(row)];
      whole.insert(whole.end(), begin, begin + own);
    }
  }
  return result;
}

}  // namespace nvllm::model
