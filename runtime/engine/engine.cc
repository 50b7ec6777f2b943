#include "runtime/engine/engine.h"

#include <sys/prctl.h>
#include <time.h>

#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/text.h"
#include "runtime/engine/engine_rank.h"

namespace nvllm::runtime {
namespace {

// How long an idle engine waits for announced requests before its first step: in total, and for
// each further part. Requests that were submitted together then start together.
constexpr Nanoseconds kGather = std::chrono::milliseconds(20);
constexpr Nanoseconds kGatherNext = std::chrono::milliseconds(2);

// Polling for a GPU's result: first busy-waiting for about as long as a wake-up takes, then with
// short sleeps.
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
constexpr Nanoseconds kSleep = std::chrono::microseconds(20);

void sleep_briefly() {
  const timespec time{.tv_sec = 0, .tv_nsec = kSleep.count()};
  ::nanosleep(&time, nullptr);
}

// The end of a request that is refused or has failed.
Update failure(std::uint64_t id, const std::string& why, bool internal_error) {
  Update update;
  update.request = id;
  update.error = why;
  update.internal_error = internal_error;
  return update;
}

// Adds the time from its construction to its destruction to a sum of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), begin_ns_(now_ns()) {}
  ~Stopwatch() { seconds_ += seconds_since(begin_ns_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::int64_t begin_ns_;
};

}  // namespace

void Engine::bind(ipc::Registry& requests) {
  requests.bind<&Engine::open>("open", this);
  requests.bind<&Engine::receive_chunk>("add", this);
  requests.bind<&Engine::statistics>("statistics", this);
  requests.bind<&Engine::take_trace>("take_trace", this);
}

void Engine::serve(const ipc::Registry& requests) {
  try {
    while (!server_.stop_requested()) {
      if (busy()) {
        run_round(requests);
      } else {
        synchronize();
        if (!server_.serve_next(requests)) break;
        gather_requests(requests);
        push_updates();
      }
    }
    synchronize();  // waits for steps in flight, so that no rank exits in the middle of one
  } catch (const ipc::GroupAborted&) {
    throw;
  } catch (const ipc::PeerTimeout&) {
    throw;
  } catch (const Error& error) {
    me_.group().abort(error.what());  // the other ranks may be waiting in a step
    throw;
  }
}

// --- Methods that the front end calls ---

EngineInfo Engine::open(const EngineOptions& requested) {
  if (scheduler_) fail("the engine is open already");
  // While it waits for the device, the main thread sleeps for tens of microseconds at a time. By
  // default the kernel may lengthen each sleep by 50 microseconds.
  ::prctl(PR_SET_TIMERSLACK, 1);
  options_ = requested;
  EngineSetup setup = set_up_engine(options_, me_, caller_, server_, own_);
  scheduler_.emplace(setup.limits);
  if (options_.prefill_step_s > 0 && own_.device() == DeviceKind::cpu &&
      setup.info.kv_mode != KvMode::layerwise) {
    pacer_.emplace(options_.prefill_step_s, options_.max_num_batched_tokens);
    scheduler_->set_prefill_rows(pacer_->rows());
  }
  tracker_.emplace(RequestLimits{.vocabulary = own_.model().config.vocab_size,
                                 .eos_ids = own_.model().generation.eos_token_ids,
                                 .seed = options_.seed,
                                 .kv_mode = setup.info.kv_mode});
  settled_ = false;
  if (options_.profile) clocks_.compare();
  setup.info.ready_ns = now_ns();
  return std::move(setup.info);
}

void Engine::receive_chunk(const RequestChunk& part) {
  if (!scheduler_) fail("the engine is not open yet: a request before open()");
  unpacker_.unpack(part, [this](RequestFrame frame) {
    if (frame.abort) {
      abort_request(frame.id);
    } else {
      start_request(frame.id, std::move(frame.request));
    }
  });
  more_follows_ = part.more;
}

EngineStatistics Engine::statistics() {
  EngineStatistics statistics = statistics_;
  if (!scheduler_) return statistics;
  statistics.scheduler = scheduler_->statistics();
  statistics.generated_tokens = tracker_->generated_tokens();
  for (const kvcache::KvTraffic& rank : caller_.call<kvcache::KvTraffic>("kv_traffic")) {
    statistics.kv_bytes_to_host += rank.to_host;
    statistics.kv_bytes_to_device += rank.to_device;
    statistics.kv_bytes_by_host += rank.by_host;
  }
  return statistics;
}

std::vector<ProcessTrace> Engine::take_trace() {
  auto traces = caller_.call<ProcessTrace>("take_trace");
  const ipc::Group& group = me_.group();
  if (group.boxes() == 1) return traces;
  clocks_.compare();
  for (int rank = 0; rank < me_.size(); ++rank) {
    ProcessTrace& trace = traces[static_cast<std::size_t>(rank)];
    trace.name += str(", ", group.box_text(group.box_of(rank)));
    if (group.is_here(rank)) continue;
    trace.name += str(", times to within ",
                      format_duration(static_cast<double>(clocks_.error().count()) * 1e-9));
    for (TraceEvent& event : trace.events) clocks_.to_ours(rank, {&event.begin_ns, &event.end_ns});
  }
  return traces;
}

// --- Requests ---

void Engine::start_request(std::uint64_t id, Request request) {
  const bool is_taken = tracker_->knows(id);
  const std::size_t prompt_tokens = request.prompt.size();
  const std::int32_t n = request.sampling.n;
  const auto refuse = [&](const std::string& why) {
    // If the id is taken, the request that has it goes on.
    if (is_taken) return updates_.push_back(failure(id, why, /*internal_error=*/false));
    refuse_request(id, why, /*internal_error=*/false);
  };
  try {
    for (Sequence& sequence : tracker_->open(id, std::move(request), now_ns())) {
      scheduler_->add(std::move(sequence));
    }
    statistics_.prompt_tokens += prompt_tokens;
  } catch (const Error& error) {
    refuse(error.what());
  } catch (const std::bad_alloc&) {
    refuse(str("n ", n, ": the system refuses memory for as many sequences of ", prompt_tokens,
               " tokens; pass a smaller n or a shorter prompt, or raise the limit (ulimit -v)"));
  }
}

void Engine::refuse_request(std::uint64_t id, const std::string& why, bool internal_error) {
  for (const SequenceId sequence : tracker_->close(id, now_ns()).sequences)
    scheduler_->abort(sequence);
  updates_.push_back(failure(id, why, internal_error));
}

void Engine::abort_request(std::uint64_t id) {
  RequestTracker::Closed closed = tracker_->close(id, now_ns());
  for (const SequenceId sequence : closed.sequences) scheduler_->abort(sequence);
  for (Update& update : closed.updates) updates_.push_back(std::move(update));
}

// Called while there is nothing to compute: first receives the requests that were announced.
void Engine::gather_requests(const ipc::Registry& requests) {
  const std::int64_t begin = now_ns();
  while (more_follows_ && Nanoseconds(now_ns() - begin) < kGather &&
         tracker_->size() < static_cast<std::size_t>(options_.max_num_seqs)) {
    if (!server_.serve_next_for(requests, kGatherNext)) return;
  }
}

// --- Steps ---

// One round of the loop: enqueues the next step while the device runs the previous one, then waits
// for the result of the previous one.
void Engine::run_round(const ipc::Registry& requests) {
  {
    const Stopwatch host(statistics_.host_s);
    server_.serve_pending(requests);
    enqueue_steps();
  }
  push_updates();  // reports aborted requests now: the next step may be far away
  if (scheduler_->in_flight() > 0) {
    finish_step();
    push();
  } else {
    // Only aborts may leave waiting sequences without a step; otherwise this loop would run
    // forever.
    NVLLM_CHECK(scheduler_->idle(), scheduler_->statistics().waiting, " sequences wait and ",
                scheduler_->statistics().running, " run, but there is no step for them");
  }
}

void Engine::enqueue_steps() {
  const std::int64_t max_in_flight = steps_in_flight(options_, own_.stages());
  while (scheduler_->in_flight() < max_in_flight && enqueue_step()) continue;
}

bool Engine::enqueue_step() {
  std::optional<StepMessage> message;
  {
    const Trace::Span span(own_.trace(), "host", "schedule");
    message = scheduler_->schedule();
  }
  if (!message) return false;
  const bool first = scheduler_->in_flight() == 1;
  {
    const Trace::Span span(own_.trace(), "host", "send", message->number);
    caller_.notify("step", *message);
    caller_.check();
  }
  statistics_.step_message_bytes += caller_.last_message_bytes();
  const std::int64_t now = now_ns();
  for (const SequenceId sequence : scheduler_->started()) tracker_->note_scheduled(sequence, now);
  if (first) device_began_ns_ = now;
  settled_ = false;
  return true;
}

void Engine::finish_step() {
  const StepResult result = await_result();
  const Stopwatch host(statistics_.host_s);
  const std::int64_t now = now_ns();
  const double seconds = static_cast<double>(now - device_began_ns_) * 1e-9;
  statistics_.device_busy_s += seconds;
  device_began_ns_ = now;
  if (pacer_) {
    pacer_->note(scheduler_->oldest_rows(), seconds);
    scheduler_->set_prefill_rows(pacer_->rows());
  }
  const Trace::Span span(own_.trace(), "host", "complete", result.number);
  for (SequenceOutput& output : scheduler_->complete(result)) {
    const std::optional<std::uint64_t> request = tracker_->request_of(output.id);
    if (!request) continue;  // it was finished just before, together with another of its sequences
    if (output.no_token) {
      refuse_request(*request, why_no_token(), /*internal_error=*/true);
    } else {
      tracker_->add_update(std::move(output), now, updates_);
    }
  }
}

// The weights are checked once.
const std::string& Engine::why_no_token() {
  if (!why_no_token_.empty()) return why_no_token_;
  const std::string fault = find_weight_fault(caller_);
  why_no_token_ = fault.empty()
                      ? str("no token can be sampled: all logits are NaN, though all weights are "
                            "numbers; what overflows as ",
                            name_of(own_.model().dtype), " may fit with another --dtype")
                      : str("no token can be sampled: all logits are NaN, since ", fault,
                            "; get the model's files again");
  log_error(why_no_token_);
  return why_no_token_;
}

StepResult Engine::await_result() {
  {
    const Stopwatch waiting(statistics_.waiting_s);
    const Trace::Span span(own_.trace(), "host", "wait");
    // CPU kernels need the cores, so this thread sleeps until it is woken.
    if (own_.device() == DeviceKind::cpu) return own_.runner().take_result();
    poll_result();
  }
  const Stopwatch host(statistics_.host_s);
  return own_.runner().take_result();
}

// Returns when there is a result, or when the result is so late that ModelRunner::take_result()
// must find out why.
void Engine::poll_result() {
  std::int64_t begin = now_ns();
  std::uint64_t progress = me_.progress();
  const Nanoseconds limit = me_.group().step_timeout();
  while (!own_.runner().result_ready()) {
    const Nanoseconds waited(now_ns() - begin);
    if (waited > limit) {
      if (me_.progress() == progress) return;
      progress = me_.progress();
      begin = now_ns();
    }
    me_.check_abort();
    if (waited < kSpin) {
      cpu_relax();
    } else {
      sleep_briefly();
    }
  }
}

void Engine::push_updates() {
  if (!updates_.empty()) push();
}

void Engine::push() {
  const Stopwatch host(statistics_.host_s);
  const Trace::Span span(own_.trace(), "host", "push");
  server_.push("updates", updates_, scheduler_ ? scheduler_->statistics() : SchedulerStatistics{});
  updates_.clear();
}

// Called when there is nothing to do: makes all ranks wait for their devices. A device failure is
// reported here at the latest.
void Engine::synchronize() {
  if (settled_) return;
  caller_.call<void>("synchronize");
  settled_ = true;
}

}  // namespace nvllm::runtime
