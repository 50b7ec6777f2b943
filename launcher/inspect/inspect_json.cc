// The report of inspect as JSON, and its computed values.
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "launcher/cli/program.h"
#include "launcher/inspect/inspect_report.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::ordered_json;
using runtime::RankLoad;

Json range_of(layers::Range range) {
  return {range.begin, range.end};
}

Json rope_of(const layers::RopeConfig& rope) {
  Json json = {
      {"type", runtime::name_of(rope.type)}, {"theta", rope.theta}, {"factor", rope.factor}};
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("original_max_position_embeddings", rope.original_max_position_embeddings);
  add("attention_factor", rope.attention_factor);
  add("mscale", rope.mscale);
  add("mscale_all_dim", rope.mscale_all_dim);
  if (rope.type == layers::RopeConfig::Type::yarn) {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
  }
  if (rope.type == layers::RopeConfig::Type::proportional) json["rotated"] = rope.rotated;
  if (rope.type == layers::RopeConfig::Type::llama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  return json;
}

// Indices of the layers that are true.
Json numbers_of(const std::vector<bool>& layers) {
  Json numbers = Json::array();
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer]) numbers.push_back(layer);
  }
  return numbers;
}

Json mixture_of(const model::MoeConfig& mixture) {
  return {{"experts", mixture.experts},
          {"experts_per_token", mixture.experts_per_token},
          {"intermediate_size", mixture.intermediate_size},
          {"renormalize", mixture.renormalize},
          {"shared_intermediate_size", mixture.shared_intermediate_size},
          {"layers", numbers_of(mixture.layers)}};
}

Json linear_attention_of(const model::LinearAttentionConfig& linear) {
  return {{"key_heads", linear.key_heads},       {"value_heads", linear.value_heads},
          {"key_head_dim", linear.key_head_dim}, {"value_head_dim", linear.value_head_dim},
          {"conv_width", linear.conv_width},     {"layers", numbers_of(linear.layers)}};
}

Json config_of(const model::ModelConfig& config) {
  Json json = {
      {"architecture", config.architecture},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"max_model_len", config.max_model_len()},
      {"rms_norm_eps", config.rms_norm_eps},
      {"activation", kernels::name_of(config.activation)},
      {"tied_embeddings", config.tied_embeddings},
      {"qkv_bias", config.qkv_bias},
      {"output_bias", config.output_bias},
      {"mlp_bias", config.mlp_bias},
      {"qk_norm", config.qk_norm},
      {"attention_sinks", config.attention_sinks},
      {"mixture", nullptr},
      {"windows", config.windows},
      {"rope", rope_of(config.rope)},
      {"dtype", name_of(config.dtype)},
      {"bos_token_id", nullptr},
      {"eos_token_ids", config.eos_token_ids},
  };
  if (config.local_rope) json["local_rope"] = rope_of(*config.local_rope);
  if (config.linear_attention.key_heads > 0) {
    json["linear_attention"] = linear_attention_of(config.linear_attention);
  }
  if (config.differs_in_heads()) {
    json["global_key_value_heads"] = config.global_kv_heads;
    json["global_head_dim"] = config.global_head_dim;
    json["global_values_are_keys"] = config.global_values_are_keys;
  }
  if (config.kv_shared_layers > 0) json["kv_shared_layers"] = config.kv_shared_layers;
  if (config.per_layer_width > 0) json["per_layer_width"] = config.per_layer_width;
  if (config.logit_cap > 0) json["logit_cap"] = config.logit_cap;
  if (config.moe.experts > 0) json["mixture"] = mixture_of(config.moe);
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  return json;
}

Json checkpoint_of(const runtime::CheckpointDescription& checkpoint) {
  Json json = {{"summary", checkpoint.summary},
               {"tensors", checkpoint.all.tensors},
               {"bytes", checkpoint.all.bytes},
               {"encodings", Json::object()},
               {"files", Json::array()}};
  for (const auto& [encoding, stored] : checkpoint.encodings) {
    json["encodings"][encoding] = {{"tensors", stored.tensors}, {"bytes", stored.bytes}};
  }
  for (const auto& [path, bytes] : checkpoint.files) {
    json["files"].push_back({{"path", path}, {"bytes", bytes}});
  }
  return json;
}

Json parameter_of(const runtime::ParameterDescription& parameter) {
  Json json = {{"name", parameter.name},
               {"shape", parameter.shape},
               {"format", parameter.format},
               {"bytes", parameter.bytes},
               {"slices", Json::array()}};
  for (const layers::Slice& slice : parameter.slices) {
    json["slices"].push_back({{"tensor", slice.tensor},
                              {"shape", slice.shape},
                              {"rows", range_of(slice.rows)},
                              {"columns", range_of(slice.columns)},
                              {"to_row", slice.to_row}});
  }
  return json;
}

Json rank_of(const runtime::RankDescription& rank) {
  Json json = {{"heads", range_of(rank.heads)},
               {"kv_heads", range_of(rank.kv_heads)},
               {"intermediate", range_of(rank.intermediate)},
               {"experts", range_of(rank.experts)},
               {"expert_intermediate", range_of(rank.expert_intermediate)},
               {"vocabulary", range_of(rank.vocabulary)},
               {"parameters", rank.elements},
               {"bytes", rank.bytes},
               {"allocated_bytes", rank.allocated},
               {"tensors", Json::array()}};
  for (const runtime::ParameterDescription& parameter : rank.parameters) {
    json["tensors"].push_back(parameter_of(parameter));
  }
  return json;
}

Json load_of(const RankLoad& load, std::int64_t started_ns) {
  const double seconds = load.times.seconds();
  Json json = {
      {"pid", load.report.pid},
      {"device", load.report.device},
      {"bytes_read", load.times.bytes_read},
      {"bytes_loaded", load.times.bytes_loaded},
      {"seconds", seconds},
      {"gb_per_s", static_cast<double>(load.times.bytes_loaded) * 1e-9 / seconds},
      {"begun_s", static_cast<double>(load.times.started_ns - started_ns) * 1e-9},
      {"loaded_s", static_cast<double>(load.times.loaded_ns - started_ns) * 1e-9},
      {"memory", Json::array()},
  };
  for (const runtime::MemoryLine& line : load.report.memory) {
    json["memory"].push_back({{"kind", line.kind},
                              {"purpose", line.purpose},
                              {"bytes", line.bytes},
                              {"buffers", line.buffers}});
  }
  if (!load.checksums.empty()) json["checksums"] = Json::object();
  for (const runtime::ParameterChecksum& one : load.checksums) {
    json["checksums"][one.name] = format_checksum(one.checksum);
  }
  return json;
}

}  // namespace

std::string format_checksum(std::uint64_t checksum) {
  std::array<char, 20> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(checksum));
  return text.data();
}

namespace {

// If ranks share a KV head, each stores its keys and values.
std::uint64_t kv_bytes_per_token(const runtime::ModelDescription& model,
                                 const runtime::RankDescription& rank) {
  const model::ModelConfig& config = model.config;
  std::int64_t elements = 2 * config.kv_layers() * config.head_dim * rank.kv_heads.size();
  if (config.differs_in_heads()) {
    elements = 0;
    const layers::Shard shard{static_cast<int>(&rank - model.ranks.data()),
                              static_cast<int>(model.ranks.size())};
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      if (!config.has_kv(layer)) continue;
      const auto heads = layers::heads_of(config.heads, config.kv_heads_of(layer), shard);
      elements += 2 * heads.kv.size() * config.head_dim_of(layer);
    }
  }
  return static_cast<std::uint64_t>(elements) * size_of(model.dtype);
}

// The part of `bytes` per token that is in layers of the window group; all layers are alike.
std::uint64_t in_window_group(const model::ModelConfig& config, std::uint64_t bytes) {
  if (config.window_group() == 0) return 0;
  const auto without = static_cast<std::uint64_t>(std::ranges::count(config.windows, 0));
  const auto layers = static_cast<std::uint64_t>(config.layers);
  return bytes / layers * (layers - without);
}

}  // namespace

std::uint64_t kv_window_bytes_per_token(const runtime::ModelDescription& model) {
  std::uint64_t bytes = 0;
  for (const runtime::RankDescription& rank : model.ranks)
    bytes += in_window_group(model.config, kv_bytes_per_token(model, rank));
  return bytes;
}

std::uint64_t kv_bytes_per_token(const runtime::ModelDescription& model) {
  std::uint64_t bytes = 0;
  for (const runtime::RankDescription& rank : model.ranks) bytes += kv_bytes_per_token(model, rank);
  return bytes;
}

std::uint64_t state_bytes_per_sequence(const runtime::ModelDescription& model) {
  std::uint64_t bytes = 0;
  for (const runtime::RankDescription& rank : model.ranks) bytes += rank.state_bytes;
  return bytes;
}

std::uint64_t tokens_that_fit(const runtime::ModelDescription& model, const KvMemory& memory) {
  const auto fitting = [&](std::uint64_t weights, std::uint64_t per_token) {
    if (per_token == 0) return ~std::uint64_t{0};
    const std::uint64_t left = memory.bytes - std::min(memory.bytes, weights);
    const auto window = static_cast<std::uint64_t>(model.config.window_group());
    const std::uint64_t in_all_layers = left / per_token;
    if (in_all_layers <= window) return in_all_layers;
    const std::uint64_t beyond = per_token - in_window_group(model.config, per_token);
    return window + (left - window * per_token) / beyond;
  };
  std::uint64_t tokens = ~std::uint64_t{0}, all_weights = 0;
  for (const runtime::RankDescription& rank : model.ranks) {
    tokens = std::min(tokens, fitting(rank.allocated, kv_bytes_per_token(model, rank)));
    all_weights += rank.allocated;
  }
  return memory.shared ? fitting(all_weights, kv_bytes_per_token(model)) : tokens;
}

LoadSummary summary_of(const InspectReport& report) {
  LoadSummary summary;
  if (report.loads.empty()) return summary;
  std::int64_t first = report.loads.front().times.started_ns;
  std::int64_t loaded = 0;
  for (const RankLoad& load : report.loads) {
    first = std::min(first, load.times.started_ns);
    loaded = std::max(loaded, load.times.loaded_ns);
    summary.bytes_read += load.times.bytes_read;
    summary.bytes_loaded += load.times.bytes_loaded;
  }
  summary.seconds = static_cast<double>(loaded - first) * 1e-9;
  summary.since_start = static_cast<double>(loaded - report.started_ns) * 1e-9;
  summary.bytes_per_second = static_cast<double>(summary.bytes_loaded) / summary.seconds;
  return summary;
}

std::string format_json(const InspectReport& report) {
  const runtime::ModelDescription& model = report.model;
  Json json = {{"version", kVersion},
               {"model", model.path},
               {"config", config_of(model.config)},
               {"dtype", name_of(model.dtype)},
               {"parameters", model.elements},
               {"active_parameters", model.active_elements},
               {"load_format", model.dummy ? "dummy" : "checkpoint"},
               {"checkpoint", nullptr},
               {"kv_cache", {{"bytes_per_token", kv_bytes_per_token(model)}}},
               {"ranks", Json::array()}};
  if (const std::uint64_t bytes = state_bytes_per_sequence(model); bytes > 0) {
    json["state_bytes_per_sequence"] = bytes;
  }
  if (const std::int64_t window = model.config.window_group(); window > 0) {
    json["kv_cache"]["window"] = {{"tokens", window},
                                  {"bytes_per_token", kv_window_bytes_per_token(model)}};
  }
  if (!report.kv_memory.where.empty()) {
    json["kv_cache"]["tokens_that_fit"] = tokens_that_fit(model, report.kv_memory);
  }
  if (!model.checkpoint.summary.empty()) json["checkpoint"] = checkpoint_of(model.checkpoint);
  for (std::size_t rank = 0; rank < model.ranks.size(); ++rank) {
    Json one = {{"rank", rank}};
    one.update(rank_of(model.ranks[rank]));
    if (!report.places.empty()) one["box"] = report.places[rank].box;
    if (!report.loads.empty()) one["load"] = load_of(report.loads[rank], report.started_ns);
    json["ranks"].push_back(std::move(one));
  }
  if (!report.loads.empty()) {
    const LoadSummary all = summary_of(report);
    json["load"] = {{"seconds", all.seconds},
                    {"since_start_s", all.since_start},
                    {"bytes_read", all.bytes_read},
                    {"bytes_loaded", all.bytes_loaded},
                    {"gb_per_s", all.bytes_per_second * 1e-9}};
  }
  return json_text(json, 2) + '\n';
}

}  // namespace nvllm::launcher
