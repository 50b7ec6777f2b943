// nvllm as a C++ library: large language models on the GPUs of this machine, or on its CPU.
//
//   nvllm::Session session({.model = "Qwen/Qwen3-0.6B"});
//   const auto answers = session.generate({{.prompt = session.encode("Once upon a time")}});
//   std::puts(session.decode(answers[0][0].tokens).c_str());
//
// A session runs worker processes, which it forks from the calling process when it is made: by then
// the process may have neither other threads nor a CUDA context. It belongs to the thread that made
// it. Needs C++17; the example has C++20's way of naming fields. docs/cpp.md says more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nvllm {

// What is wrong, in one line that names the thing, its value and the fix.
class SessionError : public std::runtime_error {
 public:
  explicit SessionError(const std::string& message, int exit_code = 1);
  ~SessionError() override;
  // What nvllm-launch would end with: 2 for options that cannot be, 3 if a worker died, ...
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct Options {
  std::string model;             // a folder, a .gguf file, or a name on the Hugging Face hub
  int tensor_parallel_size = 0;  // over how many GPUs, or processes on the CPU; 0: all GPUs, or one
  std::int64_t max_model_len = 0;  // the longest sequence, prompt and answer; 0: what fits
  std::string dtype = "auto";      // "bfloat16", "float16", "float32"
  // Any other option of `nvllm-launch generate` about the model, the engine or the workers:
  // {"--device=cpu", "--kv-offload=auto"}. Others, as --temperature or --output, are refused.
  std::vector<std::string> arguments = {};
  bool show_progress = false;  // of loading, on standard error
};

// Names, meanings and defaults as in vLLM's SamplingParams.
struct SamplingParams {
  std::int32_t n = 1;        // answers to the same prompt
  double temperature = 1.0;  // 0: always the most likely token
  double top_p = 1.0;
  std::int32_t top_k = 0;  // 0 or -1: all
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed = std::nullopt;
  std::optional<std::int32_t> max_tokens = 16;  // absent: as many as there is room for
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids = {};
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::vector<std::int32_t> allowed_token_ids = {};       // empty: all
  std::vector<std::vector<std::int32_t>> bad_words = {};  // as token ids
  std::optional<std::int32_t> logprobs = std::nullopt;    // alternatives beside the chosen token
};

struct Request {
  std::vector<std::int32_t> prompt = {};  // token ids
  SamplingParams sampling = {};
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;  // 1: the most likely
};
struct TokenLogprobs {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};  // the most likely first
};

enum class FinishReason { none, stop, length, abort };

struct Answer {
  std::vector<std::int32_t> tokens = {};  // with the one that ended it
  std::vector<TokenLogprobs> logprobs = {};
  FinishReason finish = FinishReason::none;
};

// What is new of one answer to a request that was submitted.
struct Update {
  std::uint64_t request = 0;
  std::int32_t index = 0;  // of the answer, below n
  std::vector<std::int32_t> tokens = {};
  std::vector<TokenLogprobs> logprobs = {};
  FinishReason finish = FinishReason::none;  // not none: it is the answer's last one
  std::string error = "";                    // why the request was refused; its only update
};

class Session {
 public:
  // Opens the model, starts the workers and waits until they are ready. Throws a SessionError; no
  // worker is left then.
  explicit Session(const Options& options);
  ~Session();  // ends the workers, if finish() has not
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;

  // Answers all requests, in their order; n answers to each. Throws a SessionError if one is
  // refused, a worker fails, or something that was submitted is unfinished.
  std::vector<std::vector<Answer>> generate(const std::vector<Request>& requests);

  // The same piece by piece: each request under a number that no unfinished one has. What is wrong
  // with a request comes back as an update with an error.
  void submit(std::uint64_t id, const Request& request);
  void abort(std::uint64_t id);
  // Waits at most so long for updates; not at all if that is 0 or less.
  std::vector<Update> poll(double seconds);
  std::size_t unfinished() const;

  // The model's tokenizer; SessionErrors if it has none. encode(): with the tokens that the model
  // wants before a text. decode(): without special tokens.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& tokens) const;
  // The defaults of the model's generation_config.json.
  SamplingParams default_sampling() const;
  std::int64_t max_model_len() const;

  // Ends the workers. Returns 0, or what a program should end with if one of them failed; the
  // reason is on standard error then. A second call returns the same; other calls that need the
  // workers throw a SessionError from then on.
  int finish();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace nvllm
