#include "layers/per_layer_input.h"

#include <numbers>

#include "base/check.h"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::layers {

// Dividing the projection by sqrt(hidden) before its norm equals a larger epsilon.
PerLayerEmbedding::PerLayerEmbedding(const std::string& name, const PerLayerEmbeddingConfig& config,
                                     Shard shard)
    : table_(name + ".table", config.table, config.vocabulary, config.layers * config.width, shard,
             config.table_scale),
      projection_(name + ".projection", config.projection, config.layers * config.width,
                  config.hidden, /*bias=*/false, Shard{}),
      norm_(name + ".norm", config.norm, config.width,
            config.epsilon * static_cast<float>(config.hidden)) {}

void PerLayerEmbedding::declare(std::vector<Parameter*>& all) {
  table_.declare(all);
  projection_.declare(all);
  norm_.declare(all);
}

void PerLayerEmbedding::forward(TensorView out, TensorView tokens, TensorView embedded,
                                const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = out.shape[0], width = norm_.weight.shape[0];
  const TensorView of_tokens = context.scratch.allocate(out.dtype, rows, columns());
  table_.forward(of_tokens, tokens, context);
  projection_.forward(out, embedded, context);
  const TensorView parts(out.data, out.dtype, {rows * columns() / width, width});
  run_norm(parts, parts, norm_, context);
  kernels::scaled_sum(
      {.out = out, .a = out, .b = of_tokens, .scale = 1 / std::numbers::sqrt2_v<float>},
      context.stream);
}

PerLayerInput::PerLayerInput(const std::string& name, const PerLayerInputConfig& config,
                             Shard shard)
    : own_(shard_range(config.width, shard)),
      gate_(name + ".gate", config.gate, config.width, config.hidden, /*bias=*/false, shard),
      projection_(name + ".projection", config.projection, config.hidden, config.width, own_,
                  /*bias=*/false, shard, segments_of_parts(config.width)),
      result_norm_(name + ".result_norm", config.result_norm, config.hidden, config.epsilon),
      activation_(config.activation) {}

void PerLayerInput::declare(std::vector<Parameter*>& all) {
  gate_.declare(all);
  projection_.declare(all);
  result_norm_.declare(all);
}

void PerLayerInput::forward(ResidualStream& stream, TensorView embedding,
                            const Context& context) const {
  NVLLM_CHECK(stream.unfused_norms, "a result's norm is a kernel of its own");
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows(), own = own_.size();
  // Columns: the gate, then the layer's embedding.
  const TensorView both = context.scratch.allocate(stream.dtype(), rows, 2 * own);
  const TensorView activated = context.scratch.allocate(stream.dtype(), rows, own);
  gate_.forward(columns_of(both, 0, own), complete_hidden(stream, result_norm_, context), context);
  kernels::scaled_sum(
      {.out = columns_of(both, own, own), .a = columns_of(embedding, own_.begin, own)},
      context.stream);
  kernels::gated_activation({.out = activated, .x = both, .activation = activation_},
                            context.stream);
  if (projection_.tp_invariant()) {
    return projection_.forward(add_reduced(stream, &result_norm_), activated, context);
  }
  context.gemm.run(
      context.gemm.call(projection_.weight(),
                        add_operands(stream, activated, {}, nullptr, context, &result_norm_)),
      context.stream);
}

std::size_t PerLayerInput::scratch_bytes(std::int64_t rows, DType dtype) const {
  return Scratch::bytes_of(dtype, rows, 2 * own_.size()) +
         Scratch::bytes_of(dtype, rows, own_.size()) + projection_.scratch_bytes(rows);
}

}  // namespace nvllm::layers
