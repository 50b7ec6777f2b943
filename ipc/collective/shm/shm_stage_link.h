// The StageLink of CPU ranks: tasks on CPU streams that copy data through shared memory. GPU ranks
// use it for results.
//
// The sender's part of the staging memory has two slots. Piece n, counted from 0, uses slot n % 2:
// the sender waits until n - 1 pieces have been taken, writes, and publishes n + 1 in its flag; the
// receiver waits for that, copies, and publishes n + 1 in its own flag. No other rank accesses
// these slots. If the receiver is on another box, the link copies the piece to the same slot there
// before it publishes n + 1 there, and returns what the receiver publishes (ipc/mirror.h); so the
// sender's slot becomes free under the same condition as on one box.
//
// A stage may compute for longer than the step timeout while the next one waits. So when a wait
// times out, it follows the chain of ranks that wait for each other to its end: if that rank has
// made progress since the wait began, the wait starts again; otherwise that rank is named as the
// culprit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cpu/stream.h"
#include "ipc/collective/stage_link.h"

namespace nvllm::ipc {

class ShmStageLink final : public StageLink {
 public:
  // device: on which the sent data is computed; if not the CPU, only results are sent.
  ShmStageLink(Member& member, int stages, DeviceKind device = DeviceKind::cpu);

  void send(TensorView data, Stream& stream) override;
  void receive(TensorView data, Stream& stream) override;
  void send_result(TensorView data, const Event& ready) override;
  void drop_results() override;
  void receive_result(void* to, std::size_t bytes) override;
  bool result_ready() const override { return is_sent(last_stage_); }

 private:
  // A rank's progress.
  struct Standing {
    int rank = 0;
    std::uint64_t progress = 0, collectives = 0, step = 0;
    bool operator==(const Standing&) const = default;
  };

  // Adds a task to the stream. `text` is shown in this rank's record while it runs.
  void enqueue(Stream& stream, std::string text, std::function<void()> task);
  // Copies all data into slots, piece by piece. wait_for_room: returns when one is free; false: the
  // rest is dropped.
  void put(const std::byte* data, std::size_t bytes, int to, Doorbell& bell_of_receiver,
           const std::function<bool()>& wait_for_room);
  void take(std::byte* data, std::size_t bytes, int from,
            const std::function<void()>& wait_for_piece);

  bool is_taken(int by) const;   // whether a slot is free
  bool is_sent(int from) const;  // whether a piece has not been taken
  bool await_room(int taker);
  void await_piece(int sender);
  // Without a time limit: rank 0 may be waiting for its launcher, which may read results at any
  // time. The rank's bell wakes the thread of the other stream, so this one polls.
  bool await_room_for_result();
  // For GPUs, whose events cannot be waited for together with the group. False: the result is no
  // longer wanted.
  bool await_computed(const Event& ready) const;
  void await_result();
  // The culprit if nothing has changed for a step timeout.
  int culprit_of_results() const;
  // The last rank in the chain of ranks that wait for each other, starting at `rank`.
  Standing end_of_chain(int rank) const;
  [[noreturn]] void fail_timed_out(int culprit, const char* what) const;
  std::byte* slot(int of, std::uint64_t piece) const;

  Member& member_;
  const DeviceKind device_;
  const int stages_;
  const int rank_;
  const int next_, previous_;  // ranks in the neighbouring stages; StageMap::kNobody: none
  const int last_stage_;       // first rank of the last stage
  const std::size_t slot_bytes_;
  std::atomic<bool> dropping_ = false;
  // Counted in pieces. Ranks of the last stage send results only, so each counter is used by one
  // thread.
  std::uint64_t sent_ = 0, taken_ = 0;
  std::unique_ptr<cpu::Stream> results_;  // on the rank that sends results
};

}  // namespace nvllm::ipc
