// config.json and overrides: anything is either refused with an Error in one line, or gives a
// configuration that keeps its promises. The first line of an input holds the overrides, the rest
// the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/config/config.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const nvllm::model::ModelConfig& config) {
  require(config.hidden_size > 0 && config.intermediate_size > 0 && config.layers > 0);
  require(config.vocab_size > 0 && config.max_position_embeddings > 0);
  require(config.kv_heads > 0 && config.heads % config.kv_heads == 0);
  require(config.head_dim > 0 && config.head_dim % 8 == 0);
  const nvllm::model::MoeConfig& mixture = config.moe;
  require(config.windows.empty() || std::ssize(config.windows) == config.layers);
  require(config.local_layers.empty() || std::ssize(config.local_layers) == config.layers);
  require(config.local_layers.empty() != config.local_rope.has_value());
  require(mixture.experts == 0 || std::ssize(mixture.layers) == config.layers);
  require(0 <= mixture.experts_per_token && mixture.experts_per_token <= mixture.experts);
  require((mixture.experts > 0) == (mixture.layer_count() > 0));
  const nvllm::model::LinearAttentionConfig& linear = config.linear_attention;
  require(linear.key_heads == 0 || std::ssize(linear.layers) == config.layers);
  require(linear.key_heads == 0 || linear.value_heads % linear.key_heads == 0);
  require((linear.key_heads > 0) == (linear.layer_count() > 0));
  require(config.kv_layers() > 0);
  require(0 < config.rotary_dim() && config.rotary_dim() <= config.full_head_dim());
  require(0 <= config.kv_shared_layers && config.kv_shared_layers < config.layers);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (linear.key_heads > 0 && config.linear_attention.in_layer(layer)) continue;
    const std::int64_t source = config.kv_source(layer);
    require(config.has_kv(source) && config.is_local(source) == config.is_local(layer));
    require(config.kv_heads_of(layer) > 0 && config.heads % config.kv_heads_of(layer) == 0);
    require(config.head_dim_of(layer) > 0 && config.head_dim_of(layer) % 8 == 0);
  }
  require(config.per_layer_width >= 0 && config.logit_cap >= 0);
  require(config.rms_norm_eps > 0 && config.rope.theta >= 1 && config.rope.factor >= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t newline = input.find('\n');
  const std::string_view overrides = input.substr(0, newline);
  const std::string_view text = newline == input.npos ? "" : input.substr(newline + 1);
  try {
    check(nvllm::model::parse_config(text, overrides, "config.json"));
  } catch (const nvllm::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
