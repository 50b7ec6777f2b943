// The launcher's side and rank 0's side of the two rings between them.
//
//   launcher:  FrontEnd front(member, [&] { supervisor.check(); });     rank 0:  FrontDesk
//   desk(member);
//              auto table = front.call<Table>("selftest", 5); desk.serve(registry); front.stop();
//              from within a method:      desk.push("progress", 0.5);
//
// Long work is sent and followed by its events:
//              const std::uint64_t id = front.send("generate", prompt);
//              while (auto event = front.receive_event(limit)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ipc/archive.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/ring.h"

namespace nvllm::ipc {

// A method that the launcher called on rank 0 failed there.
class RequestError : public Error {
 public:
  using Error::Error;
};

// What rank 0 says: the reply to a request, or something it pushed.
class FrontEvent {
 public:
  enum class Kind : std::uint8_t { reply, push };

  // A message of the results ring; takes a copy of its bytes.
  explicit FrontEvent(Bytes message);
  FrontEvent(FrontEvent&&) = default;  // not copyable: values_ looks into bytes_
  FrontEvent& operator=(FrontEvent&&) = default;

  Kind kind() const { return kind_; }
  std::uint64_t id() const { return id_; }             // reply: of the request
  const std::string& name() const { return name_; }    // push: "progress"
  bool good() const { return good_; }                  // reply: the method did not fail
  const std::string& error() const { return error_; }  // reply: what it failed with

  // The values: the method's result, or what was pushed. Throws RequestError if the method failed.
  template <typename... T>
  void read(T&... values) const {
    if (!good_) throw RequestError(error_);
    ArchiveReader reader = values_;
    reader(values...);
    reader.finish();
  }
  template <typename T>
  T get() const {
    T value{};
    read(value);
    return value;
  }

 private:
  std::vector<std::byte> bytes_;
  ArchiveReader values_;  // of bytes_, which stay where they are when this object moves
  Kind kind_;
  std::uint64_t id_ = 0;
  std::string name_;
  bool good_ = true;
  std::string error_;
};

// Used by the launcher's main thread.
class FrontEnd {
 public:
  // `supervise` is called every few milliseconds while a call() waits, and may throw to end it.
  explicit FrontEnd(Member& launcher, std::function<void()> supervise = {});

  // Calls a method of rank 0 and waits for its reply. Throws RequestError if it fails there,
  // PeerTimeout if nothing at all has come from rank 0 for the step timeout. Pushed events are kept
  // for receive_event().
  template <typename Return, typename... Args>
  Return call(std::string_view method, const Args&... args) {
    const FrontEvent reply = await_reply(send(method, args...));
    if constexpr (std::is_void_v<Return>) {
      reply.read();
    } else {
      return reply.get<Return>();
    }
  }

  // Asks for a method and returns the id that its reply will have.
  template <typename... Args>
  std::uint64_t send(std::string_view method, const Args&... args) {
    request_.clear();
    request_(++last_id_);
    write_call(request_, method, args...);
    requests_.send(request_.bytes());
    return last_id_;
  }

  // The next reply or pushed event, in the order in which rank 0 sent them; nothing if there is
  // none within the limit. With a limit of 0 it only looks.
  std::optional<FrontEvent> receive_event(Nanoseconds limit);

  // Makes serve() return once the request it is working on is done.
  void stop() { member_.group().request_stop(); }

 private:
  FrontEvent await_reply(std::uint64_t id);

  Member& member_;
  std::function<void()> supervise_;
  RingWriter requests_;
  RingReader results_;
  ArchiveWriter request_;
  std::deque<FrontEvent> kept_;  // came while a call waited for something else
  std::uint64_t last_id_ = 0;
};

// Used by rank 0's main thread.
class FrontDesk {
 public:
  explicit FrontDesk(Member& rank0);

  // Runs the launcher's requests until it wants the group to stop. Waits without a time limit.
  void serve(const Registry& registry);
  // Waits for the next one, without a time limit, and runs it. False: the group is to stop.
  bool serve_next(const Registry& registry);
  // The same, for so long at most. False: none came.
  bool serve_next_for(const Registry& registry, Nanoseconds limit);
  // Runs those that have arrived, without waiting: for a loop that has work of its own.
  void serve_pending(const Registry& registry);
  bool stop_requested() const { return member_.group().stop_requested(); }

  // Tells the launcher something, also while a request runs. A launcher that is slow to read is waited
  // for, as long as it takes: nobody's time is up because the user is reading.
  template <typename... T>
  void push(std::string_view name, const T&... values) {
    push_.clear();
    push_(FrontEvent::Kind::push, name, values...);
    results_.send_until_stop(push_.bytes());
  }

 private:
  void run(const Registry& registry, Bytes request);
  void dispatch(const Registry& registry, Bytes request);

  Member& member_;
  RingReader requests_;
  RingWriter results_;
  ArchiveWriter push_;
  ArchiveWriter reply_;
};

}  // namespace nvllm::ipc
