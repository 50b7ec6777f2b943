// EngineSession: workers with an engine in them, from the first fork until all have been reaped.
//
//   EngineSession session({.model = {.path = "model"}, .ranks = 2});
//   session.client().submit(1, {.prompt = {1, 2, 3}});
//   ...
//   return session.finish();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "device/backend.h"
#include "runtime/engine_client.h"
#include "runtime/engine_options.h"
#include "runtime/model_options.h"

namespace nvllm::launcher {

struct SessionOptions {
  runtime::ModelOptions model;
  runtime::EngineOptions engine;
  std::optional<int> ranks;          // absent: every GPU, or one rank on the CPU
  std::optional<DeviceKind> device;  // absent: GPUs where there are any
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  bool load_progress = true;  // on standard error, where that is a terminal
};

// Used by one thread, the process's main thread, before there are others.
class EngineSession {
 public:
  // Opens the model, forks the workers and waits until the engine is open. Throws an Error, and nothing is
  // left, if any of it fails; exit_code_of_failure() of it is what the program should end with.
  explicit EngineSession(const SessionOptions& options);
  ~EngineSession();  // ends the workers, if finish() has not

  runtime::EngineClient& client();
  const runtime::EngineInfo& info() const;
  // EOS ids and sampling defaults as the checkpoint has them.
  const runtime::SamplingParams& sampling_defaults() const;

  // All answers to some requests, in their order. An Error if one was refused.
  struct Answer {
    std::vector<std::int32_t> tokens;
    std::vector<runtime::TokenLogprobs> logprobs;
    runtime::FinishReason finish = runtime::FinishReason::none;
  };
  std::vector<std::vector<Answer>> generate(const std::vector<runtime::Request>& requests);

  // Ends the workers in order, or, with an error, says who is to blame. Returns the program's exit code.
  int finish(const std::optional<std::string>& error = std::nullopt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
