// Embeddings that every layer of a decoder has for itself, beside the one from which the residual
// stream starts.
//
// PerLayerEmbedding makes them for all layers at once: of each token a row of a table, and a
// projection of the token's embedding, which is normed. PerLayerInput is a layer's own block,
// behind its MLP: a gate, which the residual stream makes, lets the layer's embedding through, and
// what it is projected to is normed and added to the stream. The table is split over ranks by the
// vocabulary, the block by the elements of the embedding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/embedding.h"
#include "layers/linear.h"
#include "layers/parameter.h"
#include "layers/residual_stream.h"

namespace nvllm::layers {

struct PerLayerEmbeddingConfig {
  std::string table;       // tensor: [vocabulary, layers * width]
  std::string projection;  // module: of layers * width outputs
  std::string norm;        // tensor: [width]
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t width = 0;  // of an embedding
  float table_scale = 1;   // by which rows of the table are multiplied
  float epsilon = 1e-6f;
};

class PerLayerEmbedding {
 public:
  PerLayerEmbedding(const std::string& name, const PerLayerEmbeddingConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  std::int64_t columns() const { return projection_.outputs(); }  // of all layers

  // out: [rows, columns()], the same on all ranks: each layer's embedding, in their order.
  // embedded: [rows, hidden], where the residual stream starts.
  void forward(TensorView out, TensorView tokens, TensorView embedded,
               const Context& context) const;

  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const {
    return Scratch::bytes_of(dtype, rows, columns());
  }

 private:
  VocabParallelEmbedding table_;
  ColumnParallelLinear projection_;  // whole on every rank
  RmsNorm norm_;
};

struct PerLayerInputConfig {
  std::string gate, projection;  // modules
  std::string result_norm;       // tensor
  std::int64_t hidden = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6f;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
};

class PerLayerInput {
 public:
  PerLayerInput(const std::string& name, const PerLayerInputConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);

  // Reads the stream as it is, and adds to it. embedding: [rows, width], this layer's; rows may lie
  // apart.
  void forward(ResidualStream& stream, TensorView embedding, const Context& context) const;

  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  Range own_;  // of an embedding's elements
  ColumnParallelLinear gate_;
  RowParallelLinear projection_;
  RmsNorm result_norm_;
  kernels::Activation activation_;
};

}  // namespace nvllm::layers
