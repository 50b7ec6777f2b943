// Command lines that users type: ours, and those of vLLM, SGLang, llama.cpp and ollama with
// nvllm-launch as the program's name. Each is executed, or rejected with a helpful reason.
#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using testing::has;

struct Line {
  const char* words;   // separated by spaces; a quoted word may contain spaces
  const char* result;  // the command that it runs ("chat"), or "!" and a part of the refusal;
                       // "=": text is printed
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  bool quoted = false, any = false;
  std::string word;
  for (const char c : line + " ") {
    if (c == '\'') {
      quoted = !quoted;
      any = true;
    } else if (c == ' ' && !quoted) {
      if (any || !word.empty()) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word += c;
    }
  }
  return words;
}

std::string outcome(const std::string& line) {
  try {
    const Options options = parse_command_line(split(line));
    return options.message.empty() ? options.command : "=";
  } catch (const UsageError& error) {
    return std::string("!") + error.what();
  }
}

constexpr Line kOurs[] = {
    {"", "chat"},
    {"'Why is the sky blue?'", "chat"},
    {"chat --model DIR --tp 2", "chat"},
    {"chat -m DIR --history off --stop ###", "chat"},
    {"'Why?' --max-tokens 100 --seed 3", "chat"},
    {"-m x.gguf -p 'I believe' -n 64", "chat"},
    {"- --temperature 0", "chat"},
    {"-- ps", "chat"},
    {"hello", "!As a prompt: nvllm-launch -- hello"},
    {"chta", "!did you mean 'chat'?"},
    {"generate --prompt 'Once upon'", "generate"},
    {"generate -i in.jsonl -o out.jsonl --resume", "generate"},
    {"generate", "!generate needs a prompt"},
    {"generate --max_tokens 5 --prompt a", "generate"},
    {"generate --prompt a --config", "!--config needs a value"},
    {"serve", "serve"},
    {"serve --port 9000 --host 0.0.0.0", "serve"},
    {"serve --port nine", "!--port 'nine': not a whole number"},
    {"pull Qwen/Qwen3-0.6B", "pull"},
    {"pull", "!pull needs a model"},
    {"inspect DIR --tp 2 --load", "inspect"},
    {"tokenize 'Hello world'", "tokenize"},
    {"doctor --json", "doctor"},
    {"selftest --tp 2", "selftest"},
    {"completion bash", "completion"},
    {"completion tcsh", "!pass bash, zsh or fish"},
    {"bench", "!bench: pass latency, long, serve, startup or throughput after it"},
    {"--help", "="},
    {"help bench latency", "="},
    {"--version", "="},
    {"chat --verison", "!unknown option '--verison'"},
    {"--tp 0", "!--tp 0: out of range"},
};

constexpr Line kVllm[] = {
    {"serve Qwen/Qwen3-8B", "serve"},
    {"serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768", "serve"},
    {"serve Qwen/Qwen3-8B -tp 2 --gpu-memory-utilization 0.85 --dtype half", "serve"},
    {"serve m --dtype float --enforce-eager --max-num-seqs 64", "serve"},
    {"serve m --max-model-len 32k --max-num-batched-tokens 8192", "serve"},
    {"serve m --served-model-name gpt --api-key k --root-path /v", "serve"},
    {"serve m --served-model-name a b c", "serve"},
    {"serve --served-model-name a m b", "!'b': the model is m already; pass it before"},
    {"serve --served-model-name a b --model m", "serve"},
    {"generate --served-model-name a b --prompt c", "generate"},
    {"serve m --enable-auto-tool-choice --tool-call-parser hermes", "serve"},
    {"serve m --reasoning-parser qwen3 --uds /tmp/s", "serve"},
    {"serve m --swap-space 8 --block-size 32 --seed 1", "serve"},
    {"serve m --no-enable-prefix-caching --async-scheduling", "serve"},
    {"serve m --trust-remote-code", "serve"},
    {"serve m --enable-log-requests --generation-config auto", "serve"},
    {"serve m --ssl-keyfile k --ssl-certfile c", "serve"},
    {"serve m --hf-overrides '{}' --chat-template t.jinja", "serve"},
    {"serve m --disable-log-requests", "serve"},
    {"serve m --quantization fp8", "serve"},
    {"serve m --load-in-4bit", "!pass --quantization int4"},
    {"serve m --kv-cache-dtype fp8", "serve"},
    {"serve m --kv-cache-dtype fp8_e5m2", "!no such type of the KV cache"},
    {"serve m --pipeline-parallel-size 2", "serve"},
    {"generate -m m -p a -pp 2 -tp 2", "generate"},
    {"serve m --data-parallel-size 2", "!one server per copy"},
    {"serve m --enable-expert-parallel --generation-config vllm", "serve"},
    {"serve m --tp 2 --expert-parallel", "serve"},
    {"serve m --enable-lora", "!merge them into the model"},
    {"serve m --speculative-config '{}'", "!speculative decoding is not supported"},
    {"serve m --tokenizer t", "!the one beside the model"},
    {"serve m --download-dir d", "!HF_HOME"},
    {"serve m --revision main", "!NAME@REVISION"},
    {"serve m --compilation-config 3", "!nothing is compiled at run time"},
    {"serve m -O3", "!nothing is compiled at run time"},
    {"serve m --limit-mm-per-prompt image=1", "!pictures are not supported"},
    {"serve m --task embed", "!generate text"},
    {"serve m --rope-scaling '{}'", "!--hf-overrides"},
    {"serve m --enable-chunked-prefill", "!always on"},
    {"serve m --cpu-offload-gb 4", "!--kv-offload"},
    {"serve m --num-gpu-blocks-override 100", "!--kv-cache-memory-bytes"},
    {"run-batch -i in.jsonl -o out.jsonl --model m", "generate"},
    {"collect-env", "doctor"},
    {"complete", "!nvllm-launch generate --prompt TEXT"},
    {"bench throughput --model m --input-len 128 --output-len 128 --num-prompts 10",
     "bench throughput"},
    {"bench latency --model m --batch-size 8", "bench latency"},
    {"bench serve --model m --base-url http://h:8000 --request-rate 4", "bench serve"},
    {"bench startup --model m", "bench startup"},
};

constexpr Line kSglang[] = {
    {"launch_server --model m --tp 2 --port 30000", "serve"},
    {"launch_server --model-path m", "!pass --model MODEL"},
    {"serve m --tp-size 2", "!pass --tp N"},
    {"serve m --dp 2", "!one server per copy"},
    {"serve m --context-length 8192", "!--max-model-len N"},
    {"serve m --mem-fraction-static 0.8", "!--gpu-memory-utilization"},
    {"serve m --chunked-prefill-size 4096", "!--max-num-batched-tokens N"},
    {"serve m --max-running-requests 32", "!--max-num-seqs N"},
    {"serve m --schedule-policy lpm", "!in the order in which they come"},
    {"serve m --disable-radix-cache", "!--no-enable-prefix-caching"},
    {"serve m --disable-cuda-graph", "!--enforce-eager"},
    {"serve m --attention-backend fa3", "!chosen by the GPU"},
    {"serve m --grammar-backend xgrammar", "!structured output is not supported"},
    {"serve m --enable-torch-compile", "!nothing is compiled at run time"},
    {"serve m --is-embedding", "!generate text"},
    {"serve m --enable-metrics", "!at /metrics by themselves"},
    {"serve m --random-seed 4", "!pass --seed N"},
};

constexpr Line kLlamaCpp[] = {
    {"llama-cli -m x.gguf", "chat"},
    {"llama-cli -m x.gguf -p 'Why?' -n 128 -c 4096 -s 1", "chat"},
    {"-m x.gguf -p a --top-k 40 --top-p 0.9 --min-p 0.1", "chat"},
    {"-m x.gguf --ignore-eos -n 20 -p a", "chat"},
    {"-m x.gguf -cnv", "!a conversation by itself"},
    {"-m x.gguf -no-cnv -p a", "!generate --prompt TEXT"},
    {"-m x.gguf -sys 'be brief'", "!--system TEXT"},
    {"-m x.gguf --temp 0.2", "!--temperature T"},
    {"-m x.gguf -ngl 99", "!the whole model is on the GPUs"},
    {"-m x.gguf -t 8", "!divided among the ranks"},
    {"-m x.gguf --repeat-penalty 1.1", "!--repetition-penalty"},
    {"-m x.gguf -f prompt.txt", "!nvllm-launch - <FILE"},
    {"-m x.gguf -r User:", "!--stop TEXT"},
    {"-m x.gguf --color", "!NO_COLOR"},
    {"-m x.gguf --jinja", "!Jinja by themselves"},
    {"-m x.gguf --mlock", "!leave it out"},
    {"-m x.gguf -fa on", "!always on"},
    {"-m x.gguf --rope-freq-base 1e6", "!--hf-overrides"},
    {"-m x.gguf --grammar-file g", "!unknown option '--grammar-file'"},
    {"-hf org/name", "!ORGANISATION/NAME"},
    {"llama-server -m x.gguf --port 8080 --host h --api-key k", "serve"},
    {"llama-server -m x.gguf -np 4", "!--max-num-seqs N"},
    {"llama-server -m x.gguf -a name", "!--served-model-name"},
    {"llama-server -m x.gguf --embedding", "!generate text"},
    {"llama-server -m x.gguf --metrics", "!at /metrics"},
    {"llama-server -m x.gguf -md d.gguf", "!speculative decoding"},
    {"llama-server -m x.gguf --ssl-key-file k", "!--ssl-keyfile"},
    {"llama-bench -m x.gguf -p 512 -n 128",
     "!bench: pass latency, long, serve, startup or throughput after it"},
    {"quantize in.gguf out.gguf q4_0", "!checkpoints are read as they are"},
};

constexpr Line kOllama[] = {
    {"run Qwen/Qwen3-0.6B", "chat"},
    {"run Qwen/Qwen3-0.6B 'Why?'", "chat"},
    {"run m --verbose", "!--log-level debug"},
    {"run m --format json", "!structured output"},
    {"run m --keepalive 5m", "!a server stays"},
    {"run m --nowordwrap", "!on terminals alone"},
    {"run m --hidethinking", "!reasoning is dimmed"},
    {"show m", "inspect"},
    {"list", "!the Hugging Face hub's cache"},
    {"ls", "!the Hugging Face hub's cache"},
    {"ps", "!runs in the background"},
    {"stop m", "!runs in the background"},
    {"rm m", "!belong to all programs"},
    {"cp a b", "!belong to all programs"},
    {"push m", "!belong to all programs"},
    {"create m", "!checkpoints are read as they are"},
    {"start", "serve"},
    {"signin", "!HF_TOKEN"},
    {"help run", "="},
    {"-v", "!or --version"},
    {"version", "="},
};

template <std::size_t count>
std::size_t check(const Line (&lines)[count]) {
  for (const Line& line : lines) {
    const std::string got = outcome(line.words);
    const std::string wanted = line.result;
    const bool refused = wanted.starts_with('!');
    const bool right = refused ? got.starts_with('!') && has(got, wanted.substr(1)) : got == wanted;
    CHECK_MESSAGE(right, std::string(line.words), " -> ", got);
    CHECK_MESSAGE(got.size() <= 300, got);
  }
  return count;
}

TEST_CASE("each of 121 command lines is followed, or refused with a reason that helps") {
  CHECK(check(kOurs) + check(kVllm) + check(kSglang) + check(kLlamaCpp) + check(kOllama) >= 120);
}

TEST_CASE("what is followed means what it says") {
  const auto parse = [](const char* line) { return parse_command_line(split(line)); };
  CHECK(parse("-m x.gguf -p 'I believe' -n 64").chat.prompt == "I believe");
  CHECK(parse("-m x.gguf -p a -c 4096").engine.max_model_len == 4096);
  CHECK(parse("llama-server -m x.gguf --port 81").serve.port == 81);
  CHECK(parse("chat --stop a --stop b").chat.stop == std::vector<std::string>{"a", "b"});
  CHECK(parse("chat --history off").chat.history == "");
  CHECK(parse("chat").chat.history == std::nullopt);
  using Names = std::vector<std::string>;
  const auto names = [&](const char* line) { return parse(line).serve.served_model_names; };
  CHECK(names("serve m --served-model-name a b --port 81 --served-model-name=c d,e") ==
        Names{"a", "b", "c", "d,e"});
  CHECK(names("serve --served-model-name a b --model m") == Names{"a", "b"});
  CHECK(names("serve --served-model-name a m") == Names{"a"});
  CHECK(parse("serve --served-model-name a m").model.path == "m");
  CHECK(parse("run org/name 'Why?'").chat.prompt == "Why?");
  CHECK(outcome("-p a b") == "!'b': is a second prompt; put one with spaces in quotes");
}

}  // namespace
}  // namespace nvllm::launcher
