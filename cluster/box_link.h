// Messages between the boxes of a group over Open MPI, which is loaded at runtime. Mpi: the few
// functions of it that are needed; BoxLink: messages of any length, without blocking.
//
// The library is opened by name, so that one box needs no MPI and starts just as fast, and one
// build serves machines with and without it. The declarations follow the ABI of libmpi.so.40,
// shared by Open MPI 4.1 and 5.0; MPICH's differs, and is not supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nvllm::cluster {

struct MpiStatus {  // MPI_Status of Open MPI
  int source = 0, tag = 0, error = 0, cancelled = 0;
  std::size_t bytes = 0;
};
static_assert(sizeof(MpiStatus) == 24);

// All functions except load() throw an Error with MPI's text. Used by one thread.
class Mpi {
 public:
  using Request = void*;

  // Opens the library of the MPI that has started this process, otherwise the system's.
  static Mpi load();

  void init();
  void finalize();
  int rank();
  int size();

  Request send(const void* data, std::size_t bytes, int to);
  Request receive(void* data, std::size_t bytes, int from);
  // Whether it has completed; if so, the request is freed.
  bool done(Request& request);
  // Whether a message is available; its source and size.
  bool probe(MpiStatus& status);

 private:
  Mpi() = default;
  void check(int code, const char* what);

  template <typename Function>
  static void find(void* library, const char* name, Function*& function);

  using Comm = void*;
  using Datatype = void*;
  Comm world_ = nullptr;
  Datatype byte_ = nullptr;
  void* errors_return_ = nullptr;
  int (*init_thread_)(int*, char***, int, int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*set_errhandler_)(Comm, void*) = nullptr;
  int (*rank_)(Comm, int*) = nullptr;
  int (*size_)(Comm, int*) = nullptr;
  int (*isend_)(const void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*irecv_)(void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*test_)(Request*, int*, MpiStatus*) = nullptr;
  int (*iprobe_)(int, int, Comm, int*, MpiStatus*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*version_)(char*, int*) = nullptr;
};

// Calls do not block: the caller decides how long to poll. Messages from one box to another arrive
// in the order in which they were sent. Used by one thread.
class BoxLink {
 public:
  using Bytes = std::span<const std::byte>;
  using OnMessage = std::function<void(int from, Bytes message)>;

  // Joins the others: returns when all boxes have joined. An Error if this is not box `box` of
  // `boxes`.
  BoxLink(Mpi mpi, int box, int boxes);

  // Takes ownership of the message. It is in flight when this returns.
  void send(int to, std::vector<std::byte> message);
  // Number of messages in flight.
  std::size_t sending();
  // Calls on_message for a message that has been received completely; false: there is none.
  bool receive(const OnMessage& on_message);
  // Leaves: returns when all boxes do. No message may be in flight.
  void leave() { mpi_.finalize(); }

 private:
  struct Transfer {
    Mpi::Request request = nullptr;
    int box = 0;
    std::vector<std::byte> bytes;
  };

  Mpi mpi_;
  std::deque<Transfer> sending_;
  std::vector<Transfer> receiving_;  // at most one
};

}  // namespace nvllm::cluster
