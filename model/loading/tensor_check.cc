#include "model/loading/tensor_check.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

// Whether a tensor is the bias of zeros that programs for GPTQ store beside every quantized weight.
bool is_bias_of_zeros(const StoredTensor& tensor, const Checkpoint& checkpoint) {
  constexpr std::string_view kBias = ".bias";
  if (!tensor.name.ends_with(kBias)) return false;
  const std::string module = tensor.name.substr(0, tensor.name.size() - kBias.size());
  const StoredTensor* const weight = checkpoint.find(module + ".weight");
  if (weight == nullptr || weight->quantized == nullptr) return false;
  if (tensor.shape != std::vector<std::int64_t>{weight->shape[0]}) return false;
  std::vector<std::byte> bytes(tensor.bytes);
  read_at(checkpoint.files()[tensor.file], tensor.offset, bytes);
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

// The layer of a tensor; -1: it belongs to none.
std::int64_t layer_of(std::string_view name, const ModelConfig& config) {
  const std::string_view layers = config.names.layers;
  if (!name.starts_with(layers)) return -1;
  name.remove_prefix(layers.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = error == std::errc{} && end != name.data() + name.size() && *end == '.';
  return whole ? layer : -1;
}

// Whether it would make keys and values in a layer that reads those of another one.
bool is_of_unused_kv(std::string_view name, const ModelConfig& config) {
  const std::int64_t layer = layer_of(name, config);
  if (layer < config.layers - config.kv_shared_layers || layer >= config.layers) return false;
  const TensorNames& names = config.names;
  return name == names.in_layer(layer, names.k_norm) ||
         name.starts_with(names.in_layer(layer, names.k) + ".") ||
         name.starts_with(names.in_layer(layer, names.v) + ".");
}

bool may_be_left_over(const StoredTensor& tensor, const Checkpoint& checkpoint,
                      const ModelConfig& config) {
  return tensor.name.ends_with("rotary_emb.inv_freq") ||
         (config.tied_embeddings && tensor.name == config.names.head) ||
         is_of_unused_kv(tensor.name, config) || is_bias_of_zeros(tensor, checkpoint);
}

// Whether it is a tensor of what a multimodal model sees and hears with.
bool is_of_other_parts(std::string_view name) {
  for (const std::string_view prefix :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
        "model.multi_modal_projector.", "model.visual.", "model.embed_vision.",
        "model.audio_tower.", "model.embed_audio."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// A hint for the error text: why there may be a tensor too many.
std::string likely_cause(std::string_view name, const ModelConfig& config) {
  if (layer_of(name, config) >= config.layers) {
    return str("; the configuration has num_hidden_layers ", config.layers);
  }
  if (name.ends_with(".bias")) return "; the configuration says that there is no such bias";
  return str("; a ", config.architecture, " has no such tensor");
}

}  // namespace

std::int64_t check_tensors(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, const ModelConfig& config) {
  std::set<std::string_view> expected;
  for (const layers::Parameter* parameter : parameters) {
    for (const layers::Slice& slice : parameter->slices) {
      checkpoint.get(slice.tensor, slice.shape);
      expected.insert(slice.tensor);
    }
  }
  std::int64_t of_other_parts = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const bool is_mtp = config.skips_mtp && name.starts_with("mtp.");
    if (is_mtp || (config.text_part && is_of_other_parts(name))) {
      ++of_other_parts;
      continue;
    }
    if (expected.contains(name) || may_be_left_over(tensor, checkpoint, config)) continue;
    fail(checkpoint.files()[tensor.file].path(), ": tensor ", tensor.stored_name,
         " is one too many", likely_cause(name, config));
  }
  return of_other_parts;
}

}  // namespace nvllm::model
