// BoxLink: messages between the boxes of a group, over MPI. Nothing waits: who calls decides how
// long to go on.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "cluster/mpi.h"

namespace nvllm::cluster {

// Used by one thread. Messages from one box to another arrive in the order in which they were sent.
class BoxLink {
 public:
  using Bytes = std::span<const std::byte>;
  using OnMessage = std::function<void(int from, Bytes message)>;

  // Joins the others: returns when all have come so far. An Error if this is not box `box` of
  // `boxes`.
  BoxLink(Mpi mpi, int box, int boxes);

  // Takes the message over. It is on its way when this returns, not yet there.
  void send(int to, std::vector<std::byte> message);
  // How many messages are on their way.
  std::size_t sending();
  // Calls on_message for a message that has come whole; false: none has.
  bool receive(const OnMessage& on_message);
  // Leaves the others: returns when all do. No message is on its way.
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
