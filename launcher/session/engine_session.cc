#include "launcher/session/engine_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/topology.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/session/find_model.h"
#include "launcher/session/load_display.h"
#include "launcher/session/trace_file.h"
#include "launcher/supervise/run_workers.h"
#include "runtime/open_model.h"
#include "runtime/worker.h"

namespace nvllm::launcher {
namespace {

using runtime::Update;

void check_has_weights(const runtime::OpenModel& model) {
  if (model.dummy || model.checkpoint) return;
  throw UsageError(str("--model ", model.path,
                       ": is a configuration alone; pass its folder, or --load-format dummy"));
}

template <typename Value, typename Field>
void set_if(const std::optional<Value>& value, Field& field) {
  if (value) field = *value;
}

LaunchPlan plan(const SessionOptions& options) {
  GroupOptions group{.ranks = options.ranks, .collectives = options.collectives};
  if (options.device) {
    group.device = *options.device == DeviceKind::cpu ? DeviceChoice::cpu : DeviceChoice::cuda;
  }
  return plan_launch(group, cuda_built(), visible_gpus);
}

}  // namespace

SessionOptions session_options(const Options& options) {
  SessionOptions session{.model = options.model,
                         .engine = options.engine,
                         .ranks = options.group.ranks,
                         .device = std::nullopt,
                         .step_timeout = options.group.step_timeout,
                         .collectives = options.group.collectives,
                         .log_level = options.group.log_level,
                         .memory_report = options.memory_report};
  session.engine.products_file = gemm_tuning_path(process_environment);
  if (options.group.device == DeviceChoice::cpu) session.device = DeviceKind::cpu;
  if (options.group.device == DeviceChoice::cuda) session.device = DeviceKind::cuda;
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

struct EngineSession::State {
  State(const SessionOptions& options, runtime::OpenModel opened)
      : model(std::move(opened)),
        launch(plan(options)),
        sampling_defaults(sampling_defaults_of(model)) {
    check_has_weights(model);
  }

  void open(const SessionOptions& options) {
    std::optional<LoadDisplay> display;
    if (options.load_progress) display.emplace(workers->console());
    info = client->open(options.engine, [&](const runtime::LoadState& state) {
      if (display) display->show(state);
    });
    display.reset();
    if (options.memory_report) {
      workers->console().print("memory of the ranks\n" + format_memory(info.ranks));
    }
    for (const std::string& note : info.notes) {
      if (!log_enabled(LogLevel::info)) break;
      workers->console().print(format_log_line("launcher", LogLevel::info, note));
    }
  }

  const runtime::OpenModel model;
  const LaunchPlan launch;
  const runtime::SamplingParams sampling_defaults;
  std::unique_ptr<WorkerGroup> workers;
  std::optional<runtime::EngineClient> client;
  runtime::EngineInfo info;
  std::uint64_t last_request = 0;  // of generate()
  bool finished = false;
};

EngineSession::EngineSession(const SessionOptions& options)
    : EngineSession(options, runtime::open_model(options.model)) {}

EngineSession::EngineSession(const SessionOptions& options, runtime::OpenModel model)
    : state_(std::make_unique<State>(options, std::move(model))) {
  const runtime::WorkerOptions worker{.device = state_->launch.device,
                                      .gpus = state_->launch.gpus,
                                      .collectives = options.collectives,
                                      .log_level = options.log_level,
                                      .model = &state_->model};
  state_->workers = std::make_unique<WorkerGroup>(
      WorkerGroup::Options{
          .group = {.size = state_->launch.ranks, .step_timeout = options.step_timeout}},
      [&](const ipc::Group& group, int rank) { return runtime::run_worker(group, rank, worker); });
  try {
    if (options.meanwhile) options.meanwhile();
    state_->client.emplace(state_->workers->member());
    state_->open(options);
  } catch (const Error& error) {
    throw SessionFailed(finish(error.what()), error.what());
  }
}

EngineSession::~EngineSession() = default;

runtime::EngineClient& EngineSession::client() {
  return *state_->client;
}

WorkerGroup& EngineSession::workers() {
  return *state_->workers;
}

const runtime::EngineInfo& EngineSession::info() const {
  return state_->info;
}

const runtime::OpenModel& EngineSession::model() const {
  return state_->model;
}

const runtime::SamplingParams& EngineSession::sampling_defaults() const {
  return state_->sampling_defaults;
}

std::vector<std::vector<EngineSession::Answer>> EngineSession::generate(
    const std::vector<runtime::Request>& requests) {
  runtime::EngineClient& client = *state_->client;
  const std::uint64_t first = state_->last_request + 1;
  std::vector<std::vector<Answer>> answers;
  for (const runtime::Request& request : requests) {
    client.submit(++state_->last_request, request);
    answers.emplace_back(static_cast<std::size_t>(std::max(1, request.sampling.n)));
  }
  std::string refusal;
  while (client.unfinished() > 0) {
    for (Update& update : client.poll(std::chrono::seconds(1))) {
      if (!update.error.empty() && refusal.empty()) {
        refusal = str("request ", update.request - first, ": ", update.error);
        for (std::uint64_t id = first; id <= state_->last_request; ++id) client.abort(id);
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

int EngineSession::finish(const std::optional<std::string>& error) {
  NVLLM_CHECK(!state_->finished, "a session ends once");
  state_->finished = true;
  if (!error) {
    state_->workers->expect_end();
    state_->workers->member().group().request_stop();
  }
  return state_->workers->finish(error);
}

void write_profile(const std::string& path, EngineSession& session, Trace& own,
                   std::int64_t started_ns) {
  std::vector<ProcessTrace> traces = session.client().take_trace();
  ProcessTrace launcher{.name = "launcher", .events = own.take(), .dropped = own.dropped()};
  traces.insert(traces.begin(), std::move(launcher));
  write_trace(path, traces, started_ns);
}

}  // namespace nvllm::launcher
