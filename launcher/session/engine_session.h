// EngineSession: workers with an engine in them, from the first fork until all have been reaped.
//
//   EngineSession session({.model = {.path = "model"}, .ranks = 2});
//   session.client().submit(1, {.prompt = {1, 2, 3}});
//   ...
//   return session.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "device/backend.h"
#include "launcher/worker_group.h"
#include "runtime/engine_client.h"
#include "runtime/engine_options.h"
#include "runtime/model_options.h"
#include "runtime/open_model.h"

namespace nvllm::launcher {

struct SessionOptions {
  runtime::ModelOptions model;
  runtime::EngineOptions engine = {};
  std::optional<int> ranks = std::nullopt;          // absent: every GPU, or one rank on the CPU
  std::optional<DeviceKind> device = std::nullopt;  // absent: GPUs where there are any
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  bool load_progress = true;   // on standard error
  bool memory_report = false;  // there, too, once the engine is open: what every rank has taken
  // What this process does while the workers start and load. What it throws ends the session.
  std::function<void()> meanwhile = nullptr;
};

struct Options;  // launcher/options.h
// What a command line says of a session.
SessionOptions session_options(const Options& options);

// The fields that generation_config.json has, and SamplingParams' own defaults.
runtime::SamplingParams sampling_defaults_of(const runtime::OpenModel& model);

// The session could not be begun. Standard error has been told why, as by finish().
class SessionFailed : public Error {
 public:
  SessionFailed(int exit_code, const std::string& message)
      : Error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }  // what the program should end with

 private:
  int exit_code_;
};

// Used by one thread, the process's main thread, before there are others.
class EngineSession {
 public:
  // Opens the model, forks the workers and waits until the engine is open. An Error if no worker could be
  // started; SessionFailed if one was. Either way nothing is left.
  explicit EngineSession(const SessionOptions& options);
  // The same with a model that is open already; the options' own counts for nothing then.
  EngineSession(const SessionOptions& options, runtime::OpenModel model);
  ~EngineSession();  // ends the workers, if finish() has not
  EngineSession(const EngineSession&) = delete;
  EngineSession& operator=(const EngineSession&) = delete;

  runtime::EngineClient& client();
  WorkerGroup& workers();
  const runtime::EngineInfo& info() const;
  const runtime::OpenModel& model() const;
  // What the checkpoint wishes for requests that say nothing else; see sampling_defaults_of().
  const runtime::SamplingParams& sampling_defaults() const;

  // All answers to some requests, in their order, while the client has no others. An Error if one was
  // refused: then none of them runs on.
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
