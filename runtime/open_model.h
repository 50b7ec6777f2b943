// OpenModel: the model that a command line names, opened but not loaded: its configuration, and the
// headers of its files. The launcher opens it before it forks; the workers inherit it.
#pragma once

#include <optional>
#include <string>

#include "device/dtype.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/config/generation_config.h"
#include "runtime/model_options.h"

namespace nvllm::runtime {

struct OpenModel {
  std::string path;
  model::ModelConfig config;
  model::GenerationConfig generation;  // of the file beside the config.json; a GGUF file has none
  DType dtype = DType::bf16;
  bool dummy = false;  // loaded, it has random weights
  // Absent: dummy, or a config.json alone.
  std::optional<model::Checkpoint> checkpoint;
};

// Errors of every kind are one line that names the file. The checkpoint's tensors are those of the
// configuration, by name and shape.
OpenModel open_model(const ModelOptions& options);

}  // namespace nvllm::runtime
