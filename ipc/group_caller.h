// Calls of methods on all ranks at once.
//
//   rank 0:                                             ranks 1..N-1:
//   GroupCaller caller(member, registry);               GroupServer(member, registry).serve();
//   std::vector<int> sums = caller.call<int>("sum", 3);
//   caller.stop();
//
// A call is broadcast, run by rank 0 too, and every rank's reply is collected in rank order. A
// method that fails on some ranks makes the call throw RemoteError; the group stays usable. An
// error that concerns the group itself (GroupAborted, PeerTimeout), wherever it is thrown, leaves
// call() and serve() at once: its process should say so and end.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // Both must outlive it.
  GroupCaller(Member& member, const Registry& local);

  // Calls the method on all ranks. Return is void or what the method returns; the result holds
  // every rank's, in rank order. The arguments must have the very types that the method takes (text
  // of any kind goes as std::string, a span as std::vector).
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
  // call() or check() throws the RemoteError; the next call() at the latest.
  template <typename... Args>
  void cast(std::string_view method, const Args&... args) {
    begin(Kind::cast);
    write_call(request_, method, args...);
    broadcast(method);
  }

  // Throws what casts have failed with, as far as it is known.
  void check();
  // Of the last call or cast: what the others were sent.
  std::size_t last_message_bytes() const { return request_.bytes().size(); }

  // Makes all ranks leave serve().
  void stop();

  enum class Kind : std::uint8_t { call, cast, stop };

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
  // Both must outlive it.
  GroupServer(Member& member, const Registry& registry);

  // Runs what rank 0 calls until it says stop. Between calls it waits without a time limit.
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

}  // namespace nvllm::ipc
