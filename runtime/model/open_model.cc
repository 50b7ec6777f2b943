#include "runtime/model/open_model.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/text.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/decoder.h"
#include "model/loading/loader.h"
#include "model/loading/packing.h"
#include "model/loading/tensor_check.h"

namespace nvllm::runtime {
namespace {

namespace fs = std::filesystem;

// What a path refers to.
struct Place {
  enum class Kind { folder, config, gguf };
  Kind kind = Kind::folder;
  std::string config_path;  // path of the config.json, or of the GGUF file
};

Place find_place(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {
    fail("--model ", path, ": ", errno_text(error.value()));
  }
  if (!fs::exists(status)) {
    fail("--model ", path, ": no such folder or file; pass a model's folder, its config.json or a ",
         ".gguf file");
  }
  if (fs::is_directory(status)) {
    return {Place::Kind::folder, (fs::path(path) / "config.json").string()};
  }
  if (!fs::is_regular_file(status)) {
    fail("--model ", path,
         ": neither a folder nor a file; pass a model's folder, its config.json or a ",
         ".gguf file");
  }
  return {path.ends_with(".gguf") ? Place::Kind::gguf : Place::Kind::config, path};
}

// A path that cannot be accessed is an error: a folder without permission, a link to itself.
bool is_there(const std::string& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error) fail(path, ": ", errno_text(error.value()));
  return there;
}

void check_format(LoadFormat wanted, const model::Checkpoint& checkpoint) {
  const std::string& file = checkpoint.files().front().path();
  const bool gguf = file.ends_with(".gguf");
  if (wanted == LoadFormat::gguf && !gguf) {
    fail("--load-format gguf: ", file, " is a safetensors file; pass auto or safetensors");
  }
  if (wanted == LoadFormat::safetensors && gguf) {
    fail("--load-format safetensors: ", file, " is a GGUF file; pass auto or gguf");
  }
}

DType choose_dtype(const ModelOptions& options, const model::ModelConfig& config) {
  if (options.dtype) return *options.dtype;
  return config.dtype == DType::f32 ? DType::bf16 : config.dtype;
}

}  // namespace

void choose_quantization(const model::Decoder& decoder, const OpenModel& model) {
  model::choose_quantization(decoder.parameters(), model.checkpoint ? &*model.checkpoint : nullptr,
                             model.quantization);
}

void check_pipeline(const OpenModel& model, int stages) {
  if (stages == 1) return;
  const model::ModelConfig& config = model.config;
  if (stages > config.layers) {
    fail("--pp ", stages, ": the model has ", config.layers, " layers, and each stage needs one; ",
         "pass --pp ", config.layers, " or less");
  }
  if (config.kv_shared_layers > 0 || config.per_layer_width > 0) {
    fail("--pp ", stages, ": not with layers that read the keys and values of others, or an input ",
         "of their own, as this ", config.architecture, " has; pass --pp 1");
  }
}

OpenModel open_model(const ModelOptions& options) {
  const Place place = find_place(options.path);
  OpenModel model;
  model.path = options.path;
  model.dummy = options.format == LoadFormat::dummy;
  std::string config_path = place.config_path;
  std::string text;
  // A dummy model, or a caller that only inspects, needs no more than a config.json.
  const bool has_config = place.kind == Place::Kind::config ||
                          (place.kind == Place::Kind::folder && is_there(config_path));
  if ((model.dummy && has_config) || place.kind == Place::Kind::config) {
    text = model::read_config_json(config_path);
  } else {
    model.checkpoint = model::open_checkpoint(options.path);
    text = model.checkpoint->config_json();
    check_format(options.format, *model.checkpoint);
    if (!has_config) config_path = model.checkpoint->files().front().path();
  }
  model.config = model::parse_config(text, options.overrides, config_path);
  if (options.expert_parallel && model.config.moe.experts == 0) {
    fail("--expert-parallel: ", options.path, " is a ", model.config.architecture,
         " without experts; leave it out");
  }
  model.config.moe.expert_parallel = options.expert_parallel;
  model.generation =
      has_config ? model::read_generation_config(fs::path(config_path).parent_path(), model.config)
                 : model::default_generation_config(model.config);
  model.dtype = choose_dtype(options, model.config);
  model.quantization = options.quantization;
  // A request for float32 asks for more precision than 8-bit activations have.
  if (model.dtype == DType::f32) model.quantization.weight_only = true;
  if (model.dummy) model.checkpoint.reset();
  if (model.checkpoint) {
    const model::Decoder whole(model.config, {}, model.dtype);
    const std::int64_t skipped =
        model::check_tensors(whole.parameters(), *model.checkpoint, model.config);
    if (model.config.text_part && skipped > 0) {
      log_info(options.path, ": the text part of a ", model.config.architecture, "; ", skipped,
               " tensors of its other parts are not loaded");
    } else if (skipped > 0) {
      log_info(options.path, ": ", skipped,
               " tensors of layers that predict further tokens (mtp.) are not loaded");
    }
  }
  return model;
}

namespace {

// Elements of the experts that a token does not select.
std::uint64_t inactive_elements(const model::ModelConfig& config) {
  const model::MoeConfig& mixture = config.moe;
  const std::int64_t inactive = mixture.experts - mixture.experts_per_token;
  return static_cast<std::uint64_t>(mixture.layer_count() * inactive * 3 * config.hidden_size *
                                    mixture.intermediate_size);
}

std::uint64_t elements_of(const model::Decoder& decoder) {
  std::uint64_t sum = 0;
  for (const layers::Parameter* parameter : decoder.parameters()) {
    sum += static_cast<std::uint64_t>(parameter->elements());
  }
  return sum;
}

// The rows of a tensor that a rank owns; empty: none.
layers::Range rows_of(const RankDescription& rank, const std::string& tensor) {
  for (const ParameterDescription& parameter : rank.parameters) {
    for (const layers::Slice& slice : parameter.slices) {
      if (slice.tensor == tensor && slice.rows.size() > 0) return slice.rows;
    }
  }
  return {};
}

// The experts of a layer of which the rank has a part, and which part.
void describe_experts(RankDescription& rank, const model::TensorNames& names,
                      const model::MoeConfig& mixture, std::int64_t layer) {
  for (std::int64_t expert = 0; expert < mixture.experts; ++expert) {
    const layers::Range rows =
        rows_of(rank, names.in_expert(layer, expert, names.expert_gate) + ".weight");
    if (rows.size() == 0) continue;
    if (rank.experts.size() == 0) rank.experts.begin = expert;
    rank.experts.end = expert + 1;
    rank.expert_intermediate = rows;
  }
}

// "bfloat16", "int4 in groups of 32"
std::string format_of(const layers::Parameter& parameter, DType dtype) {
  if (!parameter.quantization) return name_of(parameter.fixed_type.value_or(dtype));
  return str(kernels::name_of(parameter.quantization->format), " in groups of ",
             parameter.quantization->group);
}

RankDescription describe_rank(const OpenModel& model, layers::Shard shard) {
  const model::Decoder decoder(model.config, shard, model.dtype);
  choose_quantization(decoder, model);
  const model::ParameterBytes bytes = model::bytes_of(decoder.parameters(), model.dtype);
  RankDescription rank;
  rank.elements = elements_of(decoder);
  rank.bytes = bytes.used;
  rank.allocated = bytes.allocated;
  for (layers::Parameter* const parameter : decoder.parameters()) {
    rank.parameters.push_back({.name = parameter->name,
                               .shape = parameter->shape,
                               .format = format_of(*parameter, model.dtype),
                               .bytes = model::bytes_of(std::span(&parameter, 1), model.dtype).used,
                               .slices = parameter->slices});
  }
  rank.heads = decoder.heads().q;
  rank.kv_heads = decoder.heads().kv;
  rank.state_bytes = model::DecoderMemory::state_bytes(decoder, 1);
  // Derived from the slices themselves, so that it cannot differ from what is loaded.
  const model::TensorNames& names = model.config.names;
  const model::MoeConfig& mixture = model.config.moe;
  for (std::int64_t layer = 0; layer < model.config.layers; ++layer) {
    const bool has_experts = mixture.in_layer(layer);
    if (has_experts && rank.experts.size() == 0) describe_experts(rank, names, mixture, layer);
    if (rank.intermediate.size() > 0 || (has_experts && !mixture.beside_mlp)) continue;
    rank.intermediate = rows_of(rank, names.in_layer(layer, names.gate) + ".weight");
  }
  rank.vocabulary = rows_of(rank, names.embedding);
  return rank;
}

CheckpointDescription describe_checkpoint(const model::Checkpoint& checkpoint) {
  CheckpointDescription description;
  description.summary = checkpoint.describe();
  for (const model::CheckpointFile& file : checkpoint.files()) {
    description.files[file.path()] = file.size();
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    for (StoredBytes* sum :
         {&description.encodings[model::name_of(tensor.encoding)], &description.all}) {
      sum->tensors += 1;
      sum->bytes += tensor.bytes;
    }
  }
  return description;
}

}  // namespace

const char* name_of(layers::RopeConfig::Type type) {
  using Type = layers::RopeConfig::Type;
  switch (type) {
    case Type::standard: return "default";
    case Type::linear: return "linear";
    case Type::dynamic: return "dynamic";
    case Type::yarn: return "yarn";
    case Type::llama3: return "llama3";
    case Type::proportional: return "proportional";
  }
  return "?";
}

ModelDescription describe_model(const OpenModel& model, int ranks) {
  ModelDescription description;
  description.path = model.path;
  description.config = model.config;
  description.dtype = model.dtype;
  description.dummy = model.dummy;
  description.elements = elements_of({model.config, {}, model.dtype});
  description.active_elements = description.elements - inactive_elements(model.config);
  if (model.checkpoint) description.checkpoint = describe_checkpoint(*model.checkpoint);
  for (int rank = 0; rank < ranks; ++rank) {
    description.ranks.push_back(describe_rank(model, {rank, ranks}));
  }
  return description;
}

}  // namespace nvllm::runtime
