// What a runner's parts are made for, as its options say it.
#pragma once

#include "device/backend.h"
#include "layers/sampler.h"
#include "model/decoder.h"
#include "runtime/runner_options.h"
#include "runtime/sparse_attention.h"
#include "runtime/step_staging.h"

namespace nvllm::runtime {

StagingLimits staging_limits(const RunnerOptions& options);
model::DecoderLimits decoder_limits(const RunnerOptions& options);
layers::SamplerLimits sampler_limits(const RunnerOptions& options);
SparseAttentionLimits sparse_limits(const model::Decoder& decoder, const RunnerOptions& options,
                                    DeviceKind device);

}  // namespace nvllm::runtime
