#include "launcher/generate/run_record.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/system_files.h"
#include "launcher/hub/sha256.h"
#include "launcher/session/text_model.h"
#include "launcher/supervise/model_hash.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

std::string texts(const std::vector<std::string>& list) {
  return json_text(Json(list));
}

template <typename Value>
std::string text_of(const Value& value) {
  return json_text(Json(value));
}
template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? json_text(Json(*value)) : "none";
}

void add_sampling(const runtime::SamplingParams& params, RunRecord& record) {
  record["--n"] = text_of(params.n);
  record["--temperature"] = text_of(params.temperature);
  record["--top-p"] = text_of(params.top_p);
  record["--top-k"] = text_of(params.top_k);
  record["--min-p"] = text_of(params.min_p);
  record["--repetition-penalty"] = text_of(params.repetition_penalty);
  record["--presence-penalty"] = text_of(params.presence_penalty);
  record["--frequency-penalty"] = text_of(params.frequency_penalty);
  record["--max-tokens"] = text_of(params.max_tokens);
  record["--min-tokens"] = text_of(params.min_tokens);
  record["--ignore-eos"] = text_of(params.ignore_eos);
  record["--stop-token-ids"] = text_of(params.stop_token_ids);
  record["--logprobs"] = text_of(params.logprobs);
  record["--prompt-logprobs"] = text_of(params.prompt_logprobs);
}

std::string shown_value(const std::string& value) {
  constexpr std::size_t kMaxShown = 60;
  return value.size() <= kMaxShown ? value : value.substr(0, kMaxShown) + "...";
}

}  // namespace

RunRecord run_record(const Options& options, const runtime::OpenModel& model,
                     const runtime::SamplingParams& defaults) {
  RunRecord record;
  add_sampling(defaults, record);
  const runtime::EngineOptions& engine = options.engine;
  const ServeOptions& api = options.serve;
  record["--model"] = model_hash(model);
  record["--load-format"] = model.dummy ? "dummy" : "of weights";
  record["--dtype"] = name_of(model.dtype);
  record["--quantization"] = name_of(model.quantization.format);
  record["--activation-quant"] = model.quantization.weight_only ? "off" : "auto";
  record["--kv-cache-dtype"] =
      engine.kv_cache_dtype == runtime::KvCacheDtype::automatic ? "auto" : "fp8";
  record["--invariant"] = runtime::name_of(engine.invariance);
  record["--hf-overrides"] = options.model.overrides;
  record["--seed"] = text_of(engine.seed);
  record["--max-model-len"] = text_of(engine.max_model_len);
  record["--max-seq-len"] = text_of(engine.max_seq_len);
  record["--prefill-attention"] = text_of(static_cast<int>(engine.prefill_attention));
  record["--decode-attention"] = text_of(static_cast<int>(engine.decode_attention));
  record["--stop"] = texts(options.generate.stop);
  record["--chat-template"] = options.text.chat_template.empty()
                                  ? "none"
                                  : sha256_of(read_chat_template(options.text.chat_template));
  record["--special-tokens-in-messages"] = text_of(options.text.special_tokens_in_messages);
  record["--served-model-name"] = texts(api.served_model_names);
  record["--default-chat-template-kwargs"] = api.chat_template_kwargs;
  record["--reasoning-parser"] = api.reasoning_parser;
  record["--tool-call-parser"] = api.tool_call_parser;
  record["--enable-auto-tool-choice"] = text_of(api.auto_tool_choice);
  return record;
}

std::string run_record_path(const std::string& output) {
  return output + ".run";
}

void write_run_record(const std::string& output, const RunRecord& record) {
  const std::string path = run_record_path(output), unfinished = path + ".new";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << json_text(Json(record), 1) << '\n';
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) fail_errno("--output: ", path);
}

bool check_run_record(const std::string& output, const RunRecord& record) {
  const std::string path = run_record_path(output);
  if (!std::filesystem::exists(path)) return false;
  RunRecord earlier;
  try {
    earlier = parse_json(system_text(path)).get<RunRecord>();
  } catch (const Json::exception&) {
    fail("--resume: ", path, ": is no record of a run; remove it if it is known that ", output,
         " has the same model and options");
  }
  if (earlier["--model"] != record.at("--model")) {
    fail("--resume: ", output, " has answers of another model; pass that one, or another --output");
  }
  for (const auto& [name, value] : record) {
    const auto found = earlier.find(name);
    if (found == earlier.end() || found->second == value) continue;
    fail("--resume: ", output, " was started with another ", name, " (", shown_value(found->second),
         ", now ", shown_value(value), "); pass the same, or another --output");
  }
  return true;
}

}  // namespace nvllm::launcher
