#include "runtime/open_model.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/decoder.h"
#include "model/loading/tensor_check.h"

namespace nvllm::runtime {
namespace {

namespace fs = std::filesystem;

// What a path turned out to be.
struct Place {
  enum class Kind { folder, config, gguf };
  Kind kind = Kind::folder;
  std::string config_path;  // of the config.json; of a GGUF file, itself
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

// What cannot be looked at is an error: a folder that this user may not read, a link to itself.
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

OpenModel open_model(const ModelOptions& options) {
  const Place place = find_place(options.path);
  OpenModel model;
  model.path = options.path;
  model.dummy = options.format == LoadFormat::dummy;
  std::string config_path = place.config_path;
  std::string text;
  // A dummy needs a config alone; so does who looks at one.
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
  model.generation =
      has_config ? model::read_generation_config(fs::path(config_path).parent_path(), model.config)
                 : model::default_generation_config(model.config);
  model.dtype = choose_dtype(options, model.config);
  if (model.dummy) model.checkpoint.reset();
  if (model.checkpoint) {
    const model::Decoder whole(model.config, {}, model.dtype);
    model::check_tensors(whole.parameters(), *model.checkpoint, model.config);
  }
  return model;
}

}  // namespace nvllm::runtime
