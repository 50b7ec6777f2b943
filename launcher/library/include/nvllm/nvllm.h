// nvllm as a C++ library: large language models on the GPUs of this machine, or on its CPU.
//
//   nvllm::Session session({.model = "Qwen/Qwen3-0.6B"});
//   const auto answers = session.generate({{.prompt = session.encode("Once upon a time")}});
//   std::puts(session.decode(answers[0][0].tokens).c_str());
//
// A session runs worker processes, which its constructor forks from the calling process: at that
// time the process must not have other threads or a CUDA context. A session must be used by the
// thread that created it. Requires C++17; the example uses C++20's designated initializers. See
// docs/cpp.md.
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

// One line that names the problem, its value and the fix.
class SessionError : public std::runtime_error {
 public:
  explicit SessionError(const std::string& message, int exit_code = 1);
  ~SessionError() override;
  // The exit code of nvllm-launch in this case: 2 for invalid options, 3 if a worker died, ...
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct Options {
  std::string model;             // a folder, a .gguf file, or a name on the Hugging Face hub
  int tensor_parallel_size = 0;  // number of GPUs, or of processes on the CPU; 0: all GPUs, or one
                                 // process
  std::int64_t max_model_len = 0;  // maximum tokens of a sequence, prompt included; 0: what fits
  std::string dtype = "auto";      // "bfloat16", "float16", "float32"
  // Any other option of `nvllm-launch generate` about the model, the engine or the workers:
  // {"--device=cpu", "--kv-offload=auto"}. Other options, such as --temperature or --output, are
  // rejected.
  std::vector<std::string> arguments = {};
  bool show_progress = false;  // of loading; on standard error
};

// Names, meanings and defaults are those of vLLM's SamplingParams.
struct SamplingParams {
  std::int32_t n = 1;        // number of answers to the prompt
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  std::int32_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed = std::nullopt;
  std::optional<std::int32_t> max_tokens = 16;  // absent: up to the maximum length
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids = {};
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::vector<std::int32_t> allowed_token_ids = {};       // empty: all
  std::vector<std::vector<std::int32_t>> bad_words = {};  // as token ids
  std::optional<std::int32_t> logprobs = std::nullopt;    // number of alternatives reported beside
                                                          // the sampled token
};

struct Request {
  std::vector<std::int32_t> prompt = {};  // token ids
  SamplingParams sampling = {};
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;  // 1: the most likely token
};
struct TokenLogprobs {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};  // most likely first
};

enum class FinishReason { none, stop, length, abort };

struct Answer {
  std::vector<std::int32_t> tokens = {};  // including the one that ended it
  std::vector<TokenLogprobs> logprobs = {};
  FinishReason finish = FinishReason::none;
};

// New output of one answer to a submitted request.
struct Update {
  std::uint64_t request = 0;
  std::int32_t index = 0;  // of the answer, less than n
  std::vector<std::int32_t> tokens = {};
  std::vector<TokenLogprobs> logprobs = {};
  FinishReason finish = FinishReason::none;  // if not none, this is the answer's last update
  std::string error = "";                    // why the request was rejected; its only update
};

class Session {
 public:
  // Opens the model, starts the workers and waits until they are ready. Throws a SessionError; no
  // worker remains then.
  explicit Session(const Options& options);
  ~Session();  // stops the workers, unless finish() has
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;

  // Answers all requests, in order, with n answers each. Throws a SessionError if one is rejected,
  // if a worker fails, or if a submitted request is unfinished.
  std::vector<std::vector<Answer>> generate(const std::vector<Request>& requests);

  // Asynchronous interface: submits a request under an id that no unfinished request has. An
  // invalid request is reported by an update with an error.
  void submit(std::uint64_t id, const Request& request);
  void abort(std::uint64_t id);
  // Waits for updates up to this time; does not wait if it is 0 or less.
  std::vector<Update> poll(double seconds);
  std::size_t unfinished() const;

  // The model's tokenizer; throws a SessionError if it has none. encode(): adds the tokens that the
  // model expects before a text. decode(): omits special tokens.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& tokens) const;
  // The defaults of the model's generation_config.json.
  SamplingParams default_sampling() const;
  std::int64_t max_model_len() const;

  // Stops the workers. Returns 0, or the exit code for the program if one of them failed; the
  // reason is then on standard error. Further calls return the same; other calls that need the
  // workers throw a SessionError from then on.
  int finish();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace nvllm
