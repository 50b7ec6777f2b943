// DecoderLayer: attention, then an MLP, each on a norm of the residual stream and added to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace nvllm::layers {

struct DecoderLayerConfig {
  AttentionConfig attention;
  MlpConfig mlp;
  std::string attention_norm, mlp_norm;  // tensors: "model.layers.0.input_layernorm.weight"
  float epsilon = 1e-6f;                 // of both norms
};

class DecoderLayer {
 public:
  DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  const HeadPart& heads() const { return attention_.heads(); }

  // `kv`: of which this is layer `layer`.
  void forward(ResidualStream& stream, const Batch& batch, kvcache::KvCache& kv, std::int64_t layer,
               TensorView cos_sin, const Context& context) const;
  // Its two halves. The second takes rows one by one: what nobody will ask for may be left out of the stream
  // between them.
  void attend(ResidualStream& stream, const Batch& batch, kvcache::KvCache& kv, std::int64_t layer,
              TensorView cos_sin, const Context& context) const;
  // next: the layer that reads the stream next; nullptr: there is none, or it is not known. ahead: what that will attend
  // to.
  void transform(ResidualStream& stream, const DecoderLayer* next, const Context& context,
                 const kernels::KvPrefetch& ahead = {}) const;
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;
  std::size_t transform_scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  RmsNorm attention_norm_;
  SelfAttention attention_;
  RmsNorm mlp_norm_;
  GatedMlp mlp_;
};

}  // namespace nvllm::layers
