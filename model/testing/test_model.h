// TestModel: one rank's share of a model with a KV cache. It takes tokens and returns logits on the
// host.
//
//   TestModel model(rank, config, {.sequences = 2, .tokens = 256, .rows = 64});
//   model.load(checkpoint);
//   const auto logits = model.forward({{.sequence = 0, .begin = 0, .tokens = t}}, Logits::last);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layers/testing/test_batch.h"
#include "model/checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "testing/device_ranks.h"

namespace nvllm::model {

struct TestModelShape {
  DType dtype = DType::f32;
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;  // max. per sequence
  std::int64_t rows = 0;    // max. per forward pass
  bool paged = true;
  bool tp_invariant = false;  // layers::Shard
  // Quantized weights of this checkpoint stay quantized; activations are not quantized.
  const Checkpoint* keep_quantized = nullptr;
};

class TestModel {
 public:
  using Parts = std::vector<layers::TestBatch::Part>;
  using Logits = layers::TestBatch::Logits;

  TestModel(testing::DeviceRank& rank, const ModelConfig& config, const TestModelShape& shape);

  void load(const Checkpoint& checkpoint);

  const Decoder& decoder() const { return decoder_; }

  // All logits, [rows][vocabulary], on every rank; in a pipeline only on those of the last stage.
  // Computed directly, or as a captured graph.
  std::vector<std::vector<float>> forward(const Parts& parts, Logits logits,
                                          const Observer& observer = {});
  std::vector<std::vector<float>> forward_in_graph(const Parts& parts, Logits logits);

  // Decoder::tune() with such a pass.
  void tune(const Parts& parts, Logits logits);

  // A tensor's values on the host, in float32. Waits for the stream.
  std::vector<float> values(TensorView tensor);

 private:
  TensorView enqueue(const Observer& observer);
  // Assembles the ranks' parts of the vocabulary.
  std::vector<std::vector<float>> gathered(TensorView logits);

  testing::DeviceRank& rank_;
  Decoder decoder_;
  std::unique_ptr<kernels::Gemm> gemm_;
  Buffer weights_;
  layers::TestCache cache_;
  layers::TestBatch batch_;
  DecoderMemory memory_;
  Buffer all_logits_;  // [ranks, rows, stride of the head]
};

}  // namespace nvllm::model
