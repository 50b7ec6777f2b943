// Options shared by several commands: the model, sampling, the worker group, and small ones.
#include <limits>
#include <string_view>
#include <utility>

#include "ipc/group.h"
#include "launcher/cli/option_table.h"
#include "model/config/config.h"

namespace nvllm::launcher {
namespace {

using runtime::LoadFormat;
using runtime::SamplingParams;

constexpr double kMaxTemperature = 1e6;
constexpr double kMaxPenalty = 1e6;
constexpr double kMinTimeout = 0.001;
constexpr double kMaxTimeout = 1e6;  // eleven days, which fits 64-bit nanoseconds

void store_overrides(Options& options, const OptionValue& value) {
  or_refuse([&] { model::check_overrides(value.text()); });
  options.model.overrides = value.text();
}

template <typename Field, typename Value>
void set(Options& options, Field SamplingParams::*field, Value value) {
  options.sampling.push_back(
      [field, value = Field(std::move(value))](SamplingParams& params) { params.*field = value; });
}

// Stores a number in a field of the sampling parameters.
template <typename Field>
StoreOption real(Field SamplingParams::*field, double min, double max) {
  return [=](Options& o, const OptionValue& v) { set(o, field, v.real(min, max)); };
}
template <typename Field>
StoreOption count(Field SamplingParams::*field, std::int32_t min,
                  std::int32_t max = std::numeric_limits<std::int32_t>::max()) {
  return [=](Options& o, const OptionValue& v) { set(o, field, v.as<std::int32_t>(min, max)); };
}

void store_max_tokens(Options& options, const OptionValue& value) {
  if (value.text() == "none") {
    set(options, &SamplingParams::max_tokens, std::nullopt);
  } else {
    set(options, &SamplingParams::max_tokens, value.as<std::int32_t>(1));
  }
}

void store_top_p(Options& options, const OptionValue& value) {
  const double top_p = value.real(0, 1);
  if (top_p == 0) refuse(value.name(), " 0: leaves no token; pass more than 0, or --temperature 0");
  set(options, &SamplingParams::top_p, top_p);
}

void store_repetition_penalty(Options& options, const OptionValue& value) {
  const double penalty = value.real(0, kMaxPenalty);
  if (penalty == 0) refuse(value.name(), " 0: is divided by; pass more than 0, 1 for none");
  set(options, &SamplingParams::repetition_penalty, penalty);
}

void store_quantization(Options& options, const OptionValue& value) {
  using Format = model::QuantizationChoice::Format;
  const auto named = [](Format format) { return std::pair(name_of(format), format); };
  options.model.quantization.format = value.one_of<Format>(
      "quantization", {named(Format::automatic), named(Format::none), named(Format::fp8),
                       named(Format::int8), named(Format::int4)});
}

void store_activation_quant(Options& options, const OptionValue& value) {
  options.model.quantization.weight_only =
      value.one_of<bool>("activation quantization", {{"auto", false}, {"off", true}});
}

}  // namespace

OptionRows join_rows(std::initializer_list<OptionRows> tables) {
  OptionRows all;
  for (const OptionRows& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

OptionRows in_group(const char* group, OptionRows rows) {
  for (OptionRow& row : rows) row.group = group;
  return rows;
}

OptionRow model_row() {
  return model_rows().front();
}

OptionRows model_rows() {
  using runtime::ModelOptions;
  const Into into(&Options::model);
  const OptionRows rows = {
      {"--model", "MODEL",
       "a folder with config.json and weights, a config.json, a .gguf file, or\n"
       "a name on the Hugging Face hub (ORG/NAME, ORG/NAME@REVISION,\n"
       "ORG/NAME:Q4_K_M), which is downloaded if the local cache lacks it",
       "SmolLM2-135M-Instruct, from the user's cache",
       into.path(&ModelOptions::path,
                 "a model's folder, its config.json, a .gguf file or a Hugging Face id")},
      {"--dtype", "auto|bfloat16|float16|float32",
       "the type of the weights and of the computation; auto: the model's own,\n"
       "bfloat16 where that is float32",
       "auto",
       into.one_of(&ModelOptions::dtype, "type",
                   {{"auto", std::nullopt},
                    {"bfloat16", DType::bf16},
                    {"float16", DType::f16},
                    {"half", DType::f16},
                    {"float32", DType::f32},
                    {"float", DType::f32}})},
      {"--quantization", "auto|none|fp8|int8|int4",
       "the weights of linear layers; auto: as the checkpoint has them, quantized\n"
       "or not; none: dequantized; fp8, int8 and int4: what is not quantized\n"
       "becomes so while it is loaded",
       "auto", store_quantization},
      {"--activation-quant", "auto|off",
       "auto: where weights are quantized, activations may be rounded to 8 bits,\n"
       "too, if that is faster (not with float32); off: weights alone are quantized",
       "auto", store_activation_quant},
      {"--expert-parallel", nullptr,
       "of a mixture of experts, ranks have whole experts, not a slice of each", nullptr,
       into.on(&ModelOptions::expert_parallel), "--enable-expert-parallel"},
      {"--load-format", "auto|dummy|safetensors|gguf",
       "where the weights come from; auto: whatever is there; dummy: random\n"
       "values, the same in every run, from a config alone",
       "auto",
       into.one_of(&ModelOptions::format, "format",
                   {{"auto", LoadFormat::automatic},
                    {"dummy", LoadFormat::dummy},
                    {"safetensors", LoadFormat::safetensors},
                    {"gguf", LoadFormat::gguf}})},
      {"--hf-overrides", "JSON",
       "an object whose keys replace those of config.json; objects in it are\n"
       "merged: '{\"rope_scaling\": {\"factor\": 2}}'",
       nullptr, store_overrides},
  };
  return in_group("Model", rows);
}

// Defaults of what a model's generation_config.json may set.
constexpr const char* kModelsOr0 = "the model's (--generation-config), otherwise 0";
constexpr const char* kModelsOr1 = "the model's (--generation-config), otherwise 1";

// Names and meanings are those of vLLM.
OptionRows sampling_rows() {
  const OptionRows rows = {
      {"--max-tokens", "N|none",
       "the longest answer, in tokens; none: as long as the context allows", "16",
       store_max_tokens},
      {"--min-tokens", "N", "how many tokens come before an answer may end", "0",
       count(&SamplingParams::min_tokens, 0)},
      {"--n", "N", "answers to each prompt", "1",
       count(&SamplingParams::n, 1, runtime::kMaxAnswers)},
      {"--temperature", "T", "0: always the most likely token", kModelsOr1,
       real(&SamplingParams::temperature, 0, kMaxTemperature)},
      {"--top-p", "P", "only the most likely tokens, as many as make up P together", kModelsOr1,
       store_top_p},
      {"--top-k", "K", "only the K most likely tokens; 0 or -1: all", kModelsOr0,
       count(&SamplingParams::top_k, -1)},
      {"--min-p", "P", "only tokens at least P times as likely as the most likely one", kModelsOr0,
       real(&SamplingParams::min_p, 0, 1)},
      {"--repetition-penalty", "F",
       "over 1: tokens of the prompt and the answer become less likely", kModelsOr1,
       store_repetition_penalty},
      {"--presence-penalty", "F", "subtracted from the logit of a token that the answer has", "0",
       real(&SamplingParams::presence_penalty, -2, 2)},
      {"--frequency-penalty", "F",
       "subtracted from the logit of a token for each time that the answer has it", "0",
       real(&SamplingParams::frequency_penalty, -2, 2)},
      {"--ignore-eos", nullptr, "continues after the model's end token", "off",
       [](Options& o, const OptionValue& v) { set(o, &SamplingParams::ignore_eos, v.on()); },
       "--no-ignore-eos"},
      {"--stop-token-ids", "ID,ID...", "tokens that end an answer, too", nullptr,
       [](Options& o, const OptionValue& v) { set(o, &SamplingParams::stop_token_ids, v.ids()); }},
      {"--logprobs", "N", "adds each token's log probability, and those of the N most likely",
       nullptr, count(&SamplingParams::logprobs, 0, runtime::kMaxLogprobs)},
      {"--prompt-logprobs", "N",
       "adds the log probability of each of the prompt's tokens, and those of the N\n"
       "most likely",
       nullptr, count(&SamplingParams::prompt_logprobs, 0, runtime::kMaxLogprobs)},
  };
  return in_group("Sampling (for requests that do not set it themselves)", rows);
}

OptionRow generation_config_row() {
  return {"--generation-config", "auto|none",
          "auto: the model's generation_config.json gives the defaults of\n"
          "temperature, top-k, top-p, min-p, repetition penalty and the longest\n"
          "answer; none: only the tokens that end an answer; vllm: same as none",
          "auto",
          Into(&Options::generate)
              .one_of(&GenerateOptions::generation_config, "source",
                      {{"auto", true}, {"none", false}, {"vllm", false}})};
}

// A chat generates one answer at a time, as text, with other defaults.
OptionRows chat_sampling_rows() {
  OptionRows rows = sampling_rows();
  std::erase_if(rows, [](const OptionRow& row) {
    const std::string_view name = row.name;
    return name == "--n" || name == "--logprobs" || name == "--prompt-logprobs";
  });
  for (OptionRow& row : rows) {
    const std::string_view name = row.name;
    if (name == "--max-tokens") row.fallback = "none";
    // What chat_sampling() does.
    if (name == "--temperature") row.fallback = "the model's settings; 0.8 if it has none";
    if (name == "--top-k") row.fallback = "the model's settings; 40 if it has none";
    if (name == "--top-p") row.fallback = "the model's settings; 0.95 if it has none";
    if (name == "--min-p") row.fallback = "the model's settings; 0.05 if it has none";
  }
  return rows;
}

OptionRows group_rows() {
  const Into into(&Options::group);
  const OptionRows rows = {
      {"--tp", "N", "how many ranks (worker processes): 1 to 8; on GPUs each has one",
       "every GPU (up to 8); 1 on the CPU", into.whole(&GroupOptions::ranks, 1, ipc::kMaxRanks),
       "--tensor-parallel-size"},
      {"--device", "auto|cpu|cuda", "where the ranks compute; auto: on GPUs where there are any",
       "auto",
       into.one_of(&GroupOptions::device, "kind of device",
                   {{"auto", std::nullopt}, {"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}})},
      {"--step-timeout", "SECONDS",
       "limit of every wait for a peer (fractions allowed); the run ends when\n"
       "a rank exceeds it, and the error names that rank",
       "60",
       [](Options& o, const OptionValue& v) {
         o.group.step_timeout = v.seconds(kMinTimeout, kMaxTimeout);
       }},
      {"--collectives", "auto|shm|peer|nccl|two-level",
       "how ranks reduce: shm on the CPU; peer or nccl on GPUs; two-level: peer\n"
       "memory within a box and NCCL between boxes, which have equally many\n"
       "ranks of a stage, two or more; auto: the first of peer, two-level and\n"
       "nccl that is possible; --pp with nccl hands over by it, too",
       "auto",
       into.one_of(&GroupOptions::collectives, "implementation",
                   {{"auto", "auto"},
                    {"shm", "shm"},
                    {"peer", "peer"},
                    {"nccl", "nccl"},
                    {"two-level", "two-level"}})},
      {"--log-level", "debug|info|warning|error|off",
       "which lines of the launcher and of the ranks are shown", "info",
       into.one_of(&GroupOptions::log_level, "level",
                   {{"debug", LogLevel::debug},
                    {"info", LogLevel::info},
                    {"warning", LogLevel::warning},
                    {"error", LogLevel::error},
                    {"off", LogLevel::off}})},
  };
  return in_group("Workers", rows);
}

OptionRow switch_row(const char* name, const char* help, bool Options::*field) {
  return {name, nullptr, help, nullptr,
          [field](Options& options, const OptionValue&) { options.*field = true; }};
}

OptionRow json_row(const char* help) {
  return switch_row("--json", help, &Options::json);
}

OptionRow memory_report_row() {
  return switch_row("--memory-report", "adds what memory every rank has taken, and for what",
                    &Options::memory_report);
}

OptionRow config_row() {
  return {.name = "--config",
          .value = "FILE",
          .help =
              "a file with options of this command, as YAML (tp: 2) or JSON\n"
              "({\"tp\": 2}); those of the command line win",
          .fallback = nullptr,
          // Handled before the others (store_config()).
          .store = [](Options&, const OptionValue&) {},
          .group = "Every command"};
}

}  // namespace nvllm::launcher
