// BoxLink: messages between the boxes of a group, over MPI. Calls do not block: the caller decides
// how long to poll.
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
