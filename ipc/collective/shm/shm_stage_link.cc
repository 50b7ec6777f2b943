#include "ipc/collective/shm/shm_stage_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "device/cpu/stream.h"
#include "ipc/collective/arguments.h"
#include "ipc/collective/culprit.h"
#include "ipc/rank_memory_map.h"

namespace nvllm::ipc {
namespace {

std::uint64_t read(const Member& member, int rank, std::size_t flag) {
  return member.flags(rank)[flag].value.load(std::memory_order_seq_cst);
}

}  // namespace

ShmStageLink::ShmStageLink(Member& member, int stages, DeviceKind device)
    : member_(member),
      device_(device),
      stages_(stages),
      rank_(member.rank()),
      next_(StageMap{member.size(), stages}.next_of(rank_)),
      previous_(StageMap{member.size(), stages}.previous_of(rank_)),
      last_stage_(StageMap{member.size(), stages}.last_stage()),
      slot_bytes_(link_bytes(member, stages) / kStageSlots) {
  const std::size_t staging = member.staging(rank_).size();
  if (slot_bytes_ == 0)
    fail("staging_bytes ", staging, " is too small for pipeline stages; use 512");
  if (rank_ == last_stage_) {
    results_ = std::make_unique<cpu::Stream>("results", Nanoseconds(0));
  }
}

std::byte* ShmStageLink::slot(int of, std::uint64_t piece) const {
  return stage_slot(member_, stages_, of, piece).data();
}

void ShmStageLink::enqueue(Stream& stream, std::string text, std::function<void()> task) {
  member_.check_abort();
  cpu::stream(stream).submit([this, text = std::move(text), task = std::move(task)] {
    member_.check_abort();
    const Member::ActivityScope doing(member_, Member::Activity::collective, text);
    try {
      task();
    } catch (const GroupAborted&) {
      throw;
    } catch (const Error& error) {
      member_.group().abort(error.what());  // the stages no longer agree: no rank can continue
      throw;
    }
  });
}

void ShmStageLink::send(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && next_ != StageMap::kNobody, data.describe());
  enqueue(stream, describe_call("send", data), [this, data] {
    put(data.as<std::byte>(), data.bytes(), next_, member_.collective_bell(next_),
        [this] { return await_room(next_); });
  });
}

void ShmStageLink::receive(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && previous_ != StageMap::kNobody, data.describe());
  enqueue(stream, describe_call("receive", data), [this, data] {
    take(data.as<std::byte>(), data.bytes(), previous_, [this] { await_piece(previous_); });
  });
}

// The rank's record shows the activity of its other stream.
void ShmStageLink::send_result(TensorView data, const Event& ready) {
  NVLLM_CHECK(data.contiguous() && rank_ == last_stage_, data.describe());
  if (device_ == DeviceKind::cpu) results_->wait(ready);
  results_->submit([this, data, &ready] {
    try {
      if (device_ != DeviceKind::cpu && !await_computed(ready)) return;
      put(data.as<std::byte>(), data.bytes(), 0, member_.main_bell(0),
          [this] { return await_room_for_result(); });
    } catch (const GroupAborted&) {
      throw;
    } catch (const Error& error) {
      member_.group().abort(error.what());  // otherwise rank 0 would wait for it in vain
      throw;
    }
  });
}

void ShmStageLink::drop_results() {
  dropping_ = true;
  if (results_ == nullptr) return;
  try {
    results_->synchronize_for(std::chrono::seconds(10));
  } catch (const Error&) {  // already reported
  }
}

void ShmStageLink::receive_result(void* to, std::size_t bytes) {
  NVLLM_CHECK_EQ(rank_, 0);
  take(static_cast<std::byte*>(to), bytes, last_stage_, [this] { await_result(); });
}

void ShmStageLink::put(const std::byte* data, std::size_t bytes, int to, Doorbell& bell_of_receiver,
                       const std::function<bool()>& wait_for_room) {
  for (std::size_t done = 0; done < bytes; done += slot_bytes_) {
    if (!is_taken(to) && !wait_for_room()) return;
    std::memcpy(slot(rank_, sent_), data + done, std::min(slot_bytes_, bytes - done));
    const std::span<Member::Flag> flags = member_.flags(rank_);
    flags[kBytesFlags + sent_ % kStageSlots].value.store(bytes - done, std::memory_order_relaxed);
    flags[kSentFlag].value.store(++sent_, std::memory_order_seq_cst);
    bell_of_receiver.ring();
  }
}

void ShmStageLink::take(std::byte* data, std::size_t bytes, int from,
                        const std::function<void()>& wait_for_piece) {
  for (std::size_t done = 0; done < bytes; done += slot_bytes_) {
    if (!is_sent(from)) wait_for_piece();
    const std::uint64_t theirs = read(member_, from, kBytesFlags + taken_ % kStageSlots);
    if (theirs != bytes - done) {
      fail("rank ", from, " hands over ", theirs, " bytes, and rank ", rank_, " expects ",
           bytes - done, "; enqueue the same steps on all stages");
    }
    std::memcpy(data + done, slot(from, taken_), std::min(slot_bytes_, bytes - done));
    member_.flags(rank_)[kTakenFlag].value.store(++taken_, std::memory_order_seq_cst);
    member_.collective_bell(from).ring();
  }
}

bool ShmStageLink::is_taken(int by) const {
  return sent_ - read(member_, by, kTakenFlag) < kStageSlots;
}

bool ShmStageLink::is_sent(int from) const {
  return read(member_, from, kSentFlag) > taken_;
}

bool ShmStageLink::await_room(int taker) {
  Standing last = end_of_chain(taker);
  while (true) {
    try {
      member_.wait(
          member_.collective_bell(rank_), [&] { return is_taken(taker); }, taker, "a free slot");
      return true;
    } catch (const PeerTimeout&) {
      const Standing now = end_of_chain(taker);
      if (now == last) fail_timed_out(now.rank, "the next stage to take hidden states");
      last = now;
      member_.note_progress();
    }
  }
}

void ShmStageLink::await_piece(int sender) {
  Standing last = end_of_chain(sender);
  while (true) {
    try {
      return member_.wait(
          member_.collective_bell(rank_), [&] { return is_sent(sender); }, sender, "a piece");
    } catch (const PeerTimeout&) {
      const Standing now = end_of_chain(sender);
      if (now == last) fail_timed_out(now.rank, "hidden states of the stage before");
      last = now;
      member_.note_progress();
    }
  }
}

bool ShmStageLink::await_room_for_result() {
  constexpr Nanoseconds kShortest = std::chrono::microseconds(20);
  constexpr Nanoseconds kLongest = std::chrono::milliseconds(2);
  for (Nanoseconds pause = kShortest; !is_taken(0); pause = std::min(2 * pause, kLongest)) {
    member_.check_abort();
    if (dropping_) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

bool ShmStageLink::await_computed(const Event& ready) const {
  constexpr Nanoseconds kEager = std::chrono::microseconds(20);
  constexpr Nanoseconds kPause = std::chrono::microseconds(10);
  for (const std::int64_t start = now_ns(); !ready.reached();) {
    member_.check_abort();
    if (dropping_) return false;
    if (Nanoseconds(now_ns() - start) > kEager) std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Rank 0's record shows whom its stream waits for, not its main thread.
void ShmStageLink::await_result() {
  Standing last = end_of_chain(last_stage_);
  while (!member_.wait_for(
      member_.main_bell(rank_), [&] { return is_sent(last_stage_); },
      member_.group().step_timeout())) {
    const Standing now = end_of_chain(last_stage_);
    if (now == last) fail_timed_out(culprit_of_results(), "a step's result");
    last = now;
  }
}

// A rank's record shows whom its CPU stream waits for, but not whom a GPU waits for.
int ShmStageLink::culprit_of_results() const {
  if (device_ == DeviceKind::cpu) return end_of_chain(last_stage_).rank;
  return find_culprit(member_.group(), rank_, last_stage_, stages_);
}

ShmStageLink::Standing ShmStageLink::end_of_chain(int rank) const {
  RankSnapshot record = member_.group().snapshot(rank);
  for (int hops = 0; hops < member_.size() && record.waits_for >= 0; ++hops) {
    record = member_.group().snapshot(record.waits_for);
  }
  return {record.rank, record.progress, record.collective.number, record.step};
}

void ShmStageLink::fail_timed_out(int culprit, const char* what) const {
  const double seconds = std::chrono::duration<double>(member_.group().step_timeout()).count();
  throw PeerTimeout(culprit, str("waited ", format_duration(seconds), " for ", what, ", with ",
                                 member_.group().snapshot(culprit).describe()));
}

}  // namespace nvllm::ipc
