#include "launcher/cli/suggestions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace nvllm::launcher {
namespace {

// Number of letters to insert, remove, replace, or swap with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // rows[i][j]: distance of the first i letters of a and the first j of b.
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      rows[i][j] = std::min(
          {rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

// "tp" of "--tp"
std::string_view without_dashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return name;
}

// Typing errors rarely affect the first letter, except by swapping it with the second.
bool begins_as(std::string_view word, std::string_view name) {
  return word[0] == name[0] ||
         (word.size() > 1 && name.size() > 1 && word[0] == name[1] && word[1] == name[0]);
}

using Names = std::pair<std::string_view, std::string_view>;

// A word of another program, the equivalent command here, and whether a model follows.
struct OtherCommand {
  std::string_view word, command;
  bool model_next = false;
};
constexpr OtherCommand kOtherCommands[] = {
    {"run", "chat", true},      {"show", "inspect", true}, {"info", "inspect", true},
    {"server", "serve", true},  {"start", "serve", true},  {"run-batch", "generate"},
    {"batch", "generate"},      {"collect-env", "doctor"}, {"env", "doctor"},
    {"version", "--version"},   {"benchmark", "bench"},    {"cli", "chat"},
    {"interactive", "chat"},    {"download", "pull"},      {"llama-cli", "chat"},
    {"llama-server", "serve"},  {"llama-bench", "bench"},  {"launch-server", "serve"},
    {"launch_server", "serve"}, {"api-server", "serve"},
};

constexpr std::string_view kNoBackground =
    "nothing of nvllm runs in the background; a server that runs says what it does at its "
    "addresses "
    "/load and /metrics, and Ctrl-C or SIGTERM ends it";
constexpr std::string_view kHubCache =
    "models lie in the Hugging Face hub's cache, ~/.cache/huggingface/hub, and belong to all "
    "programs that use it; nvllm-launch inspect --model MODEL shows one";
constexpr std::string_view kNoConversion =
    "checkpoints are read as they are, safetensors or GGUF; pass --model a folder, a .gguf file or "
    "the name of a model in the hub's cache";
constexpr std::string_view kHubToken = "the hub's token is read from HF_TOKEN";
constexpr std::string_view kEndChat = "ends a chat, and none is open";

constexpr Names kWordAnswers[] = {
    {"ps", kNoBackground},
    {"status", kNoBackground},
    {"stop", kNoBackground},
    {"kill", kNoBackground},
    {"list", kHubCache},
    {"ls", kHubCache},
    {"models", kHubCache},
    {"rm", kHubCache},
    {"delete", kHubCache},
    {"cp", kHubCache},
    {"push", kHubCache},
    {"create", kNoConversion},
    {"convert", kNoConversion},
    {"quantize", kNoConversion},
    {"login", kHubToken},
    {"signin", kHubToken},
    {"logout", kHubToken},
    {"signout", kHubToken},
    {"exit", kEndChat},
    {"quit", kEndChat},
    {"bye", kEndChat},
    {"complete", "continues a text: nvllm-launch generate --prompt TEXT"},
    {"embed", "there are no embeddings here; models generate text"},
    {"perplexity", "log probabilities of a text: nvllm-launch generate --prompt-logprobs 0"},
    {"test", "nvllm-launch selftest checks calls and collectives between the workers"},
    {"update", "nvllm is a program without an updater; install the new package over it"},
    {"upgrade", "nvllm is a program without an updater; install the new package over it"},
};

constexpr std::string_view kOneWayToSplit =
    "a model is split over GPUs by --tensor-parallel-size N and --pipeline-parallel-size N";
constexpr std::string_view kNoAdapters =
    "LoRA adapters are not supported; merge them into the model";
constexpr std::string_view kNoDrafts =
    "speculative decoding is not supported; leave it out, answers are the same without it";
constexpr std::string_view kNoRemoteCode =
    "no code of a model is ever run: its family is built in, or the model is refused; leave it out";
constexpr std::string_view kAllOnGpu =
    "the whole model is on the GPUs, and --device cpu puts it on the CPU; leave it out";
constexpr std::string_view kKvType = "pass --kv-cache-dtype fp8 for a KV cache in 8 bits";
constexpr std::string_view kAlwaysOn = "is always on; leave it out";
constexpr std::string_view kThreads =
    "the CPU's cores are divided among the ranks; use taskset to have it use fewer";
constexpr std::string_view kMapped =
    "weights are read at the disk's speed into the device's memory; leave it out";
constexpr std::string_view kOwnTokenizer =
    "the tokenizer is the one beside the model; put its files into the model's folder";
constexpr std::string_view kStructured = "structured output is not supported; leave it out";
constexpr std::string_view kNoPictures = "models that see pictures are not supported; leave it out";
constexpr std::string_view kGenerates = "models generate text, and nothing else; leave it out";
constexpr std::string_view kRope =
    "pass it as --hf-overrides '{\"rope_scaling\": {...}}', or leave it to the model";
constexpr std::string_view kOwnKernels =
    "nothing is compiled at run time; CUDA graphs are captured by themselves, --enforce-eager "
    "turns "
    "them off";
constexpr std::string_view kThoughts =
    "reasoning is dimmed, not hidden; serve has --default-chat-template-kwargs "
    "'{\"enable_thinking\": "
    "false}'";
constexpr std::string_view kStepTokens = "pass --max-num-batched-tokens N";

constexpr Names kOptionAnswers[] = {
    // vLLM
    {"--load-in-4bit", "pass --quantization int4"},
    {"--load-in-8bit", "pass --quantization int8"},
    {"--trust-remote-code", kNoRemoteCode},
    {"--data-parallel-size", "start one server per copy, each with its own --port and GPUs"},
    {"-dp", "start one server per copy, each with its own --port and GPUs"},
    {"--distributed-executor-backend",
     "workers are processes; leave it out, or start nvllm-launch with mpirun or srun on several "
     "machines"},
    {"--enable-lora", kNoAdapters},
    {"--lora-modules", kNoAdapters},
    {"--max-loras", kNoAdapters},
    {"--max-lora-rank", kNoAdapters},
    {"--speculative-config", kNoDrafts},
    {"--speculative-model", kNoDrafts},
    {"--num-speculative-tokens", kNoDrafts},
    {"--enable-chunked-prefill", kAlwaysOn},
    {"--enable-auto-prefix-caching", "pass --enable-prefix-caching, or --no-enable-prefix-caching"},
    {"--max-seq-len-to-capture", "CUDA graphs are captured for every length; leave it out"},
    {"--num-scheduler-steps", "pass --async-scheduling, which is on by itself"},
    {"--max-logprobs", "pass --logprobs N with a request"},
    {"--cpu-offload-gb", "weights stay on the GPUs; --kv-offload moves keys and values"},
    {"--guided-decoding-backend", kStructured},
    {"--tokenizer", kOwnTokenizer},
    {"--tokenizer-mode", kOwnTokenizer},
    {"--skip-tokenizer-init", "requests of token ids need no tokenizer; leave it out"},
    {"--revision", "pass --model NAME@REVISION"},
    {"--download-dir", "set HF_HOME or HF_HUB_CACHE to where models shall lie"},
    {"--disable-log-stats", "counts stand at /metrics; --log-level warning prints less"},
    {"--disable-custom-all-reduce", "pass --collectives nccl"},
    {"--num-gpu-blocks-override", "pass --kv-cache-memory-bytes BYTES"},
    {"--uvicorn-log-level", "pass --log-level LEVEL"},
    {"--compilation-config", kOwnKernels},
    {"-O", kOwnKernels},
    {"-O3", kOwnKernels},
    {"--limit-mm-per-prompt", kNoPictures},
    {"--task", kGenerates},
    {"--runner", kGenerates},
    {"--hf-token", kHubToken},
    {"--rope-scaling", kRope},
    {"--rope-theta", kRope},
    {"--kv-transfer-config",
     "keys and values stay on this machine; --kv-offload moves them to its "
     "memory"},
    {"--disable-sliding-window", "layers with a sliding window keep it; leave it out"},
    {"--nnodes", "start nvllm-launch on all machines with mpirun or srun"},
    {"--data-parallel-rank", "start one server per copy, each with its own --port and GPUs"},
    {"--calculate-kv-scales",
     "scales of --kv-cache-dtype fp8 are those of the checkpoint, or 1; leave it out"},
    // SGLang
    {"--model-path", "pass --model MODEL"},
    {"--tp-size", "pass --tp N"},
    {"--context-length", "pass --max-model-len N"},
    {"--mem-fraction-static", "pass --gpu-memory-utilization FRACTION"},
    {"--max-running-requests", "pass --max-num-seqs N"},
    {"--chunked-prefill-size", kStepTokens},
    {"--random-seed", "pass --seed N"},
    {"--disable-cuda-graph", "pass --enforce-eager"},
    {"--disable-radix-cache", "pass --no-enable-prefix-caching"},
    {"--schedule-policy", "requests run in the order in which they come; leave it out"},
    {"--max-total-tokens", "pass --kv-cache-memory-bytes BYTES"},
    {"--max-prefill-tokens", kStepTokens},
    {"--enable-torch-compile", kOwnKernels},
    {"--cuda-graph-max-bs", "CUDA graphs are captured up to --max-num-seqs; leave it out"},
    {"--is-embedding", kGenerates},
    {"--enable-dp-attention", kOneWayToSplit},
    {"--dp", "start one server per copy, each with its own --port and GPUs"},
    {"--dp-size", "start one server per copy, each with its own --port and GPUs"},
    {"--grammar-backend", kStructured},
    {"--enable-metrics", "metrics are at /metrics by themselves; leave it out"},
    {"--attention-backend", "kernels are chosen by the GPU and the lengths; leave it out"},
    // llama.cpp and ollama
    {"--temp", "pass --temperature T"},
    {"--ctx-size", "pass --max-model-len N, or -c N"},
    {"--num-ctx", "pass --max-model-len N, or -c N"},
    {"--n-predict", "pass --max-tokens N, or -n N"},
    {"--predict", "pass --max-tokens N, or -n N"},
    {"--num-predict", "pass --max-tokens N, or -n N"},
    {"--repeat-penalty", "pass --repetition-penalty F"},
    {"--gpu-layers", kAllOnGpu},
    {"--n-gpu-layers", kAllOnGpu},
    {"-ngl", kAllOnGpu},
    {"--num-gpu", kAllOnGpu},
    {"--tensor-split", kOneWayToSplit},
    {"--split-mode", kOneWayToSplit},
    {"--main-gpu", "set CUDA_VISIBLE_DEVICES to the GPUs that it may use"},
    {"--threads", kThreads},
    {"-t",
     "as --threads: the CPU's cores are divided among the ranks; as --temperature: write it out"},
    {"--flash-attn", kAlwaysOn},
    {"-fa", kAlwaysOn},
    {"--cont-batching", kAlwaysOn},
    {"-cb", kAlwaysOn},
    {"--cache-type-k", kKvType},
    {"--cache-type-v", kKvType},
    {"--batch-size", kStepTokens},
    {"--ubatch-size", kStepTokens},
    {"-b", kStepTokens},
    {"-ub", kStepTokens},
    {"--parallel", "pass --max-num-seqs N"},
    {"-np", "pass --max-num-seqs N"},
    {"--mlock", kMapped},
    {"--no-mmap", kMapped},
    {"--file", "pass the text on standard input: nvllm-launch - <FILE"},
    {"-f", "pass the text on standard input: nvllm-launch - <FILE"},
    {"--hf-repo", "pass --model ORGANISATION/NAME, or ORGANISATION/NAME:Q4_K_M for a GGUF of it"},
    {"-hf", "pass --model ORGANISATION/NAME, or ORGANISATION/NAME:Q4_K_M for a GGUF of it"},
    {"--lora", kNoAdapters},
    {"--grammar", kStructured},
    {"--json-schema", kStructured},
    {"--rope-freq-base", kRope},
    {"--rope-freq-scale", kRope},
    {"--jinja", "chat templates are Jinja by themselves; leave it out"},
    {"--color", "colours are for terminals by themselves; NO_COLOR=1 turns them off"},
    {"--embedding", kGenerates},
    {"--embeddings", kGenerates},
    {"--metrics", "metrics are at /metrics by themselves; leave it out"},
    {"--slots", "what runs is counted at /metrics and /load; leave it out"},
    {"--alias", "pass --served-model-name NAME"},
    {"-a", "pass --served-model-name NAME"},
    {"--timeout", "pass --request-timeout SECONDS"},
    {"--ssl-key-file", "pass --ssl-keyfile FILE"},
    {"--ssl-cert-file", "pass --ssl-certfile FILE"},
    {"--model-draft", kNoDrafts},
    {"-md", kNoDrafts},
    {"-no-cnv", "nvllm-launch generate --prompt TEXT continues a text without a conversation"},
    {"--no-conversation",
     "nvllm-launch generate --prompt TEXT continues a text without a conversation"},
    {"--reverse-prompt", "pass --stop TEXT"},
    {"-r", "pass --stop TEXT"},
    {"-sys", "pass --system TEXT"},
    {"--single-turn", "a prompt on the command line is answered, and the program ends"},
    {"-st", "a prompt on the command line is answered, and the program ends"},
    {"--keep", "the system message is kept, and the oldest questions are forgotten; leave it out"},
    {"--numa", kThreads},
    {"--override-kv", "pass --hf-overrides '{\"KEY\": VALUE}'"},
    {"--mmproj", kNoPictures},
    {"--image", kNoPictures},
    {"--format", kStructured},
    {"--nowordwrap", "words are wrapped on terminals alone; leave it out"},
    {"--think", kThoughts},
    {"--hidethinking", kThoughts},
    {"--insecure", "pass HF_ENDPOINT=http://... in the environment for a hub without TLS"},
    {"--mirostat", "is no way of sampling here; pass --temperature, --top-p, --top-k or --min-p"},
    {"--conversation", "chat is a conversation by itself; leave it out"},
    {"-cnv", "chat is a conversation by itself; leave it out"},
    {"--verbose", "pass --log-level debug"},
    {"-v", "pass --log-level debug to see more, or --version"},
    {"--quiet", "pass --log-level error"},
    {"--keepalive", "a server stays until it is told to end; leave it out"},
};

// Options of `vllm bench serve`.
constexpr std::string_view kBaseUrl = "pass --base-url http://HOST:PORT";
constexpr Names kBenchServeAnswers[] = {
    {"--host", kBaseUrl},
    {"--port", kBaseUrl},
    {"--backend", "servers with the API of OpenAI are measured; leave it out"},
    {"--endpoint-type", "servers with the API of OpenAI are measured; leave it out"},
    {"--dataset-name", "prompts are random, as of vLLM's dataset random; leave it out"},
    {"--random-input-len", "pass --input-len N, or A:B"},
    {"--random-output-len", "pass --output-len N, or A:B"},
    {"--random-range-ratio", "pass --input-len A:B and --output-len A:B"},
    {"--seed", "pass --dataset-seed N"},
    {"--num-warmups", "pass --warmup N"},
    {"--save-result", "pass --json, and redirect standard output to a file"},
};

constexpr Names kShortNames[] = {
    {"-m", "--model"},        {"-c", "--max-model-len"}, {"-n", "--max-tokens"}, {"-p", "--prompt"},
    {"-i", "--input"},        {"-o", "--output"},        {"-s", "--seed"},       {"-tp", "--tp"},
    {"-q", "--quantization"}, {"-pp", "--pp"},
};

template <std::size_t count>
std::string_view second_of(const Names (&names)[count], std::string_view first) {
  const auto found = std::find_if(std::begin(names), std::end(names),
                                  [&](const Names& pair) { return pair.first == first; });
  return found == std::end(names) ? std::string_view() : found->second;
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  // At most a third of the letters may be wrong, and at least one must be right.
  const std::string_view letters = without_dashes(word);
  const std::size_t max_distance = std::max<std::size_t>(1, letters.size() / 3);
  std::string best;
  std::size_t best_distance = std::min(max_distance + 1, letters.size());
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(letters, without_dashes(candidate));
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::string mistyped_name(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kLongName = 6;
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  if (word.empty() || !std::all_of(word.begin(), word.end(), small)) return "";
  std::string best;
  std::size_t best_distance = 3;
  for (const std::string& name : names) {
    const std::size_t max = name.size() >= kLongName ? 2 : 1;
    const std::size_t distance = edit_distance(word, name);
    if (!begins_as(word, name) || distance > max || distance >= best_distance) continue;
    best_distance = distance, best = name;
  }
  return best;
}

std::vector<std::string> translate_other_tools(std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  for (const OtherCommand& other : kOtherCommands) {
    if (arguments[0] != other.word) continue;
    arguments[0] = other.command;
    if (!other.model_next || arguments.size() < 2 || arguments[1].starts_with('-')) break;
    arguments.insert(arguments.begin() + 1, "--model");
    break;
  }
  return arguments;
}

std::string_view hint_for_command(std::string_view word) {
  return second_of(kWordAnswers, word);
}

std::string_view hint_for_option(std::string_view name, std::string_view command) {
  if (command == "bench serve") {
    const std::string_view answer = second_of(kBenchServeAnswers, name);
    if (!answer.empty()) return answer;
  }
  return second_of(kOptionAnswers, name);
}

std::string completed_name(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kMinLetters = 3;
  if (without_dashes(word).size() < kMinLetters) return "";
  std::string found;
  for (const std::string& candidate : candidates) {
    if (!candidate.starts_with(word)) continue;
    if (!found.empty()) return "";
    found = candidate;
  }
  return found;
}

std::string_view long_name(std::string_view short_name) {
  return second_of(kShortNames, short_name);
}

std::string_view short_name(std::string_view long_name) {
  for (const auto& [short_form, long_form] : kShortNames) {
    if (long_form == long_name) return short_form;
  }
  return {};
}

}  // namespace nvllm::launcher
