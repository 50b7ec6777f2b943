// Remote procedure calls between processes of the group.
//
// GroupCaller and GroupServer: rank 0 calls a method on all ranks at once.
//
//   rank 0:                                             ranks 1..N-1:
//   GroupCaller caller(member, registry);               GroupServer(member, registry).serve();
//   std::vector<int> sums = caller.call<int>("sum", 3);
//   caller.stop();
//
// A call is broadcast, run by rank 0 too, and every rank's reply is collected in rank order. A
// method that fails on some ranks makes the call throw RemoteError; the group stays usable. An
// error that concerns the group itself (GroupAborted, PeerTimeout), wherever it is thrown, is
// rethrown by call() and serve(); the process should then report it and exit.
//
// RequestClient and RequestServer: the launcher calls a method on rank 0, through the requests ring
// and the results ring.
//
//   launcher:  RequestClient client(member);
//              const std::uint64_t id = client.send("selftest", 5);
//              while (auto event = client.receive_event(limit)) ...   // the reply has this id
//   rank 0:    RequestServer server(member);  server.serve(registry);
//              server.push("progress", 0.5);                          // from within a method
#pragma once

#include <cstddef>
#include <cstdint>
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

// A method failed on a rank. The message names every rank it failed on: "rank 2: ...".
class RemoteError : public Error {
 public:
  RemoteError(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }  // the first of them

 private:
  int rank_;
};

// Used by rank 0's main thread.
class GroupCaller {
 public:
  // Both arguments must outlive it.
  GroupCaller(Member& member, const Registry& local);

  // Calls the method on all ranks. Return is void or the method's return type; the result holds
  // every rank's value, in rank order. The argument types must match the method's exactly (text of
  // any kind counts as std::string, a span as std::vector).
  template <typename Return, typename... Args>
  auto call(std::string_view method, const Args&... args) {
    begin(Kind::call);
    write_call(request_, method, args...);
    round_trip(method);
    if constexpr (!std::is_void_v<Return>) {
      std::vector<Return> results;
      for (ArchiveReader& reply : replies_) results.push_back(decode<Return>(reply, method));
      return results;
    }
  }

  // Calls the method on all ranks without waiting for the others. If it fails somewhere, a later
  // call() or check() throws the RemoteError, at the latest the next call().
  template <typename... Args>
  void notify(std::string_view method, const Args&... args) {
    begin(Kind::notify);
    write_call(request_, method, args...);
    broadcast(method);
  }

  // Throws a RemoteError if a cast is known to have failed.
  void check();
  // Size of the last call or cast, as sent to the others.
  std::size_t last_message_bytes() const { return request_.bytes().size(); }

  // Makes all ranks leave serve().
  void stop();

  enum class Kind : std::uint8_t { call, notify, stop };

 private:
  struct Failure {
    int rank;
    std::string message;
  };

  void begin(Kind kind);
  void send();
  void run_here();
  void round_trip(std::string_view method);
  void broadcast(std::string_view method);
  void collect(int rank);
  void throw_failures();

  template <typename Return>
  Return decode(ArchiveReader& reply, std::string_view method) {
    return with_context(method, [&] {
      Return result = reply.get<Return>();
      reply.finish();
      return result;
    });
  }

  Member& member_;
  const Registry& local_;
  RingWriter calls_;
  std::vector<RingReader> readers_;  // of rank 1, 2, ...
  ArchiveWriter request_;
  ArchiveWriter own_reply_;
  std::vector<ArchiveReader> replies_;  // of the running call, by rank; views of the rings
  std::vector<Failure> failures_;
  std::uint64_t number_ = 0;  // of the last call or cast; also the group's step
};

// Used by the main thread of ranks 1..N-1.
class GroupServer {
 public:
  // Both arguments must outlive it.
  GroupServer(Member& member, const Registry& registry);

  // Runs rank 0's calls until its stop(). Between calls it waits without a time limit.
  void serve();

 private:
  Bytes next_call();
  void run(GroupCaller::Kind kind, std::uint64_t number, ArchiveReader& call);

  Member& member_;
  const Registry& registry_;
  RingReader calls_;
  RingWriter replies_;
  ArchiveWriter reply_;
  Nanoseconds spin_;
  Nanoseconds longest_spin_;
};

// --- Requests of the launcher to rank 0 ---

// A method that the launcher called on rank 0 failed there.
class RequestError : public Error {
 public:
  using Error::Error;
};

// A message of rank 0 to the launcher: the reply to a request, or a pushed event.
class RequestEvent {
 public:
  enum class Kind : std::uint8_t { reply, push };

  // Copies the bytes of a message of the results ring.
  explicit RequestEvent(Bytes message);
  RequestEvent(RequestEvent&&) = default;  // not copyable: values_ looks into bytes_
  RequestEvent& operator=(RequestEvent&&) = default;

  Kind kind() const { return kind_; }
  std::uint64_t id() const { return id_; }             // reply: of the request
  const std::string& name() const { return name_; }    // push: "progress"
  bool good() const { return good_; }                  // reply: whether the method succeeded
  const std::string& error() const { return error_; }  // reply: its error text

  // Reads the values: the method's result, or the pushed ones. Throws RequestError if the method
  // failed.
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
  ArchiveReader values_;  // of bytes_, whose address does not change when this object is moved
  Kind kind_;
  std::uint64_t id_ = 0;
  std::string name_;
  bool good_ = true;
  std::string error_;
};

// Used by the launcher's main thread.
class RequestClient {
 public:
  explicit RequestClient(Member& launcher);

  // Calls a method of rank 0 and returns the id that its reply will have.
  template <typename... Args>
  std::uint64_t send(std::string_view method, const Args&... args) {
    request_.clear();
    request_(++last_id_);
    write_call(request_, method, args...);
    requests_.send(request_.bytes());
    return last_id_;
  }

  // The next reply or pushed event, in the order in which rank 0 sent them; nothing if none arrives
  // within the limit. A limit of 0 does not wait.
  std::optional<RequestEvent> receive_event(Nanoseconds limit);

 private:
  RingWriter requests_;
  RingReader results_;
  ArchiveWriter request_;
  std::uint64_t last_id_ = 0;
};

// Used by rank 0's main thread.
class RequestServer {
 public:
  explicit RequestServer(Member& rank0);

  // Runs the launcher's requests until it requests a stop. Waits without a time limit.
  void serve(const Registry& registry);
  // Waits for the next request, without a time limit, and runs it. False: a stop was requested.
  bool serve_next(const Registry& registry);
  // Waits for the next request up to the limit, and runs it. False: none arrived.
  bool serve_next_for(const Registry& registry, Nanoseconds limit);
  // Runs requests that have arrived, without waiting: for a loop that has other work.
  void serve_pending(const Registry& registry);
  bool stop_requested() const { return member_.group().stop_requested(); }

  // Sends the launcher an event, also while a request runs. Waits without a time limit if the
  // launcher is slow to read: the user may have paused its output.
  template <typename... T>
  void push(std::string_view name, const T&... values) {
    push_.clear();
    push_(RequestEvent::Kind::push, name, values...);
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
