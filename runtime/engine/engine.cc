#include "runtime/engine/engine.h"

#include <sys/prctl.h>
#include <time.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/engine/engine_setup.h"
#include "runtime/engine/request_tracker.h"

namespace nvllm::runtime {
namespace {

// Of a step in flight: one is running, the next is enqueued behind it.
constexpr std::int64_t kStepsAhead = 2;

// How long the first step waits for requests that the front end is still sending, in all and for
// the next part: they then begin together.
constexpr Nanoseconds kGather = std::chrono::milliseconds(20);
constexpr Nanoseconds kGatherNext = std::chrono::milliseconds(2);

// Waiting for a GPU's result: spins for as long as a wake-up would take, then looks again and
// again.
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
constexpr Nanoseconds kNap = std::chrono::microseconds(20);

void nap() {
  const timespec time{.tv_sec = 0, .tv_nsec = kNap.count()};
  ::nanosleep(&time, nullptr);
}

// Adds the time of its life to a sum of seconds.
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

struct Engine::State {
  State(ipc::Member& member, ipc::GroupCaller& group_caller, ipc::RequestServer& front_desk,
        EngineRank& own_rank)
      : me(member), caller(group_caller), server(front_desk), own(own_rank) {}

  // What the launcher asks for.
  EngineInfo open(const EngineOptions& asked);
  void add(const RequestPart& part);
  EngineStatistics statistics();
  std::vector<ProcessTrace> take_trace();

  // A step whose results nobody wants any more is waited for, too: the next one may need its place.
  bool busy() const { return scheduler && (!scheduler->idle() || scheduler->in_flight() > 0); }
  void take(RequestFrame asked);
  void refuse(std::uint64_t id, const std::string& why);
  void begin(std::uint64_t id, Request request);
  void abort(std::uint64_t id);
  void gather(const ipc::Registry& requests);
  void work(const ipc::Registry& requests);
  void enqueue();
  bool enqueue_step();
  void finish_step();
  StepResult take_result();
  void poll_result();
  void push_updates();
  void settle();

  ipc::Member& me;
  ipc::GroupCaller& caller;
  ipc::RequestServer& server;
  EngineRank& own;

  EngineOptions options;
  std::optional<Scheduler> scheduler;  // once it is open
  std::optional<RequestTracker> book;
  RequestUnpacker unpacker;
  bool more_follows = false;  // the last part of a request was not the last
  std::vector<Update> updates;
  bool settled = true;

  EngineStatistics counted;
  std::int64_t device_began_ns = 0;  // the step that the device is at
};

Engine::Engine(ipc::Member& me, ipc::GroupCaller& caller, ipc::RequestServer& server,
               EngineRank& own)
    : state_(std::make_unique<State>(me, caller, server, own)) {}
Engine::~Engine() = default;

void Engine::bind(ipc::Registry& requests) {
  requests.bind<&State::open>("open", state_.get());
  requests.bind<&State::add>("add", state_.get());
  requests.bind<&State::statistics>("statistics", state_.get());
  requests.bind<&State::take_trace>("take_trace", state_.get());
}

void Engine::serve(const ipc::Registry& requests) {
  State& state = *state_;
  try {
    while (!state.server.stop_requested()) {
      if (state.busy()) {
        state.work(requests);
      } else {
        state.settle();
        if (!state.server.serve_next(requests)) break;
        state.gather(requests);
        state.push_updates();
      }
    }
    state.settle();  // steps that are still under way: nobody goes down in the middle of one
  } catch (const ipc::GroupAborted&) {
    throw;
  } catch (const ipc::PeerTimeout&) {
    throw;
  } catch (const Error& error) {
    state.me.group().abort(error.what());  // the others may be waiting in a step
    throw;
  }
}

// --- What the launcher asks for ---

EngineInfo Engine::State::open(const EngineOptions& asked) {
  if (scheduler) fail("the engine is open already");
  // The main thread naps for tens of microseconds while it waits for the device; by default the
  // kernel may make each 50 longer.
  ::prctl(PR_SET_TIMERSLACK, 1);
  options = asked;
  EngineSetup setup = set_up_engine(options, me, caller, server, own);
  scheduler.emplace(setup.limits);
  book.emplace(RequestLimits{.vocabulary = own.model().config.vocab_size,
                             .eos_ids = own.model().generation.eos_token_ids,
                             .seed = options.seed,
                             .kv_mode = setup.info.kv_mode});
  settled = false;
  setup.info.ready_ns = now_ns();
  return std::move(setup.info);
}

void Engine::State::add(const RequestPart& part) {
  if (!scheduler) fail("the engine is not open yet: a request before open()");
  unpacker.take(part, [this](RequestFrame asked) { take(std::move(asked)); });
  more_follows = part.more;
}

EngineStatistics Engine::State::statistics() {
  EngineStatistics statistics = counted;
  if (!scheduler) return statistics;
  statistics.scheduler = scheduler->statistics();
  statistics.prompt_tokens = book->prompt_tokens();
  statistics.generated_tokens = book->generated_tokens();
  for (const kvcache::KvTraffic& rank : caller.call<kvcache::KvTraffic>("kv_traffic")) {
    statistics.kv_bytes_to_host += rank.to_host;
    statistics.kv_bytes_to_device += rank.to_device;
    statistics.kv_bytes_by_host += rank.by_host;
  }
  return statistics;
}

std::vector<ProcessTrace> Engine::State::take_trace() {
  return caller.call<ProcessTrace>("take_trace");
}

void Engine::State::take(RequestFrame asked) {
  if (asked.abort) {
    abort(asked.id);
  } else {
    begin(asked.id, std::move(asked.request));
  }
}

void Engine::State::begin(std::uint64_t id, Request request) {
  try {
    for (Sequence& sequence : book->open(id, std::move(request), now_ns())) {
      scheduler->add(std::move(sequence));
    }
  } catch (const Error& error) {
    refuse(id, error.what());
  }
}

void Engine::State::refuse(std::uint64_t id, const std::string& why) {
  for (const SequenceId sequence : book->close(id, now_ns()).sequences) scheduler->abort(sequence);
  Update& update = updates.emplace_back();
  update.request = id;
  update.error = why;
}

void Engine::State::abort(std::uint64_t id) {
  RequestTracker::Closed closed = book->close(id, now_ns());
  for (const SequenceId sequence : closed.sequences) scheduler->abort(sequence);
  for (Update& update : closed.updates) updates.push_back(std::move(update));
}

// With nothing to compute yet: requests that are on their way are taken first.
void Engine::State::gather(const ipc::Registry& requests) {
  const std::int64_t begin = now_ns();
  while (more_follows && Nanoseconds(now_ns() - begin) < kGather &&
         book->size() < static_cast<std::size_t>(options.max_num_seqs)) {
    if (!server.serve_next_for(requests, kGatherNext)) return;
  }
}

// --- Steps ---

// One round of the loop: the next step is enqueued while the device is at the one before, whose
// result is then taken.
void Engine::State::work(const ipc::Registry& requests) {
  {
    const Stopwatch host(counted.host_s);
    server.serve_pending(requests);
    enqueue();
  }
  if (scheduler->in_flight() > 0) {
    finish_step();
  } else {
    // Aborts have left nothing to do, or there is a fault that must not become a silent loop.
    NVLLM_CHECK(scheduler->idle(), scheduler->statistics().waiting, " sequences wait and ",
                scheduler->statistics().running, " run, but there is no step for them");
  }
  const Stopwatch host(counted.host_s);
  push_updates();
}

void Engine::State::enqueue() {
  const std::int64_t most = options.async_scheduling ? kStepsAhead : 1;
  while (scheduler->in_flight() < most && enqueue_step()) continue;
}

bool Engine::State::enqueue_step() {
  std::optional<StepMessage> message;
  {
    const Trace::Span span(own.trace(), "host", "schedule");
    message = scheduler->schedule();
  }
  if (!message) return false;
  const bool first = scheduler->in_flight() == 1;
  {
    const Trace::Span span(own.trace(), "host", "send", message->number);
    caller.cast("step", *message);
    caller.check();
  }
  counted.step_message_bytes += caller.last_message_bytes();
  const std::int64_t now = now_ns();
  for (const SequenceId sequence : scheduler->started()) book->scheduled(sequence, now);
  if (first) device_began_ns = now;
  settled = false;
  return true;
}

void Engine::State::finish_step() {
  const StepResult result = take_result();
  const Stopwatch host(counted.host_s);
  const std::int64_t now = now_ns();
  counted.device_busy_s += static_cast<double>(now - device_began_ns) * 1e-9;
  device_began_ns = now;
  const Trace::Span span(own.trace(), "host", "complete", result.number);
  for (SequenceOutput& progress : scheduler->complete(result)) {
    book->report(std::move(progress), now, updates);
  }
}

StepResult Engine::State::take_result() {
  {
    const Stopwatch waiting(counted.waiting_s);
    const Trace::Span span(own.trace(), "host", "wait");
    // The CPU's kernels want the cores: sleep until woken.
    if (own.device() == DeviceKind::cpu) return own.runner().take_result();
    poll_result();
  }
  const Stopwatch host(counted.host_s);
  return own.runner().take_result();
}

// Until there is a result, or so late that whoever takes it finds out why there is none.
void Engine::State::poll_result() {
  std::int64_t begin = now_ns();
  std::uint64_t progress = me.progress();
  const Nanoseconds limit = me.group().step_timeout();
  while (!own.runner().result_ready()) {
    const Nanoseconds waited(now_ns() - begin);
    if (waited > limit) {
      if (me.progress() == progress) return;
      progress = me.progress();
      begin = now_ns();
    }
    me.check_abort();
    if (waited < kSpin) {
      cpu_relax();
    } else {
      nap();
    }
  }
}

void Engine::State::push_updates() {
  if (updates.empty()) return;
  const Trace::Span span(own.trace(), "host", "push");
  server.push("updates", updates);
  updates.clear();
}

// When there is nothing to do. Here at the latest, what failed on a device comes to light.
void Engine::State::settle() {
  if (settled) return;
  caller.call<void>("settle");
  settled = true;
}

}  // namespace nvllm::runtime
