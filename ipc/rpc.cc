#include "ipc/rpc.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "ipc/ring.h"

namespace nvllm::ipc {
namespace {

// The activity in the record: "call echo".
std::string activity(std::string_view method) {
  return str("call ", method);
}

// By this a rank's progress is recognized: the last rank of the chain of ranks that wait for each
// other, and what that one has done.
struct Standing {
  int rank;
  std::uint64_t progress, collective;
  bool operator==(const Standing&) const = default;
};

// The chain from `rank` ends at `self`, too: whoever waits for this process waits for its device.
Standing end_of_chain(const Group& group, int rank, int self) {
  RankSnapshot record = group.snapshot(rank);
  for (int hops = 0; hops < group.size() && record.rank != self && record.waits_for >= 0; ++hops) {
    record = group.snapshot(record.waits_for);
  }
  return {record.rank, record.progress, record.collective.number};
}

// The next message of the rank. Its device may have work for longer than the step timeout before
// the rank can reply: while there is progress, the wait begins again. This process reports none
// meanwhile, because two ranks that wait for each other would take that for progress.
Bytes receive_reply(RingReader& reader, const Member& member, int rank) {
  Standing last = end_of_chain(member.group(), rank, member.rank());
  while (true) {
    try {
      return reader.receive();
    } catch (const PeerTimeout&) {
      const Standing now = end_of_chain(member.group(), rank, member.rank());
      if (now == last) throw;
      last = now;
    }
  }
}

}  // namespace

// --- GroupCaller ---

GroupCaller::GroupCaller(Member& member, const Registry& local)
    : member_(member), local_(local), calls_(member, calls_ring(member)) {
  for (int rank = 1; rank < member.size(); ++rank) {
    readers_.emplace_back(member, replies_ring(member, rank));
  }
}

void GroupCaller::begin(Kind kind) {
  check();
  request_.clear();
  request_(kind, number_ + 1);
}

void GroupCaller::send() {
  ++number_;
  member_.set_step(number_);
  if (member_.size() > 1) calls_.send(request_.bytes());
}

// Runs the request on this rank from its serialized form, as the others do.
void GroupCaller::run_here() {
  ArchiveReader call(request_.bytes());
  call.get<Kind>();
  call.get<std::uint64_t>();
  own_reply_.clear();
  if (local_.dispatch(call, own_reply_)) return;
  ArchiveReader reply(own_reply_.bytes());
  reply.get<bool>();
  failures_.push_back({member_.rank(), reply.get<std::string>()});
}

void GroupCaller::round_trip(std::string_view method) {
  const Member::ActivityScope doing(member_, Member::Activity::call, activity(method));
  send();
  run_here();
  replies_.clear();
  replies_.emplace_back(own_reply_.bytes());
  replies_.back().get<bool>();
  for (int rank = 1; rank < member_.size(); ++rank) collect(rank);
  throw_failures();
}

void GroupCaller::broadcast(std::string_view method) {
  const Member::ActivityScope doing(member_, Member::Activity::call, activity(method));
  send();
  run_here();
}

void GroupCaller::collect(int rank) {
  RingReader& reader = readers_[static_cast<std::size_t>(rank - 1)];
  while (true) {
    ArchiveReader reply(receive_reply(reader, member_, rank));
    const bool of_this_call = reply.get<std::uint64_t>() == number_;
    if (!reply.get<bool>()) failures_.push_back({rank, reply.get<std::string>()});
    if (!of_this_call) continue;  // from an earlier cast, which failed
    replies_.push_back(reply);
    return;
  }
}

void GroupCaller::check() {
  for (int rank = 1; rank < member_.size(); ++rank) {
    RingReader& reader = readers_[static_cast<std::size_t>(rank - 1)];
    while (const std::optional<Bytes> message = reader.try_receive()) {
      ArchiveReader reply(*message);
      reply.get<std::uint64_t>();
      if (!reply.get<bool>()) failures_.push_back({rank, reply.get<std::string>()});
    }
  }
  throw_failures();
}

void GroupCaller::throw_failures() {
  if (failures_.empty()) return;
  const std::vector<Failure> failures = std::exchange(failures_, {});
  // Usually all ranks have the same reason: then only the first rank's is reported.
  constexpr std::size_t kMaxText = 200;
  std::string message;
  std::size_t told = 0;
  for (const Failure& failure : failures) {
    if (told > 0 && message.size() + failure.message.size() > kMaxText) break;
    message += str(told == 0 ? "" : "; ", "rank ", failure.rank, ": ", failure.message);
    ++told;
  }
  if (told < failures.size())
    message += str("; and ", failures.size() - told, " more ranks failed");
  throw RemoteError(failures.front().rank, message);
}

void GroupCaller::stop() {
  request_.clear();
  request_(Kind::stop, number_ + 1);
  send();
}

// --- GroupServer ---

GroupServer::GroupServer(Member& member, const Registry& registry)
    : member_(member),
      registry_(registry),
      calls_(member, calls_ring(member)),
      replies_(member, replies_ring(member, member.rank())),
      spin_(Member::kSpin),
      // On machines with few cores, the work itself needs them.
      longest_spin_(std::thread::hardware_concurrency() >= 4 ? std::chrono::milliseconds(5)
                                                             : Member::kSpin) {}

// While calls arrive regularly, the next one arrives after about as long as the last one did:
// spinning for that long pays off. If the last one took longer than the limit, spinning is useless.
Bytes GroupServer::next_call() {
  const std::int64_t start = now_ns();
  const Bytes call = calls_.receive_idle(spin_);
  const Nanoseconds waited(now_ns() - start);
  spin_ =
      waited > longest_spin_ ? Member::kSpin : std::clamp(2 * waited, Member::kSpin, longest_spin_);
  return call;
}

void GroupServer::serve() {
  while (true) {
    ArchiveReader call(next_call());
    const auto kind = call.get<GroupCaller::Kind>();
    const auto number = call.get<std::uint64_t>();
    if (kind == GroupCaller::Kind::stop) return;
    run(kind, number, call);
  }
}

void GroupServer::run(GroupCaller::Kind kind, std::uint64_t number, ArchiveReader& call) {
  member_.set_step(number);
  ArchiveReader peek = call;
  const Member::ActivityScope doing(member_, Member::Activity::call,
                                    activity(peek.get<std::string>()));
  reply_.clear();
  reply_(number);
  const bool ok = registry_.dispatch(call, reply_);
  if (kind == GroupCaller::Kind::call || !ok) replies_.send(reply_.bytes());
}

RequestEvent::RequestEvent(Bytes message)
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

// --- RequestClient ---

RequestClient::RequestClient(Member& launcher)
    : requests_(launcher, requests_ring(launcher)), results_(launcher, results_ring(launcher)) {}

std::optional<RequestEvent> RequestClient::receive_event(Nanoseconds limit) {
  const std::optional<Bytes> message =
      limit <= Nanoseconds(0) ? results_.try_receive() : results_.receive_for(limit);
  if (!message) return {};
  return RequestEvent(*message);
}

// --- RequestServer ---

RequestServer::RequestServer(Member& rank0)
    : member_(rank0),
      requests_(rank0, requests_ring(rank0)),
      results_(rank0, results_ring(rank0)) {}

void RequestServer::serve(const Registry& registry) {
  while (serve_next(registry)) continue;
}

bool RequestServer::serve_next(const Registry& registry) {
  const std::optional<Bytes> request = requests_.receive_until_stop();
  if (request) run(registry, *request);
  return request.has_value();
}

bool RequestServer::serve_next_for(const Registry& registry, Nanoseconds limit) {
  const std::optional<Bytes> request = requests_.receive_for(limit);
  if (request) run(registry, *request);
  return request.has_value();
}

void RequestServer::serve_pending(const Registry& registry) {
  while (const std::optional<Bytes> request = requests_.try_receive()) run(registry, *request);
}

void RequestServer::run(const Registry& registry, Bytes request) {
  dispatch(registry, request);
  results_.send_until_stop(reply_.bytes());
}

void RequestServer::dispatch(const Registry& registry, Bytes request) {
  ArchiveReader call(request);
  const auto id = call.get<std::uint64_t>();
  ArchiveReader peek = call;
  const Member::ActivityScope doing(member_, Member::Activity::call,
                                    str("request ", peek.get<std::string>()));
  reply_.clear();
  reply_(RequestEvent::Kind::reply, id);
  registry.dispatch(call, reply_);
}

}  // namespace nvllm::ipc
