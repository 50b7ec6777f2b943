// OpenModel: the model that a command line names, opened but not loaded: its configuration, and the
// headers of its files. The launcher opens it before it forks; the workers inherit it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/dtype.h"
#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/config/generation_config.h"
#include "model/decoder.h"
#include "runtime/options.h"

namespace nvllm::runtime {

struct OpenModel {
  std::string path;
  model::ModelConfig config;
  model::GenerationConfig generation;  // from the file beside config.json; a GGUF file has none
  DType dtype = DType::bf16;
  model::QuantizationChoice quantization;
  bool dummy = false;  // loaded with random weights
  // Absent for a dummy, or if there is only a config.json.
  std::optional<model::Checkpoint> checkpoint;
  bool tp_invariant = false;  // see layers::Shard
};

// Decides which of a decoder's parameters stay quantized, before they are allocated.
void choose_quantization(const model::Decoder& decoder, const OpenModel& model);

// Every Error is one line that names the file. The checkpoint's tensors match the configuration by
// name and shape.
OpenModel open_model(const ModelOptions& options);

// An Error if the model cannot be divided into `stages` pipeline stages.
void check_pipeline(const OpenModel& model, int stages);

// ModelDescription: what is known of a model without loading it: its size, and which part of it
// every rank owns.

struct ParameterDescription {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string format;  // "bfloat16", "int4"
  std::uint64_t bytes = 0;
  std::vector<layers::Slice> slices;
};

struct RankDescription {
  // Ranges of the whole model's; empty: this rank owns none.
  layers::Range heads, kv_heads, intermediate, vocabulary;
  layers::Range experts;              // experts of which it has a part
  layers::Range expert_intermediate;  // the part that it has of each
  std::uint64_t elements = 0;         // of all its parameters
  std::uint64_t bytes = 0;            // the sum of the parameters' own
  std::uint64_t allocated = 0;        // memory that is allocated for them
  std::uint64_t state_bytes = 0;      // per sequence, in layers with linear attention
  std::vector<ParameterDescription> parameters;
};

struct StoredBytes {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

struct CheckpointDescription {
  std::string summary;                         // "2 safetensors files in DIR"; empty: no checkpoint
  std::map<std::string, std::uint64_t> files;  // path -> bytes
  std::map<std::string, StoredBytes> encodings;  // "BF16"
  StoredBytes all;
};

struct ModelDescription {
  std::string path;
  model::ModelConfig config;
  DType dtype = DType::bf16;
  bool dummy = false;
  std::uint64_t elements = 0;         // of the whole model's parameters; tied ones count once
  std::uint64_t active_elements = 0;  // elements used per token: without unselected experts
  CheckpointDescription checkpoint;
  std::vector<RankDescription> ranks;
};

// "default", "linear", "dynamic", "yarn", "llama3"
const char* name_of(layers::RopeConfig::Type type);

// Describes the model as divided over `ranks` devices.
ModelDescription describe_model(const OpenModel& model, int ranks);

}  // namespace nvllm::runtime
