#include "runtime/engine/engine_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "ipc/ring_layout.h"

namespace nvllm::runtime {
namespace {

// Maximum number of parts in flight without an acknowledgement. The other half of the ring is kept
// for other calls, so no send ever blocks on a full ring: that could deadlock, because rank 0 may
// be waiting for this process to read.
constexpr std::size_t kMaxUnacknowledged = ipc::kRequestsShape.slots / 2;

// How often rank 0's heartbeat is checked.
constexpr Nanoseconds kRound = std::chrono::milliseconds(100);

}  // namespace

EngineInfo EngineClient::open(const EngineOptions& options, const OnLoadState& on_load_state) {
  on_load_state_ = on_load_state;
  auto info = call<EngineInfo>("open", options);
  on_load_state_ = {};
  return info;
}

void EngineClient::submit(std::uint64_t id, const Request& request) {
  const std::lock_guard lock(mutex_);
  const auto [place, inserted] = unfinished_.emplace(id, std::max(request.sampling.n, 1));
  if (!inserted) fail("request ", id, " is not over yet; give another one another number");
  packer_.add(id, request);
  send_full_parts_locked();
}

void EngineClient::abort(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (!unfinished_.contains(id)) return;
  packer_.abort(id);
  send_parts_locked();
}

void EngineClient::send() {
  const std::lock_guard lock(mutex_);
  send_parts_locked();
}

std::size_t EngineClient::unfinished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_.size();
}

std::vector<Update> EngineClient::poll(Nanoseconds limit) {
  try {
    await_updates(limit);
  } catch (const Error&) {
    // Updates received earlier are returned first; the next call meets the same error.
    if (updates_.empty()) throw;
  }
  std::vector<Update> updates = std::exchange(updates_, {});
  const std::lock_guard lock(mutex_);
  for (const Update& update : updates) note_end(update);
  return updates;
}

EngineStatistics EngineClient::statistics() {
  return call<EngineStatistics>("statistics");
}

std::vector<ProcessTrace> EngineClient::take_trace() {
  return call<std::vector<ProcessTrace>>("take_trace");
}

// Receives everything that has arrived; if that is nothing, waits up to the limit.
void EngineClient::await_updates(Nanoseconds limit) {
  const std::int64_t begin = now_ns();
  const Nanoseconds bounded = std::min<Nanoseconds>(limit, std::chrono::hours(24 * 365));
  while (true) {
    send();
    while (receive(Nanoseconds(0))) send();
    if (!updates_.empty()) return;
    const Nanoseconds left = bounded - Nanoseconds(now_ns() - begin);
    if (left <= Nanoseconds(0)) return;
    if (!receive(std::min(left, kRound))) check_life(begin);
  }
}

// Sends all parts that may be sent now.
void EngineClient::send_parts_locked() {
  while (unacknowledged_ < kMaxUnacknowledged) {
    const std::optional<RequestChunk> part = packer_.next();
    if (!part) return;
    send_locked(*part);
  }
}

// Sends full parts only; the rest stays in the packer.
void EngineClient::send_full_parts_locked() {
  while (unacknowledged_ < kMaxUnacknowledged &&
         packer_.waiting_bytes() >= RequestPacker::kPartBytes) {
    send_locked(*packer_.next());
  }
}

void EngineClient::send_locked(const RequestChunk& part) {
  requests_.send("add", part);
  ++unacknowledged_;
}

// Handles one event, if one comes within the limit.
bool EngineClient::receive(Nanoseconds limit) {
  std::optional<ipc::RequestEvent> event = requests_.receive_event(limit);
  if (!event) return false;
  last_heard_ns_ = now_ns();
  handle(std::move(*event));
  return true;
}

void EngineClient::handle(ipc::RequestEvent event) {
  if (event.kind() == ipc::RequestEvent::Kind::push) {
    if (event.name() == "updates") {
      std::vector<Update> received;
      event.read(received, load_);
      std::move(received.begin(), received.end(), std::back_inserter(updates_));
    } else if (event.name() == "load_state" && on_load_state_) {
      on_load_state_(event.get<LoadState>());
    }
  } else if (event.id() == call_id_) {
    reply_.emplace(std::move(event));
  } else {
    event.read();  // an "add" has no result, but may have failed
    const std::lock_guard lock(mutex_);
    --unacknowledged_;
  }
}

// Throws if rank 0 is silent for too long. During a long step it sends nothing, but its heartbeat
// goes on.
void EngineClient::check_life(std::int64_t waiting_since_ns) const {
  const ipc::RankSnapshot rank0 = member_.group().snapshot(0);
  // A starting rank has a time limit of its own, longer than a short step timeout; the supervisor
  // enforces it.
  if (rank0.phase < ipc::Phase::ready) return;
  const Nanoseconds limit = member_.group().step_timeout();
  const std::int64_t last = std::max({rank0.heartbeat_ns, last_heard_ns_, waiting_since_ns});
  if (Nanoseconds(now_ns() - last) <= limit) return;
  throw ipc::PeerTimeout(0, str("no sign of life for ", format_duration(seconds_since(last)),
                                " from ", rank0.describe()));
}

void EngineClient::note_end(const Update& update) {
  if (update.finish == FinishReason::none && update.error.empty()) return;
  const auto found = unfinished_.find(update.request);
  NVLLM_CHECK(found != unfinished_.end(), "an update of request ", update.request,
              ", which is over");
  if (!update.error.empty() || --found->second == 0) unfinished_.erase(found);
}

// Calls a method of rank 0 and waits for its reply.
template <typename Return, typename... Args>
Return EngineClient::call(std::string_view method, const Args&... args) {
  reply_.reset();
  {
    const std::lock_guard lock(mutex_);
    send_parts_locked();
    call_id_ = requests_.send(method, args...);
  }
  const std::int64_t begin = now_ns();
  while (!reply_) {
    if (!receive(kRound)) check_life(begin);
    send();
  }
  call_id_ = 0;
  return std::exchange(reply_, {})->template get<Return>();
}

}  // namespace nvllm::runtime
