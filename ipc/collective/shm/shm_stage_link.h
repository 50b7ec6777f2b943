// The StageLink of CPU ranks: tasks on CPU streams that move data through shared memory. GPU ranks
// send their results by it.
//
// The sender's part of the staging memory is two slots. Piece n, counted from 0, goes through slot
// n % 2: the sender waits until n - 1 pieces have been taken, writes, and publishes n + 1 in its
// flag; the receiver waits for that, copies, and publishes n + 1 in its own. Nobody else reads or
// writes there. Where the receiver is on another box, the link copies the piece to the same slot
// there before it publishes n + 1 there, and brings back what the receiver publishes
// (ipc/mirror.h); so the sender's slot is free as late as it would be on one box.
//
// A stage may compute for longer than the step timeout while the next one waits. So a wait that
// runs out looks whom its peer waits for, and that one for whom, to the end: if that rank has got
// on since the wait began, the wait begins again; else that rank is named.
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
  // device: that what is sent is computed on; not the CPU: only results are sent.
  ShmStageLink(Member& member, int stages, DeviceKind device = DeviceKind::cpu);

  void send(TensorView data, Stream& stream) override;
  void receive(TensorView data, Stream& stream) override;
  void send_result(TensorView data, const Event& ready) override;
  void drop_results() override;
  void receive_result(void* to, std::size_t bytes) override;
  bool result_ready() const override { return is_sent(last_stage_); }

 private:
  // How far a rank has come.
  struct Standing {
    int rank = 0;
    std::uint64_t progress = 0, collectives = 0, step = 0;
    bool operator==(const Standing&) const = default;
  };

  // Adds a task to the stream. `text` is what this rank's record says while it runs.
  void enqueue(Stream& stream, std::string text, std::function<void()> task);
  // Puts all of it into slots, piece by piece. wait_for_room: returns when one is free; false: the
  // rest is left out.
  void put(const std::byte* data, std::size_t bytes, int to, Doorbell& bell_of_receiver,
           const std::function<bool()>& wait_for_room);
  void take(std::byte* data, std::size_t bytes, int from,
            const std::function<void()>& wait_for_piece);

  bool is_taken(int by) const;   // so much that a slot is free
  bool is_sent(int from) const;  // a piece that has not been taken
  bool await_room(int taker);
  void await_piece(int sender);
  // Without a limit: rank 0 may wait for its launcher, which may read results when it likes. The
  // rank's bell wakes the thread of the other stream, so this one looks now and then.
  bool await_room_for_result();
  // Of a GPU, whose events cannot be waited for together with the group. False: it is not wanted
  // any more.
  bool await_computed(const Event& ready) const;
  void await_result();
  // Who is to blame when nothing has changed for a step timeout.
  int culprit_of_results() const;
  // Whom the rank waits for in the end, through others that wait; itself, if for nobody.
  Standing end_of_chain(int rank) const;
  [[noreturn]] void fail_timed_out(int culprit, const char* what) const;
  std::byte* slot(int of, std::uint64_t piece) const;

  Member& member_;
  const DeviceKind device_;
  const int stages_;
  const int rank_;
  const int next_, previous_;  // of the neighbouring stages; StageMap::kNobody: none
  const int last_stage_;       // its first rank
  const std::size_t slot_bytes_;
  std::atomic<bool> dropping_ = false;
  // Pieces. A rank of the last stage sends results alone, so each has one thread.
  std::uint64_t sent_ = 0, taken_ = 0;
  std::unique_ptr<cpu::Stream> results_;  // of the rank that sends them
};

}  // namespace nvllm::ipc
