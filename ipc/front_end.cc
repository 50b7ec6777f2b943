#include "ipc/front_end.h"

#include <utility>

#include "ipc/channels.h"

namespace nvllm::ipc {
namespace {

// How long the launcher waits between two looks at its children.
constexpr Nanoseconds kSupervise = std::chrono::milliseconds(10);

}  // namespace

FrontEvent::FrontEvent(Bytes message)
    : bytes_(message.begin(), message.end()), values_(bytes_), kind_(values_.get<Kind>()) {
  switch (kind_) {
    case Kind::reply:
      id_ = values_.get<std::uint64_t>();
      good_ = values_.get<bool>();
      if (!good_) error_ = values_.get<std::string>();
      return;
    case Kind::push: name_ = values_.get<std::string>(); return;
  }
  fail("message of rank 0 is of kind ", static_cast<int>(kind_), ", which does not exist");
}

// --- FrontEnd ---

FrontEnd::FrontEnd(Member& launcher, std::function<void()> supervise)
    : member_(launcher),
      supervise_(std::move(supervise)),
      requests_(launcher, requests_ring(launcher)),
      results_(launcher, results_ring(launcher)) {}

std::optional<FrontEvent> FrontEnd::receive_event(Nanoseconds limit) {
  if (!kept_.empty()) {
    FrontEvent event = std::move(kept_.front());
    kept_.pop_front();
    return event;
  }
  const std::optional<Bytes> message =
      limit <= Nanoseconds(0) ? results_.try_receive() : results_.receive_for(limit);
  if (!message) return {};
  return FrontEvent(*message);
}

FrontEvent FrontEnd::await_reply(std::uint64_t id) {
  const Nanoseconds limit = member_.group().step_timeout();
  std::int64_t last_heard = now_ns();
  while (true) {
    if (const std::optional<Bytes> message = results_.receive_for(kSupervise)) {
      FrontEvent event(*message);
      if (event.kind() == FrontEvent::Kind::reply && event.id() == id) return event;
      kept_.push_back(std::move(event));
      last_heard = now_ns();
    }
    if (supervise_) supervise_();
    if (now_ns() - last_heard > limit.count()) {
      throw PeerTimeout(0, str("no reply for ", format_duration(seconds_since(last_heard)),
                               " from ", member_.group().snapshot(0).describe()));
    }
  }
}

// --- FrontDesk ---

FrontDesk::FrontDesk(Member& rank0)
    : member_(rank0),
      requests_(rank0, requests_ring(rank0)),
      results_(rank0, results_ring(rank0)) {}

void FrontDesk::serve(const Registry& registry) {
  while (serve_next(registry)) continue;
}

bool FrontDesk::serve_next(const Registry& registry) {
  const std::optional<Bytes> request = requests_.receive_until_stop();
  if (request) run(registry, *request);
  return request.has_value();
}

bool FrontDesk::serve_next_for(const Registry& registry, Nanoseconds limit) {
  const std::optional<Bytes> request = requests_.receive_for(limit);
  if (request) run(registry, *request);
  return request.has_value();
}

void FrontDesk::serve_pending(const Registry& registry) {
  while (const std::optional<Bytes> request = requests_.try_receive()) run(registry, *request);
}

void FrontDesk::run(const Registry& registry, Bytes request) {
  dispatch(registry, request);
  results_.send_until_stop(reply_.bytes());
}

void FrontDesk::dispatch(const Registry& registry, Bytes request) {
  ArchiveReader call(request);
  const auto id = call.get<std::uint64_t>();
  ArchiveReader peek = call;
  const Member::Doing doing(member_, Member::Activity::call,
                            str("request ", peek.get<std::string>()));
  reply_.clear();
  reply_(FrontEvent::Kind::reply, id);
  registry.dispatch(call, reply_);
}

}  // namespace nvllm::ipc
