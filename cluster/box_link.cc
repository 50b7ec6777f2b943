#include "cluster/box_link.h"

#include <utility>

#include "base/error.h"

namespace nvllm::cluster {

BoxLink::BoxLink(Mpi mpi, int box, int boxes) : mpi_(mpi) {
  mpi_.init();
  if (mpi_.rank() != box || mpi_.size() != boxes) {
    fail("MPI says that this is task ", mpi_.rank(), " of ", mpi_.size(), ", and its environment ",
         box, " of ", boxes, "; start all boxes with one mpirun or srun of the same Open MPI");
  }
}

void BoxLink::send(int to, std::vector<std::byte> message) {
  sending_.push_back({.request = nullptr, .box = to, .bytes = std::move(message)});
  Transfer& transfer = sending_.back();
  transfer.request = mpi_.send(transfer.bytes.data(), transfer.bytes.size(), to);
}

std::size_t BoxLink::sending() {
  // In order: a later one that is complete is detected when those before it are.
  while (!sending_.empty() && mpi_.done(sending_.front().request)) sending_.pop_front();
  return sending_.size();
}

bool BoxLink::receive(const OnMessage& on_message) {
  if (receiving_.empty()) {
    MpiStatus status;
    // The first probe may find nothing but makes MPI progress, which may receive it.
    if (!mpi_.probe(status) && !mpi_.probe(status)) return false;
    Transfer& transfer = receiving_.emplace_back();
    transfer.box = status.source;
    transfer.bytes.resize(status.bytes);
    transfer.request = mpi_.receive(transfer.bytes.data(), transfer.bytes.size(), status.source);
  }
  if (!mpi_.done(receiving_.front().request)) return false;
  const Transfer transfer = std::move(receiving_.front());
  receiving_.clear();
  on_message(transfer.box, transfer.bytes);
  return true;
}

}  // namespace nvllm::cluster
