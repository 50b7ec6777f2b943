// EngineSession: the library's main class. It runs workers with an engine, from the first fork
// until all have been reaped.
//
//   EngineSession session({.model = {.path = "model"}, .group = {.ranks = 2}});
//   session.client().submit(1, {.prompt = {1, 2, 3}});
//   ...
//   return session.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/trace.h"
#include "launcher/cli/options.h"
#include "launcher/session/user_cache.h"
#include "launcher/supervise/worker_group.h"
#include "runtime/engine/engine_client.h"
#include "runtime/model/open_model.h"
#include "runtime/options.h"

namespace nvllm::launcher {

// Set by programs that use the library.
struct SessionOptions {
  runtime::ModelOptions model;
  runtime::EngineOptions engine = {};
  GroupOptions group = {};
  bool load_progress = true;   // on standard error
  bool memory_report = false;  // also on standard error: the memory of every rank once the engine
                               // is open
  // Called in this process while the workers start and load. If it throws, the session ends.
  std::function<void()> meanwhile = nullptr;
  // For programs with other threads: called right before the workers are forked, when other threads
  // must hold no lock; and right after it, before meanwhile().
  std::function<void()> before_fork = nullptr;
  std::function<void(WorkerGroup& workers)> on_forked = nullptr;
  SignalHandler on_signal = nullptr;
  // If the workers have ended by a failure or a signal and finish() is not called within the limit,
  // the process exits, after the work of set_exit_callback(): no thread that is busy with a text,
  // or is blocked by its output, delays the end. False: the program handles this.
  bool ends_process = false;
  Nanoseconds finish_limit = Supervisor::kFinishLimit;
};

// Settings from the environment, if there is no option: VLLM_BATCH_INVARIANT=1 means --invariant
// batch. Options that prevent invariant results are then rejected, too.
void apply_environment(const Environment& environment, runtime::EngineOptions& options);

// The session options of a command line.
SessionOptions session_options(const Options& options);

// The values of generation_config.json, and SamplingParams' defaults for the others.
runtime::SamplingParams sampling_defaults_of(const runtime::OpenModel& model);

// The session could not be started. The reason is on standard error already, as after finish().
class SessionFailed : public Error {
 public:
  SessionFailed(int exit_code, const std::string& message)
      : Error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }  // the exit code for the program

 private:
  int exit_code_;
};

// Used by one thread, the process's main thread; constructed before other threads exist, or with
// before_fork.
class EngineSession {
 public:
  // Opens the model, forks the workers and waits until the engine is open. Throws an Error if no
  // worker could be started, SessionFailed if one was. No worker remains in either case.
  explicit EngineSession(const SessionOptions& options);
  // The same with a model that is already open; options.model is ignored.
  EngineSession(const SessionOptions& options, runtime::OpenModel model);
  // The destructor stops the workers, unless finish() has.
  EngineSession(const EngineSession&) = delete;
  EngineSession& operator=(const EngineSession&) = delete;

  runtime::EngineClient& client() { return *client_; }
  WorkerGroup& workers() { return *workers_; }
  const runtime::EngineInfo& info() const { return info_; }
  const runtime::OpenModel& model() const { return model_; }
  // The checkpoint's defaults for requests; see sampling_defaults_of().
  const runtime::SamplingParams& sampling_defaults() const { return sampling_defaults_; }

  // Runs requests and returns all their answers in order. Throws an Error if the client has other
  // requests, or if one is rejected; then all of them are aborted.
  struct Answer {
    std::vector<std::int32_t> tokens;
    std::vector<runtime::TokenLogprobs> logprobs;
    runtime::FinishReason finish = runtime::FinishReason::none;
  };
  std::vector<std::vector<Answer>> generate(const std::vector<runtime::Request>& requests);

  // While it exists: work that is still to be done if the process ends although the thread that
  // uses the session is busy. It runs in another thread, for at most kExitCallbackLimit, and must
  // not throw. A session has one at a time.
  class ExitCallback {
   public:
    ExitCallback(EngineSession& session, std::function<void()> what);
    ExitCallback(const ExitCallback&) = delete;
    ExitCallback& operator=(const ExitCallback&) = delete;
    ~ExitCallback();  // it does not run any more after this

   private:
    EngineSession& session_;
  };
  static constexpr Nanoseconds kExitCallbackLimit = std::chrono::milliseconds(200);

  // Stops the workers; with an error, also reports which worker caused it, if any. Returns the
  // program's exit code.
  int finish(const std::optional<std::string>& error = std::nullopt);

 private:
  void open_engine(const SessionOptions& options);
  void set_exit_callback(std::function<void()> callback);
  [[noreturn]] void end_process(int exit_code);

  const runtime::OpenModel model_;
  const runtime::SamplingParams sampling_defaults_;
  std::mutex exit_callback_mutex_;  // guards exit_callback_, also while it runs
  std::function<void()> exit_callback_;
  std::optional<WorkerGroup> workers_;
  std::optional<runtime::EngineClient> client_;
  runtime::EngineInfo info_;
  std::uint64_t last_request_ = 0;  // of generate()
  bool finished_ = false;
};

// On boxes other than the first, replaces the command: runs its workers for as long as the first
// box needs them. Returns the program's exit code.
int follow_first_box(const Options& options);

// Writes the trace of all processes of a session, for --profile; `own`: that of this process.
void write_profile(const std::string& path, EngineSession& session, Trace& own,
                   std::int64_t started_ns);

}  // namespace nvllm::launcher
