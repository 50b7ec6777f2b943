// Which model, and how.
#include "launcher/option_rows.h"
#include "model/config/config.h"

namespace nvllm::launcher {
namespace {

using runtime::LoadFormat;

void store_model(Options& options, const OptionValue& value) {
  options.model.path =
      value.path("a model's folder, its config.json, a .gguf file or a Hugging Face id");
}

void store_dtype(Options& options, const OptionValue& value) {
  options.model.dtype = value.one_of<std::optional<DType>>("type", {{"auto", std::nullopt},
                                                                    {"bfloat16", DType::bf16},
                                                                    {"float16", DType::f16},
                                                                    {"float32", DType::f32}});
}

void store_load_format(Options& options, const OptionValue& value) {
  options.model.format =
      value.one_of<LoadFormat>("format", {{"auto", LoadFormat::automatic},
                                          {"dummy", LoadFormat::dummy},
                                          {"safetensors", LoadFormat::safetensors},
                                          {"gguf", LoadFormat::gguf}});
}

void store_overrides(Options& options, const OptionValue& value) {
  try {
    model::check_overrides(value.text());
  } catch (const Error& error) {
    refuse(error.what());
  }
  options.model.overrides = value.text();
}

}  // namespace

OptionRow model_row() {
  return {"--model",
          nullptr,
          "MODEL",
          "a folder with config.json and weights, a config.json, a .gguf file, or\n"
          "a Hugging Face id that the local cache holds",
          "SmolLM2-135M-Instruct, from the user's cache",
          store_model};
}

OptionRows model_rows() {
  return {
      model_row(),
      {"--dtype", nullptr, "auto|bfloat16|float16|float32",
       "the type that weights get, and that is computed with; auto: the\n"
       "model's own, bfloat16 where that is float32",
       "auto", store_dtype},
      {"--load-format", nullptr, "auto|dummy|safetensors|gguf",
       "what the weights come from; auto: whatever is there;\n"
       "dummy: random values, the same in every run, of a config alone",
       "auto", store_load_format},
      {"--hf-overrides", nullptr, "JSON",
       "an object whose keys replace those of config.json;\n"
       "objects in it are merged: '{\"rope_scaling\": {\"factor\": 2}}'",
       nullptr, store_overrides},
  };
}

}  // namespace nvllm::launcher
