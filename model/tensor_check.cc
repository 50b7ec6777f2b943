#include "model/tensor_check.h"

#include <set>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nvllm::model {
namespace {

bool may_be_left_over(std::string_view name, const ModelConfig& config) {
  for (const char* ending : {"rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.ends_with("rope_freqs.weight") ||
         (config.tied_embeddings && name == config.names.head);
}

// What may have gone wrong, for who reads of a tensor too many.
std::string likely_cause(std::string_view name, const ModelConfig& config) {
  const std::string_view layers = config.names.layers;
  if (name.starts_with(layers)) {
    const std::string number(
        name.substr(layers.size(), name.find('.', layers.size()) - layers.size()));
    if (number.size() < 6 && number.find_first_not_of("0123456789") == number.npos &&
        !number.empty() && std::stol(number) >= config.layers) {
      return str("; the configuration has ", config.layers, " layers");
    }
  }
  if (name.ends_with(".bias")) return "; the configuration says that there is no such bias";
  return str("; a ", config.architecture, " has no such tensor");
}

}  // namespace

void check_tensors(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                   const ModelConfig& config) {
  std::set<std::string_view> wanted;
  for (const layers::Parameter* parameter : parameters) {
    for (const layers::Slice& slice : parameter->slices) {
      checkpoint.get(slice.tensor, slice.shape);
      wanted.insert(slice.tensor);
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (wanted.contains(name) || may_be_left_over(name, config)) continue;
    fail(checkpoint.files()[tensor.file].path(), ": tensor ", tensor.stored_name,
         " is one too many", likely_cause(name, config));
  }
}

}  // namespace nvllm::model
