#include "runtime/engine/engine_client.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "ipc/ring_layout.h"
#include "ipc/rpc.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::runtime {
namespace {

// Parts on the way that the engine has not acknowledged. The ring's other half is for everything
// else that is asked, so no send ever waits for room: rank 0, which may be waiting for this process
// to read, cannot be waited for.
constexpr std::size_t kMaxUnacknowledged = ipc::kRequestsShape.slots / 2;

// Between two looks at rank 0's signs of life.
constexpr Nanoseconds kRound = std::chrono::milliseconds(100);

}  // namespace

struct EngineClient::State {
  explicit State(ipc::Member& launcher) : member(launcher), front(launcher) {}

  // Sends what may be sent now.
  void pump();
  // The same, but leaves what does not fill a part yet.
  void pump_full_parts();
  void send(const RequestPart& part);
  void await_updates(Nanoseconds limit);
  // Takes one event, if one comes within the limit.
  bool receive(Nanoseconds limit);
  void take(ipc::RequestEvent event);
  void check_life(std::int64_t waiting_since_ns) const;
  void note_end(const Update& update);

  template <typename Return, typename... Args>
  Return ask(std::string_view method, const Args&... args);

  ipc::Member& member;
  ipc::RequestClient front;
  RequestPacker packer;
  std::size_t unacknowledged = 0;
  std::unordered_map<std::uint64_t, std::int32_t> open;  // request: its answers that are not over
  std::vector<Update> updates;                           // that poll() has not returned
  OnLoadState on_load_state;
  std::uint64_t asked = 0;  // what ask() waits for
  std::optional<ipc::RequestEvent> answer;
  std::int64_t last_heard_ns = now_ns();
};

EngineClient::EngineClient(ipc::Member& launcher) : state_(std::make_unique<State>(launcher)) {}
EngineClient::~EngineClient() = default;

EngineInfo EngineClient::open(const EngineOptions& options, const OnLoadState& on_load_state) {
  state_->on_load_state = on_load_state;
  auto info = state_->ask<EngineInfo>("open", options);
  state_->on_load_state = {};
  return info;
}

void EngineClient::submit(std::uint64_t id, const Request& request) {
  const auto [place, inserted] = state_->open.emplace(id, std::max(request.sampling.n, 1));
  if (!inserted) fail("request ", id, " is not over yet; give another one another number");
  state_->packer.add(id, request);
  state_->pump_full_parts();
}

void EngineClient::abort(std::uint64_t id) {
  if (!state_->open.contains(id)) return;
  state_->packer.abort(id);
  state_->pump();
}

std::vector<Update> EngineClient::poll(Nanoseconds limit) {
  State& state = *state_;
  try {
    state.await_updates(limit);
  } catch (const Error&) {
    // What came before is not lost: the next call will find the same error.
    if (state.updates.empty()) throw;
  }
  std::vector<Update> updates = std::exchange(state.updates, {});
  for (const Update& update : updates) state.note_end(update);
  return updates;
}

std::size_t EngineClient::unfinished() const {
  return state_->open.size();
}

EngineStatistics EngineClient::statistics() {
  return state_->ask<EngineStatistics>("statistics");
}

std::vector<ProcessTrace> EngineClient::take_trace() {
  return state_->ask<std::vector<ProcessTrace>>("take_trace");
}

// Takes all that has come; waits for something so long at most.
void EngineClient::State::await_updates(Nanoseconds limit) {
  const std::int64_t begin = now_ns();
  const Nanoseconds bounded = std::min<Nanoseconds>(limit, std::chrono::hours(24 * 365));
  while (true) {
    pump();
    while (receive(Nanoseconds(0))) pump();
    if (!updates.empty()) return;
    const Nanoseconds left = bounded - Nanoseconds(now_ns() - begin);
    if (left <= Nanoseconds(0)) return;
    if (!receive(std::min(left, kRound))) check_life(begin);
  }
}

void EngineClient::State::pump() {
  while (unacknowledged < kMaxUnacknowledged) {
    const std::optional<RequestPart> part = packer.next();
    if (!part) return;
    send(*part);
  }
}

void EngineClient::State::pump_full_parts() {
  while (unacknowledged < kMaxUnacknowledged &&
         packer.waiting_bytes() >= RequestPacker::kPartBytes) {
    send(*packer.next());
  }
}

void EngineClient::State::send(const RequestPart& part) {
  front.send("add", part);
  ++unacknowledged;
}

bool EngineClient::State::receive(Nanoseconds limit) {
  std::optional<ipc::RequestEvent> event = front.receive_event(limit);
  if (!event) return false;
  last_heard_ns = now_ns();
  take(std::move(*event));
  return true;
}

void EngineClient::State::take(ipc::RequestEvent event) {
  if (event.kind() == ipc::RequestEvent::Kind::push) {
    if (event.name() == "updates") {
      auto news = event.get<std::vector<Update>>();
      std::move(news.begin(), news.end(), std::back_inserter(updates));
    } else if (event.name() == "load_state" && on_load_state) {
      on_load_state(event.get<LoadState>());
    }
  } else if (event.id() == asked) {
    answer.emplace(std::move(event));
  } else {
    event.read();  // an "add" has no result, but may have failed
    --unacknowledged;
  }
}

// Rank 0 says nothing while a long step runs, but gives signs of life.
void EngineClient::State::check_life(std::int64_t waiting_since_ns) const {
  const ipc::RankSnapshot rank0 = member.group().snapshot(0);
  // A start has a limit of its own, longer than a short step timeout; who forked the rank watches
  // over it.
  if (rank0.phase < ipc::Phase::ready) return;
  const Nanoseconds limit = member.group().step_timeout();
  const std::int64_t last = std::max({rank0.heartbeat_ns, last_heard_ns, waiting_since_ns});
  if (Nanoseconds(now_ns() - last) <= limit) return;
  throw ipc::PeerTimeout(0, str("no sign of life for ", format_duration(seconds_since(last)),
                                " from ", rank0.describe()));
}

void EngineClient::State::note_end(const Update& update) {
  if (update.finish == FinishReason::none && update.error.empty()) return;
  const auto found = open.find(update.request);
  NVLLM_CHECK(found != open.end(), "an update of request ", update.request, ", which is over");
  if (!update.error.empty() || --found->second == 0) open.erase(found);
}

template <typename Return, typename... Args>
Return EngineClient::State::ask(std::string_view method, const Args&... args) {
  pump();
  answer.reset();
  asked = front.send(method, args...);
  const std::int64_t begin = now_ns();
  while (!answer) {
    if (!receive(kRound)) check_life(begin);
    pump();
  }
  asked = 0;
  return std::exchange(answer, {})->template get<Return>();
}

}  // namespace nvllm::runtime
