// The Communicator of CPU ranks: tasks on CPU streams that move data through shared memory.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "ipc/collective/arguments.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/shm/shm_exchange.h"

namespace nvllm::ipc {

// One thread at a time may enqueue; it may use several streams alternately. Must outlive their
// work, and the graphs captured with it.
class ShmCommunicator final : public Communicator {
 public:
  // Connects the ranks of this rank's stage (CommunicatorOptions::stages).
  explicit ShmCommunicator(Member& member, int stages = 1);

  int rank() const override { return site_.rank; }
  int size() const override { return site_.size; }
  std::string name() const override { return "shm"; }

  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;
  void wait(Stream& stream) override;
  void wait(const Event& event) override;
  void abort(const std::string& reason) override;

 private:
  // Adds a collective to the stream. `text` is shown in this rank's record while it runs.
  void enqueue(Stream& stream, std::string text, std::function<void()> collective);
  // Runs in the stream's thread.
  void run(const std::string& text, const std::function<void()>& collective);

  Member& member_;
  std::mutex mutex_;  // streams used alternately have threads of their own
  ShmExchange exchange_;
  const CallSite site_;
};

}  // namespace nvllm::ipc
