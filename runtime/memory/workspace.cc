#include "runtime/memory/workspace.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "kernels/gemm/gemm.h"
#include "layers/sampler.h"
#include "runtime/runner/decode_graphs.h"
#include "runtime/runner/runner_cache.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_results.h"
#include "runtime/runner/step_staging.h"

namespace nvllm::runtime {
namespace {

// Values suggested in errors are multiples of this, to be easy to read.
constexpr std::int64_t kStep = 256;

// An option that decides how much memory a runner takes.
struct Knob {
  const char* name;
  std::int64_t (*get)(const RunnerOptions& options);
  void (*set)(RunnerOptions& options, std::int64_t value);
};

// If micro_batch_rows is set, a prompt is one step, and --max-num-batched-tokens limits the rows
// computed at a time.
constexpr Knob kKnobs[] = {
    {"--max-num-batched-tokens",
     [](const RunnerOptions& options) {
       return options.micro_batch_rows > 0 ? options.micro_batch_rows
                                           : options.max_num_batched_tokens;
     },
     [](RunnerOptions& options, std::int64_t value) {
       if (options.micro_batch_rows > 0) {
         options.micro_batch_rows = value;
       } else {
         options.max_num_batched_tokens = value;
         options.max_logit_rows = std::min(options.max_logit_rows, value);
       }
     }},
    {"--max-model-len", [](const RunnerOptions& options) { return options.max_model_len; },
     [](RunnerOptions& options, std::int64_t value) {
       options.max_model_len = value;
       if (options.micro_batch_rows > 0)
         options.max_num_batched_tokens = value + options.max_num_seqs;
     }},
};

using BytesOf = std::function<std::size_t(const RunnerOptions&)>;

// The largest value below the present one with which the runner fits; 0: none.
std::int64_t max_fitting_value(const Knob& knob, const RunnerOptions& options,
                               std::size_t available, const BytesOf& bytes_of) {
  const auto fits = [&](std::int64_t steps) {
    RunnerOptions less = options;
    knob.set(less, steps * kStep);
    return bytes_of(less) <= available;
  };
  // In units of kStep: `low` fits, `high` does not.
  std::int64_t low = 0, high = (knob.get(options) - 1) / kStep + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * kStep;
}

// "pass ..." one option, or the first at its minimum and the second; "" if neither is enough.
std::string fix_for(RunnerOptions options, std::size_t available, const BytesOf& bytes_of) {
  std::string fix = "pass ";
  for (const Knob& knob : kKnobs) {
    const std::int64_t value = max_fitting_value(knob, options, available, bytes_of);
    if (value > 0) return str(fix, knob.name, " ", value, " or less");
    if (knob.get(options) <= kStep) continue;
    knob.set(options, kStep);
    fix += str(knob.name, " ", kStep, " and ");
  }
  return "";
}

std::size_t results_bytes(const RunnerOptions& options) {
  return options.keeps_results ? StepResults::bytes(options.logit_rows(), options.steps_ahead + 1)
                               : 0;
}

// In a pipeline only the last stage samples.
std::size_t sampler_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  if (!decoder.has_head()) return 0;
  return layers::Sampler::bytes(decoder.head().stride(), decoder.shard(), options.sampler_limits());
}

std::size_t overlap_memory_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  if (options.overlap_rows == 0) return 0;
  return ipc::overlap_bytes(decoder.shard().ranks, options.overlapped_micro_batch_rows(),
                            decoder.config().hidden_size, decoder.dtype());
}

// On the CPU, GEMMs with large M keep a packed float32 copy of their inputs from the first one on.
// A grouped GEMM packs its groups one after the other, but small groups together, up to kTogether
// rows.
std::size_t packed_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  const model::ModelConfig& config = decoder.config();
  const model::LinearAttentionConfig& linear = config.linear_attention;
  // Fixed summation segments (--invariant tp) may make a rank's share any size.
  const layers::Shard shard = decoder.shard();
  const auto share = [&](std::int64_t size) {
    return shard.tp_invariant ? size : divide_up(size, shard.ranks);
  };
  // Linear attention's value heads are split with the key heads that they share.
  const std::int64_t group = linear.key_heads == 0 ? 0 : linear.value_heads / linear.key_heads;
  const std::int64_t of_experts = config.moe.expert_parallel ? config.moe.intermediate_size
                                                             : share(config.moe.intermediate_size);
  const std::int64_t inputs = std::max({config.hidden_size, decoder.max_head_values(),
                                        share(config.intermediate_size_of(config.layers - 1)),
                                        of_experts, share(config.moe.shared_intermediate_size),
                                        share(linear.key_heads) * group * linear.value_head_dim});
  constexpr std::int64_t kPadding = 64;  // maximum padding of rows and inputs
  constexpr std::int64_t kTogether = 512;
  std::int64_t rows = options.decoder_limits().rows_at_once();
  rows = std::max(rows, std::min(rows * config.moe.experts_per_token, kTogether));
  return static_cast<std::size_t>((rows + kPadding) * (inputs + kPadding)) * sizeof(float);
}

}  // namespace

std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                            DeviceKind device) {
  return model::DecoderMemory::bytes(decoder, options.decoder_limits()) +
         decoder.rope_bytes(options.max_model_len) +
         model::DecoderMemory::state_bytes(decoder, options.max_num_seqs) +
         sampler_bytes(decoder, options) + StepStaging::bytes(options) + results_bytes(options) +
         kernels::gemm_bytes(device, decoder.quantized()) +
         RunnerCache::prompt_policy_bytes(decoder, options, device) +
         overlap_memory_bytes(decoder, options);
}

std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                        DeviceKind device) {
  if (device == DeviceKind::cpu) return packed_bytes(decoder, options);
  if (!options.graphs) return 0;
  // Driver memory per instantiated graph: kernel parameters and launch descriptions.
  constexpr std::size_t kGraph = 64 << 10, kNode = 2 << 10;
  constexpr std::int64_t kLayerNodes = 12, kBesideMlpNodes = 16, kPerLayerNodes = 8,
                         kOtherNodes = 64;
  const model::ModelConfig& config = decoder.config();
  const std::int64_t layer_nodes = kLayerNodes + (config.moe.beside_mlp ? kBesideMlpNodes : 0) +
                                   (config.per_layer_width > 0 ? kPerLayerNodes : 0);
  const std::int64_t nodes = decoder.own_layers().size() * layer_nodes + kOtherNodes;
  const std::int64_t graphs = DecodeGraphs::max_graphs(options.max_num_seqs, options.max_model_len);
  return static_cast<std::size_t>(graphs) * (kGraph + static_cast<std::size_t>(nodes) * kNode);
}

void require_states(const model::Decoder& decoder, std::int64_t sequences, std::size_t available) {
  const std::size_t needed = model::DecoderMemory::state_bytes(decoder, sequences);
  if (needed <= available) return;
  // Half of the memory is left for activations and the cache.
  const std::size_t fits = available / 2 / model::DecoderMemory::state_bytes(decoder, 1);
  fail("the states of linear attention of ", sequences, " sequences need ", format_bytes(needed),
       ", there are ", format_bytes(available), " beside the weights; ",
       fits > 0 ? str("pass --max-num-seqs ", fits, " or less") : std::string("free memory"));
}

void require_workspace(const RunnerOptions& options, DeviceKind device, std::size_t available,
                       const BytesOf& bytes_of) {
  const std::size_t needed = bytes_of(options);
  if (needed <= available) return;
  std::string fix = fix_for(options, available / 2, bytes_of);
  if (fix.empty()) fix = device == DeviceKind::cpu ? "free memory" : "use more GPUs (--tp)";
  fail("activations for steps of ", options.max_num_batched_tokens, " tokens and sequences of ",
       options.max_model_len, " need ", format_bytes(needed), ", there are ",
       format_bytes(available), " beside the weights; ", fix);
}

}  // namespace nvllm::runtime
