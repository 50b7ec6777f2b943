#include "runtime/runner_memory.h"

#include <algorithm>
#include <cstdint>

#include "base/divide.h"
#include "kernels/gemm/linear.h"
#include "layers/sampler.h"
#include "runtime/decode_graphs.h"
#include "runtime/runner_limits.h"
#include "runtime/sparse_attention.h"
#include "runtime/step_results.h"
#include "runtime/step_staging.h"

namespace nvllm::runtime {
namespace {

std::size_t results_bytes(const RunnerOptions& options) {
  return options.keeps_results
             ? StepResults::bytes(sampler_limits(options).rows, options.steps_ahead + 1)
             : 0;
}

std::size_t rope_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  return static_cast<std::size_t>(options.max_model_len * decoder.config().head_dim) *
         sizeof(float);
}

// On the CPU the products of many rows keep a copy of their inputs, in float32, from when they first come.
std::size_t packed_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  const model::ModelConfig& config = decoder.config();
  const std::int64_t inputs =
      std::max({config.hidden_size, decoder.heads().q.size() * config.head_dim,
                divide_up(config.intermediate_size, decoder.shard().ranks)});
  constexpr std::int64_t kPadding = 64;  // of rows and inputs, at most
  return static_cast<std::size_t>((decoder_limits(options).rows_at_once() + kPadding) *
                                  (inputs + kPadding)) *
         sizeof(float);
}

}  // namespace

std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                            DeviceKind device) {
  return model::DecoderMemory::bytes(decoder, decoder_limits(options)) +
         rope_bytes(decoder, options) +
         layers::Sampler::bytes(decoder.head().stride(), decoder.config().vocab_size,
                                decoder.shard(), sampler_limits(options)) +
         StepStaging::bytes(staging_limits(options)) + results_bytes(options) +
         kernels::matmul_bytes(device) +
         SparseAttention::prompt_bytes(options.sparse, sparse_limits(decoder, options, device));
}

std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                        DeviceKind device) {
  if (device == DeviceKind::cpu) return packed_bytes(decoder, options);
  if (!options.graphs) return 0;
  // What a driver takes for an instantiated graph: its kernels' parameters and launch descriptions.
  constexpr std::size_t kGraph = 64 << 10, kNode = 2 << 10;
  constexpr std::int64_t kLayerNodes = 12, kOtherNodes = 64;
  const std::int64_t nodes = decoder.config().layers * kLayerNodes + kOtherNodes;
  const std::int64_t graphs = DecodeGraphs::most(options.max_num_seqs, options.max_model_len);
  return static_cast<std::size_t>(graphs) * (kGraph + static_cast<std::size_t>(nodes) * kNode);
}

}  // namespace nvllm::runtime
