#include "runtime/runner_limits.h"

#include <algorithm>

#include "base/math.h"

namespace nvllm::runtime {

StagingLimits staging_limits(const RunnerOptions& options) {
  return {.slots = options.max_num_seqs,
          .rows = std::max(options.max_num_batched_tokens, options.max_num_seqs),
          .logit_rows = std::max(options.max_logit_rows, options.max_num_seqs),
          .table_blocks = divide_up(options.max_model_len, options.block_size),
          .part_rows = options.part_rows};
}

model::DecoderLimits decoder_limits(const RunnerOptions& options) {
  const StagingLimits limits = staging_limits(options);
  return {.rows = limits.rows,
          .logit_rows = limits.logit_rows,
          .positions = options.max_model_len,
          .part_rows = options.part_rows};
}

layers::SamplerLimits sampler_limits(const RunnerOptions& options) {
  const StagingLimits limits = staging_limits(options);
  return {.slots = limits.slots, .rows = limits.logit_rows};
}

SparseAttentionLimits sparse_limits(const model::Decoder& decoder, const RunnerOptions& options,
                                    DeviceKind device) {
  const StagingLimits limits = staging_limits(options);
  const std::int64_t keys = decoder.heads().kv.size() * decoder.config().head_dim;
  const bool gathers = device == DeviceKind::cuda && decoder.dtype() != DType::f32;
  return {.rows = decoder_limits(options).rows_at_once(),
          .sequences = limits.slots,
          .tokens = options.max_model_len,
          .heads = decoder.heads().q.size(),
          .key_bytes = gathers ? static_cast<std::size_t>(keys) * size_of(decoder.dtype()) : 0};
}

}  // namespace nvllm::runtime
