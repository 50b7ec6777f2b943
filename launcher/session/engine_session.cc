#include "launcher/session/engine_session.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/thread.h"
#include "device/topology.h"
#include "launcher/cli/option_value.h"
#include "launcher/session/load_display.h"
#include "launcher/session/trace_file.h"
#include "launcher/session/user_cache.h"
#include "launcher/supervise/run_workers.h"

namespace nvllm::launcher {
namespace {

using runtime::Update;

void check_has_weights(const runtime::OpenModel& model) {
  if (model.dummy || model.checkpoint) return;
  throw UsageError(str("--model ", model.path,
                       ": is a configuration alone; pass its folder, or --load-format dummy"));
}

// The model with the division that these options require.
runtime::OpenModel divided_as(const runtime::EngineOptions& options, runtime::OpenModel model) {
  model.tp_invariant = options.invariance == runtime::Invariance::tp;
  return model;
}

// For boxes that follow the first one in serve: if all boxes get a signal to stop, the first one
// finishes its requests. So the workers here ignore the first signal, for as long as the first box
// may take.
class DrainWatch {
 public:
  explicit DrainWatch(Nanoseconds limit) : limit_(limit + kMargin) {}
  DrainWatch(const DrainWatch&) = delete;
  DrainWatch& operator=(const DrainWatch&) = delete;
  ~DrainWatch() {
    if (alarm_) ::timer_delete(*alarm_);
  }

  // In the supervisor's thread. False: the signal ends the group.
  bool handle(int signal) {
    if (alarm_) return false;
    timer_t alarm = nullptr;
    sigevent again{};
    again.sigev_notify = SIGEV_SIGNAL;
    again.sigev_signo = signal;
    if (::timer_create(CLOCK_MONOTONIC, &again, &alarm) != 0) return false;
    alarm_ = alarm;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit_);
    const itimerspec at{.it_interval = {}, .it_value = {.tv_sec = seconds.count(), .tv_nsec = 1}};
    return ::timer_settime(alarm, 0, &at, nullptr) == 0;
  }

 private:
  static constexpr Nanoseconds kMargin = std::chrono::seconds(5);
  const Nanoseconds limit_;
  std::optional<timer_t> alarm_;
};

template <typename Value, typename Field>
void set_if(const std::optional<Value>& value, Field& field) {
  if (value) field = *value;
}

}  // namespace

int follow_first_box(const Options& options) {
  const LaunchPlan launch = plan_launch(options.group, cuda_built(), visible_gpus);
  std::optional<runtime::OpenModel> model;
  if (options.command != "selftest") {
    model.emplace(runtime::open_model(options.model));
    check_has_weights(*model);
    model = divided_as(options.engine, std::move(*model));
  }
  std::optional<DrainWatch> drain;
  SignalHandler on_signal;
  if (options.command == "serve") {
    drain.emplace(options.serve.shutdown_timeout);
    on_signal = [&](int signal) { return drain->handle(signal); };
  }
  return follow_first_box(options.group, launch, model ? &*model : nullptr, on_signal);
}

void apply_environment(const Environment& environment, runtime::EngineOptions& options) {
  if (options.invariance != runtime::Invariance::automatic) return;
  // As in vLLM: a whole number, and any but 0 turns it on.
  const std::string value = environment("VLLM_BATCH_INVARIANT").value_or("");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (!value.empty() && (error != std::errc{} || end != value.data() + value.size())) {
    fail("VLLM_BATCH_INVARIANT=", value, ": not a whole number; set it to 1 or 0");
  }
  options.invariance = number != 0 ? runtime::Invariance::batch : runtime::Invariance::off;
  if (const std::string why = runtime::invariance_refusal(options); !why.empty()) {
    fail("VLLM_BATCH_INVARIANT=", value, ": ", why);
  }
}

SessionOptions session_options(const Options& options) {
  SessionOptions session{.model = options.model,
                         .engine = options.engine,
                         .group = options.group,
                         .memory_report = options.memory_report,
                         .ends_process = true};
  session.engine.gemm_tuning_file = gemm_tuning_path(process_environment);
  return session;
}

runtime::SamplingParams sampling_defaults_of(const runtime::OpenModel& model) {
  const model::GenerationConfig& config = model.generation;
  runtime::SamplingParams params;
  set_if(config.temperature, params.temperature);
  set_if(config.top_p, params.top_p);
  set_if(config.top_k, params.top_k);
  set_if(config.min_p, params.min_p);
  set_if(config.repetition_penalty, params.repetition_penalty);
  set_if(config.max_new_tokens, params.max_tokens);
  return params;
}

EngineSession::EngineSession(const SessionOptions& options)
    : EngineSession(options, runtime::open_model(options.model)) {}

EngineSession::EngineSession(const SessionOptions& options, runtime::OpenModel model)
    : model_(divided_as(options.engine, std::move(model))),
      sampling_defaults_(sampling_defaults_of(model_)) {
  const LaunchPlan launch = plan_launch(options.group, cuda_built(), visible_gpus);
  check_has_weights(model_);
  runtime::check_pipeline(model_, options.group.stages);
  WorkerGroup::Options group = group_to_start(options.group, launch, &model_);
  group.on_signal = options.on_signal;
  if (options.ends_process)
    group.on_finish_timeout = [this](int exit_code) { end_process(exit_code); };
  group.finish_limit = options.finish_limit;
  if (options.before_fork) options.before_fork();
  workers_.emplace(group, worker_body(options.group, launch, &model_));
  try {
    if (options.on_forked) options.on_forked(*workers_);
    if (options.meanwhile) options.meanwhile();
    client_.emplace(workers_->member());
    open_engine(options);
  } catch (const Error& error) {
    throw SessionFailed(finish(error.what()), error.what());
  }
}

void EngineSession::open_engine(const SessionOptions& options) {
  std::optional<LoadDisplay> display;
  if (options.load_progress) display.emplace(workers_->console());
  info_ = client_->open(options.engine, [&](const runtime::LoadState& state) {
    if (display) display->show(state);
  });
  display.reset();
  if (options.memory_report) workers_->console().print(format_memory(info_.ranks));
  for (const std::string& note : info_.notes) {
    if (!log_enabled(LogLevel::info)) break;
    workers_->console().print(format_log_line("launcher", LogLevel::info, note));
  }
}

std::vector<std::vector<EngineSession::Answer>> EngineSession::generate(
    const std::vector<runtime::Request>& requests) {
  runtime::EngineClient& client = *client_;
  if (client.unfinished() > 0) {
    fail(client.unfinished(), " requests that were submitted are unfinished: poll until they end");
  }
  const std::uint64_t first = last_request_ + 1;
  std::vector<std::vector<Answer>> answers;
  for (const runtime::Request& request : requests) {
    client.submit(++last_request_, request);
    answers.emplace_back(static_cast<std::size_t>(std::max(1, request.sampling.n)));
  }
  std::string refusal;
  while (client.unfinished() > 0) {
    for (Update& update : client.poll(std::chrono::seconds(1))) {
      if (!update.error.empty() && refusal.empty()) {
        refusal = str("request ", update.request - first, ": ", update.error);
        for (std::uint64_t id = first; id <= last_request_; ++id) client.abort(id);
      }
      if (!update.error.empty()) continue;
      Answer& answer =
          answers.at(update.request - first).at(static_cast<std::size_t>(update.index));
      answer.tokens.insert(answer.tokens.end(), update.tokens.begin(), update.tokens.end());
      answer.logprobs.insert(answer.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
      answer.finish = update.finish;
    }
  }
  if (!refusal.empty()) fail(refusal);
  return answers;
}

EngineSession::ExitCallback::ExitCallback(EngineSession& session, std::function<void()> what)
    : session_(session) {
  session_.set_exit_callback(std::move(what));
}

EngineSession::ExitCallback::~ExitCallback() {
  session_.set_exit_callback(nullptr);
}

void EngineSession::set_exit_callback(std::function<void()> callback) {
  const std::lock_guard lock(exit_callback_mutex_);
  exit_callback_ = std::move(callback);
}

// Runs in the supervisor's thread.
void EngineSession::end_process(int exit_code) {
  auto done = std::make_shared<std::promise<void>>();
  const std::future<void> over = done->get_future();
  try {
    // In a separate thread, which may block without delaying the end.
    start_thread("that does what is left", [this, done] {
      const std::lock_guard lock(exit_callback_mutex_);
      if (exit_callback_) exit_callback_();
      done->set_value();
    }).detach();
    over.wait_for(kExitCallbackLimit);
  } catch (const Error&) {  // no thread can be started
  }
  ::_exit(exit_code);
}

int EngineSession::finish(const std::optional<std::string>& error) {
  NVLLM_CHECK(!finished_, "a session ends once");
  finished_ = true;
  if (!error) {
    workers_->expect_end();
    workers_->member().group().request_stop();
  }
  return workers_->finish(error);
}

void write_profile(const std::string& path, EngineSession& session, Trace& own,
                   std::int64_t started_ns) {
  std::vector<ProcessTrace> traces = session.client().take_trace();
  ProcessTrace launcher{.name = "launcher", .events = own.drain(), .dropped = own.dropped()};
  traces.insert(traces.begin(), std::move(launcher));
  write_trace(path, traces, started_ns);
}

}  // namespace nvllm::launcher
