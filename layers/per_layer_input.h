// Per-layer embeddings: each decoder layer has one of its own, in addition to the embedding from
// which the residual stream starts.
//
// PerLayerEmbedding computes them for all layers at once: the sum of a table row of each token and
// a normed projection of the token's embedding. PerLayerInput is a layer's own block after its MLP:
// a gate, computed from the residual stream, multiplies the layer's embedding; the result is
// projected, normed and added to the stream. The table is split over ranks by the vocabulary, the
// block by the elements of the embedding.
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
  std::string projection;  // module with layers * width outputs
  std::string norm;        // tensor: [width]
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t width = 0;  // of one layer's embedding
  float table_scale = 1;   // factor of the table's rows
  float epsilon = 1e-6f;
};

class PerLayerEmbedding {
 public:
  PerLayerEmbedding(const std::string& name, const PerLayerEmbeddingConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  std::int64_t columns() const { return projection_.outputs(); }  // of all layers

  // out: [rows, columns()], the same on all ranks: the layers' embeddings, concatenated. embedded:
  // [rows, hidden], the start of the residual stream.
  void forward(TensorView out, TensorView tokens, TensorView embedded,
               const Context& context) const;

  // Bytes of Context::scratch that forward() takes.
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

  // Reads the stream without a norm, and adds to it. embedding: [rows, width], this layer's; any
  // row stride.
  void forward(ResidualStream& stream, TensorView embedding, const Context& context) const;

  // Bytes of Context::scratch that forward() takes.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  Range own_;  // this rank's elements of an embedding
  ColumnParallelLinear gate_;
  RowParallelLinear projection_;
  RmsNorm result_norm_;
  kernels::Activation activation_;
};

}  // namespace nvllm::layers
