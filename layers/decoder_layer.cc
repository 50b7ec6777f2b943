#include "layers/decoder_layer.h"

#include <algorithm>

namespace nvllm::layers {

DecoderLayer::DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard)
    : attention_norm_(name + ".attention_norm", config.attention_norm, config.attention.hidden,
                      config.epsilon),
      attention_(name + ".attention", config.attention, shard),
      mlp_norm_(name + ".mlp_norm", config.mlp_norm, config.mlp.hidden, config.epsilon),
      mlp_(name + ".mlp", config.mlp, shard) {}

void DecoderLayer::declare(std::vector<Parameter*>& all) {
  attention_norm_.declare(all);
  attention_.declare(all);
  mlp_norm_.declare(all);
  mlp_.declare(all);
}

void DecoderLayer::forward(ResidualStream& stream, const Batch& batch, kvcache::KvCache& kv,
                           std::int64_t layer, TensorView cos_sin, const Context& context) const {
  attend(stream, batch, kv, layer, cos_sin, context);
  transform(stream, nullptr, context);
}

void DecoderLayer::attend(ResidualStream& stream, const Batch& batch, kvcache::KvCache& kv,
                          std::int64_t layer, TensorView cos_sin, const Context& context) const {
  stream.expect(&mlp_norm_);
  attention_.forward(stream, attention_norm_, batch, kv, layer, cos_sin, context);
}

void DecoderLayer::transform(ResidualStream& stream, const DecoderLayer* next,
                             const Context& context, const kernels::KvPrefetch& ahead) const {
  stream.expect(next == nullptr ? nullptr : &next->attention_norm_);
  mlp_.forward(stream, mlp_norm_, context, ahead);
}

std::size_t DecoderLayer::scratch_bytes(std::int64_t rows, DType dtype) const {
  return std::max(attention_.scratch_bytes(rows, dtype), transform_scratch_bytes(rows, dtype));
}

std::size_t DecoderLayer::transform_scratch_bytes(std::int64_t rows, DType dtype) const {
  return mlp_.scratch_bytes(rows, dtype);
}

}  // namespace nvllm::layers
