#include "launcher/bench/floor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "layers/partition.h"

namespace nvllm::launcher {
namespace {

// Columns of a rank's linear attention projections: q, k, v, z, and the output.
double linear_attention_columns(const model::LinearAttentionConfig& linear, layers::Shard shard) {
  if (linear.key_heads == 0) return 0;
  const auto own = layers::even_part_of(linear.key_heads, shard).size();
  const std::int64_t values = own * (linear.value_heads / linear.key_heads) * linear.value_head_dim;
  const std::int64_t columns = 2 * own * linear.key_head_dim + 3 * values;
  return static_cast<double>(linear.layer_count() * columns);
}

// Sums of a rank's columns and elements over all layers.
struct LayerSums {
  std::int64_t with_attention = 0;
  double q = 0;          // of queries
  double kv = 0;         // of keys that a layer computes, and as many of values
  double read_kv = 0;    // of keys that it reads, likewise
  double inner = 0;      // of MLPs
  double per_layer = 0;  // of per-layer inputs, including their projections
};

LayerSums sums_of(const model::ModelConfig& config, layers::Shard shard) {
  LayerSums sums;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.moe.in_layer(layer) || config.moe.beside_mlp) {
      sums.inner +=
          static_cast<double>(shard_range(config.intermediate_size_of(layer), shard).size());
    }
    sums.per_layer += static_cast<double>(2 * shard_range(config.per_layer_width, shard).size() +
                                          config.per_layer_width);
    if (config.linear_attention.in_layer(layer)) continue;
    const auto heads = layers::heads_of(config.heads, config.kv_heads_of(layer), shard);
    const std::int64_t head_dim = config.head_dim_of(layer);
    const double kv = static_cast<double>(heads.kv.size() * head_dim);
    ++sums.with_attention;
    sums.q += static_cast<double>(heads.q.size() * head_dim);
    sums.kv += config.has_kv(layer) ? kv : 0;
    sums.read_kv += kv;
  }
  return sums;
}

ModelCost cost_of_rank(const model::ModelConfig& config, DType dtype, DType kv_dtype,
                       layers::Shard shard) {
  const double hidden = static_cast<double>(config.hidden_size);
  const LayerSums sums = sums_of(config, shard);
  const double vocabulary = static_cast<double>(shard_range(config.vocab_size, shard).size());
  const double depth = static_cast<double>(sums.with_attention);
  const model::MoeConfig& mixture = config.moe;
  const double with_experts = static_cast<double>(mixture.layer_count());
  const double experts = with_experts * static_cast<double>(mixture.experts);
  const double expert_inner =
      static_cast<double>(shard_range(mixture.intermediate_size, shard).size());
  const double expert_weights = experts * hidden * 3 * expert_inner;
  const double shared =
      static_cast<double>(shard_range(mixture.shared_intermediate_size, shard).size());
  const double attention = 2 * sums.q + 2 * sums.kv + (config.output_gate ? sums.q : 0);
  const double layer_weights =
      hidden * (attention + linear_attention_columns(config.linear_attention, shard) +
                3 * sums.inner + sums.per_layer + experts + with_experts * 3 * shared);
  const double share = mixture.experts == 0 ? 0
                                            : static_cast<double>(mixture.experts_per_token) /
                                                  static_cast<double>(mixture.experts);
  double window = 0, layers_without = depth;
  if (!config.windows.empty()) {
    window = static_cast<double>(std::ranges::max(config.windows));
    layers_without = static_cast<double>(std::ranges::count(config.windows, std::int64_t{0}));
  }
  const double element = static_cast<double>(size_of(dtype));
  return {.layer_bytes = layer_weights * element,
          .expert_bytes = expert_weights * element,
          .expert_share = share,
          .head_bytes = vocabulary * hidden * element,
          .kv_bytes = 2 * sums.read_kv * static_cast<double>(size_of(kv_dtype)),
          .layer_flops = 2 * (layer_weights + share * expert_weights),
          .head_flops = 2 * vocabulary * hidden,
          .attention_flops = 4 * sums.q,
          .window = window,
          .window_share = (depth - layers_without) / depth};
}

// Every token of a prompt is a row and attends to all tokens up to it.
StepWork work_of_prefill(const ModelCost& cost, double prompts, double tokens) {
  return {.rows = prompts * tokens,
          .tokens = prompts,
          .context = prompts * cost.attended_by_prompt(tokens),
          .read = 0};  // a prompt's own K and V are still in the device's caches
}

}  // namespace

double ModelCost::attended(double context) const {
  return (1 - window_share) * context + window_share * std::min(context, window);
}

double ModelCost::attended_by_prompt(double tokens) const {
  const double first = std::min(tokens, window);  // these attend to all tokens before them
  return (1 - window_share) * tokens * (tokens + 1) / 2 +
         window_share * (first * (first + 1) / 2 + (tokens - first) * window);
}

ModelCost cost_of(const model::ModelConfig& config, DType dtype, DType kv_dtype, int ranks) {
  ModelCost max;
  for (int rank = 0; rank < ranks; ++rank) {
    const ModelCost cost = cost_of_rank(config, dtype, kv_dtype, {rank, ranks});
    for (const auto part :
         {&ModelCost::layer_bytes, &ModelCost::expert_bytes, &ModelCost::expert_share,
          &ModelCost::head_bytes, &ModelCost::kv_bytes, &ModelCost::layer_flops,
          &ModelCost::head_flops, &ModelCost::attention_flops, &ModelCost::window,
          &ModelCost::window_share}) {
      max.*part = std::max(max.*part, cost.*part);
    }
  }
  return max;
}

ModelCost cost_in_stages(ModelCost cost, int stages) {
  for (const auto shared : {&ModelCost::kv_bytes, &ModelCost::layer_flops, &ModelCost::head_flops,
                            &ModelCost::attention_flops}) {
    cost.*shared /= stages;
  }
  return cost;
}

void count_weights(ModelCost& cost, const runtime::ModelDescription& model) {
  const std::string head = model.config.tied_embeddings ? "embedding.weight" : "head.weight";
  cost.layer_bytes = cost.expert_bytes = cost.head_bytes = 0;
  for (const runtime::RankDescription& rank : model.ranks) {
    double layers = 0, experts = 0;
    for (const runtime::ParameterDescription& parameter : rank.parameters) {
      const auto bytes = static_cast<double>(parameter.bytes);
      const bool of_experts = parameter.name.find(".experts.") != std::string::npos;
      if (parameter.name.starts_with("layers.")) (of_experts ? experts : layers) += bytes;
      if (parameter.name == head) cost.head_bytes = std::max(cost.head_bytes, bytes);
    }
    cost.layer_bytes = std::max(cost.layer_bytes, layers);
    cost.expert_bytes = std::max(cost.expert_bytes, experts);
  }
}

bool floor_holds(const ModelCost& cost, const DeviceSpeed& speed) {
  return cost.layer_bytes + cost.expert_bytes + cost.head_bytes > speed.cache_bytes;
}

double step_floor(const ModelCost& cost, const DeviceSpeed& speed, const StepWork& work) {
  // Experts that no row has selected are not read; each row selects a random share.
  const double experts_read = cost.expert_bytes * (1 - std::pow(1 - cost.expert_share, work.rows));
  const double gemms = std::max(
      (cost.layer_bytes + experts_read + cost.head_bytes) / speed.bytes_per_second,
      (work.rows * cost.layer_flops + work.tokens * cost.head_flops) / speed.flops_per_second);
  const double attention =
      std::max(work.read * cost.kv_bytes / speed.bytes_per_second,
               work.context * cost.attention_flops / speed.attention_flops_per_second);
  return gemms + attention;
}

double decode_floor(const ModelCost& cost, const DeviceSpeed& speed, double batch, double context) {
  const double attended = batch * cost.attended(context);
  return step_floor(cost, speed,
                    {.rows = batch, .tokens = batch, .context = attended, .read = attended});
}

double prefill_floor(const ModelCost& cost, const DeviceSpeed& speed, double prompts,
                     double tokens) {
  return step_floor(cost, speed, work_of_prefill(cost, prompts, tokens));
}

double workload_floor(const ModelCost& cost, const DeviceSpeed& speed,
                      std::span<const SequenceLength> sequences, std::int64_t running) {
  struct Running {
    double context = 0;     // of the next token
    std::int64_t left = 0;  // tokens that are still to be generated
  };
  std::vector<Running> now;
  std::size_t next = 0;
  double seconds = 0;
  while (next < sequences.size() || !now.empty()) {
    StepWork work;
    for (Running& sequence : now) {
      work.rows += 1;
      work.tokens += 1;
      work.context += cost.attended(sequence.context);
      work.read += cost.attended(sequence.context);
      sequence.context += 1;
      sequence.left -= 1;
    }
    while (next < sequences.size() && static_cast<std::int64_t>(now.size()) < running) {
      const SequenceLength& length = sequences[next++];
      const StepWork prompt = work_of_prefill(cost, 1, static_cast<double>(length.prompt));
      work.rows += prompt.rows;
      work.tokens += 1;
      work.context += prompt.context;
      now.push_back({static_cast<double>(length.prompt) + 1, length.output - 1});
    }
    seconds += step_floor(cost, speed, work);
    std::erase_if(now, [](const Running& sequence) { return sequence.left <= 0; });
  }
  return seconds;
}

}  // namespace nvllm::launcher
