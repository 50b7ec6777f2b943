#include "ipc/collective/shm/shm_exchange.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/collective/shm/copy_methods.h"
#include "ipc/rank_memory_map.h"

namespace nvllm::ipc {
namespace {

constexpr std::size_t kLine = 64;
// Up to this size every rank sums everything itself: one wait instead of two.
constexpr std::size_t kOneRoundBytes = std::size_t{32} << 10;
// Size of the blocks that are summed, written or read at a time: fits the first-level cache. A
// multiple of a cache line.
constexpr std::size_t kBlockBytes = std::size_t{2} << 10;

std::size_t round_down(std::size_t value, std::size_t step) {
  return value / step * step;
}

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

std::uint32_t mix(std::uint32_t hash, std::uint64_t value) {
  std::uint64_t mixed = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>(mixed ^ (mixed >> 32));
}

// Steps wrap around; no rank is ever 2^31 steps ahead.
bool reached(std::uint32_t step, std::uint32_t wanted) {
  return static_cast<std::int32_t>(step - wanted) >= 0;
}

}  // namespace

ShmExchange::ShmExchange(Member& member, int stages)
    : member_(member),
      size_(StageMap{member.size(), stages}.of_stage()),
      first_(StageMap{member.size(), stages}.first_of_stage(member.rank())),
      rank_(member.rank() - first_),
      several_boxes_(member.group().box_of(first_) != member.group().box_of(first_ + size_ - 1)) {
  const std::size_t staging = member.staging(member.rank()).size() - link_bytes(member, stages);
  const auto ranks = static_cast<std::size_t>(size_);
  // Two round slots of an eighth each; the rest holds the slices of a chunk, the last one the
  // result.
  round_bytes_ = round_down(staging / 8, kLine * ranks);
  chunk_bytes_ = round_down(staging - 2 * round_bytes_, kLine * ranks);
  if (round_bytes_ == 0) {
    fail("staging_bytes ", staging, " is too small for ", size_, " ranks; use ", 8 * kLine * ranks,
         " or more");
  }
}

std::byte* ShmExchange::staging(int rank) const {
  return member_.staging(in_group(rank)).data();
}

std::byte* ShmExchange::round_slot(int rank) const {
  return staging(rank) + (rounds_ % 2) * round_bytes_;
}

std::byte* ShmExchange::chunk_memory(int rank) const {
  return staging(rank) + 2 * round_bytes_;
}

// Always at the same place, so that chunks of different sizes do not overlap differently.
std::byte* ShmExchange::result_memory(int rank) const {
  const auto ranks = static_cast<std::size_t>(size_);
  return chunk_memory(rank) + chunk_bytes_ / ranks * (ranks - 1);
}

void ShmExchange::begin(Kind kind, DType type, std::size_t size, int root) {
  constexpr const char* kNames[kKinds] = {"all_reduce", "reduce_scatter", "all_gather",
                                          "gather",     "broadcast",      "barrier"};
  const auto index = static_cast<std::size_t>(kind);
  operation_ = kNames[index];
  call_hash_ = mix(mix(mix(mix(0, index + 1), static_cast<std::uint64_t>(type)), size),
                   static_cast<std::uint64_t>(root));

  const std::size_t kib = size * size_of(type) >> 10;
  trial_ = &trials_[index][std::min<std::size_t>(std::bit_width(kib), kSizes - 1)];
  method_ = trial_->method();
  first_step_ = step_ + 1;
  idle_ns_ = 0;
  if (trial_->trying()) started_ns_ = now_ns();
}

void ShmExchange::end() {
  if (!trial_->count(trial_->trying() ? now_ns() - started_ns_ - idle_ns_ : 0)) return;
  // After the last trial, all ranks agree, in one more round, on the method with the smallest sum
  // of their times.
  auto times = trial_->times();
  reduce_in_one_round(reinterpret_cast<std::byte*>(times.data()), DType::f32, times.size());
  trial_->choose(times);
}

void ShmExchange::put(std::byte* to, const std::byte* from, std::size_t bytes) {
  copy_for_others(to, from, bytes, method_.stores);
  if (!several_boxes_ || bytes == 0) return;
  const auto begin = static_cast<std::size_t>(to - staging(rank_));
  put_begin_ = put_end_ == 0 ? begin : std::min(put_begin_, begin);
  put_end_ = std::max(put_end_, begin + bytes);
}

void ShmExchange::take(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (!method_.ahead) {
    std::memcpy(to, from, bytes);
    return;
  }
  fetch_ahead(from, std::min(bytes, kBlockBytes));
  for (std::size_t done = 0; done < bytes; done += kBlockBytes) {
    const std::size_t next = std::min(bytes, done + kBlockBytes);
    fetch_ahead(from + next, std::min(bytes - next, kBlockBytes));
    std::memcpy(to + done, from + done, next - done);
  }
}

void ShmExchange::publish() {
  finish_copies();
  ++step_;
  if (several_boxes_) {
    member_.flags(in_group(rank_))[kStretchFlags + step_ % 2].value.store(
        (std::uint64_t{put_begin_} << 32) | (put_end_ - put_begin_), std::memory_order_relaxed);
    put_begin_ = put_end_ = 0;
  }
  // Sequentially consistent, followed by the bells, as Member::wait requires.
  member_.flags(in_group(rank_))[kStepFlag].value.store((std::uint64_t{call_hash_} << 32) | step_,
                                                        std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) member_.collective_bell(in_group(peer)).ring();
  }
}

void ShmExchange::wait_for(int peer, std::uint32_t step) {
  const auto& flag = member_.flags(in_group(peer))[kStepFlag].value;
  std::uint64_t seen = 0;
  auto ready = [&] {
    seen = flag.load(std::memory_order_seq_cst);
    return reached(static_cast<std::uint32_t>(seen), step);
  };
  // The delay of late peers says nothing about the method.
  const bool delay = step == first_step_ && trial_->trying();
  const std::int64_t began_ns = delay ? now_ns() : 0;
  try {
    member_.wait(member_.collective_bell(in_group(rank_)), ready, in_group(peer), operation_);
  } catch (const PeerTimeout&) {
    fail_timed_out(peer);
  }
  if (delay) idle_ns_ += now_ns() - began_ns;
  // A peer that is ahead may be in another call by now; at the same step it must be in the same
  // one.
  if (static_cast<std::uint32_t>(seen) == step && (seen >> 32) != call_hash_) {
    fail("rank ", in_group(peer), " takes part in another collective or with another shape than ",
         operation_, " of rank ", in_group(rank_), "; call the same on all ranks");
  }
}

// The peer may be waiting as well. The culprit is the rank that has made the fewest steps.
void ShmExchange::fail_timed_out(int peer) const {
  auto step_of = [&](int rank) {
    return static_cast<std::uint32_t>(
        member_.flags(in_group(rank))[kStepFlag].value.load(std::memory_order_seq_cst));
  };
  int slowest = peer;
  for (int rank = 0; rank < size_; ++rank) {
    if (!reached(step_of(rank), step_of(slowest))) slowest = rank;
  }
  const Group& group = member_.group();
  const double seconds = std::chrono::duration<double>(group.step_timeout()).count();
  throw PeerTimeout(in_group(slowest), str("waited ", format_duration(seconds), " for ", operation_,
                                           " with ", group.snapshot(in_group(slowest)).describe()));
}

void ShmExchange::wait_for_all(std::uint32_t step) {
  for (int other = 1; other < size_; ++other) wait_for((rank_ + other) % size_, step);
}

void ShmExchange::all_reduce(std::byte* data, DType type, std::size_t elements) {
  if (size_ == 1 || elements == 0) return;
  begin(Kind::all_reduce, type, elements, 0);
  if (elements * size_of(type) <= std::min(kOneRoundBytes, round_bytes_)) {
    reduce_in_one_round(data, type, elements);
  } else if (method_.once || several_boxes_) {
    reduce_in_rounds(data, type, elements);
  } else {
    reduce_in_two_phases(data, type, elements);
  }
  end();
}

void ShmExchange::reduce_in_one_round(std::byte* data, DType type, std::size_t elements) {
  put(round_slot(rank_), data, elements * size_of(type));
  publish();
  wait_for_all(step_);
  std::array<const void*, kMaxRanks> sources{};
  for (int rank = 0; rank < size_; ++rank) sources[rank] = round_slot(rank);
  sources[rank_] = data;
  sum_cpu(type, data, {sources.data(), static_cast<std::size_t>(size_)}, elements);
  ++rounds_;
}

void ShmExchange::use_chunk_memory(ChunkUse use) {
  if (use == chunk_use_) return;
  chunk_use_ = use;
  publish();
  wait_for_all(step_);
}

void ShmExchange::sum_and_put(std::span<std::byte> own, DType type,
                              const std::array<const std::byte*, kMaxRanks>& sources,
                              std::byte* result) {
  for (std::size_t done = 0; done < own.size(); done += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, own.size() - done);
    const std::size_t next = std::min(kBlockBytes, own.size() - done - block);
    std::array<const void*, kMaxRanks> blocks{};
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) {
        blocks[rank] = own.data() + done;
        continue;
      }
      blocks[rank] = sources[rank] + done;
      if (method_.ahead) fetch_ahead(sources[rank] + done + block, next);
    }
    sum_cpu(type, own.data() + done, {blocks.data(), static_cast<std::size_t>(size_)},
            block / size_of(type));
    if (result != nullptr) put(result + done, own.data() + done, block);
  }
}

void ShmExchange::reduce_in_rounds(std::byte* data, DType type, std::size_t elements) {
  use_chunk_memory(ChunkUse::rounds);
  const std::size_t bytes = elements * size_of(type);
  const std::size_t half = round_down(chunk_bytes_ / 2, kLine);
  const std::size_t room = std::min(half, round_up(method_.chunk_bytes, kLine));
  // In parts of about equal size: the two halves alternate, so that lines leave the caches evenly.
  const std::size_t parts = (bytes + room - 1) / room;
  const std::size_t part_bytes = round_up((bytes + parts - 1) / parts, kLine);
  for (std::size_t done = 0; done < bytes; done += part_bytes) {
    const std::span<std::byte> own(data + done, std::min(part_bytes, bytes - done));
    std::array<const std::byte*, kMaxRanks> slots{};
    for (int rank = 0; rank < size_; ++rank) {
      slots[rank] = chunk_memory(rank) + (chunk_rounds_ % 2) * half;
    }
    put(chunk_memory(rank_) + (chunk_rounds_ % 2) * half, own.data(), own.size());
    publish();
    wait_for_all(step_);
    sum_and_put(own, type, slots, nullptr);
    ++chunk_rounds_;
  }
}

void ShmExchange::reduce_in_two_phases(std::byte* data, DType type, std::size_t elements) {
  use_chunk_memory(ChunkUse::phases);
  const std::size_t bytes = elements * size_of(type);
  const std::size_t max_bytes = std::min(
      chunk_bytes_, round_up(method_.chunk_bytes, kLine * static_cast<std::size_t>(size_)));
  for (std::size_t done = 0; done < bytes; done += max_bytes) {
    reduce_chunk(data + done, type, std::min(max_bytes, bytes - done));
  }
}

void ShmExchange::reduce_chunk(std::byte* data, DType type, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t slice_bytes = round_up((bytes + ranks - 1) / ranks, kLine);
  // The part of the chunk that rank `owner` sums; for the last ranks it may be short or empty.
  auto slice = [&](int owner) {
    const std::size_t begin = std::min(bytes, static_cast<std::size_t>(owner) * slice_bytes);
    return std::span(data + begin, std::min(slice_bytes, bytes - begin));
  };
  // The slices for the others are contiguous, in the order of seats.
  auto input = [&](int from, int owner) {
    return chunk_memory(from) +
           static_cast<std::size_t>((owner - from - 1 + size_) % size_) * slice_bytes;
  };

  for (int other = 1; other < size_; ++other) {
    const int owner = (rank_ + other) % size_;
    put(input(rank_, owner), slice(owner).data(), slice(owner).size());
  }
  publish();
  wait_for_all(step_);
  std::array<const std::byte*, kMaxRanks> sources{};
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) sources[rank] = input(rank, rank_);
  }
  sum_and_put(slice(rank_), type, sources, result_memory(rank_));
  publish();
  for (int other = 1; other < size_; ++other) {
    const int owner = (rank_ + other) % size_;
    wait_for(owner, step_);
    take(slice(owner).data(), result_memory(owner), slice(owner).size());
  }
}

void ShmExchange::reduce_scatter(std::byte* out, const std::byte* in, DType type,
                                 std::size_t out_elements) {
  const std::size_t bytes = out_elements * size_of(type);
  if (size_ == 1) {
    if (bytes != 0 && out != in) std::memcpy(out, in, bytes);
    return;
  }
  if (bytes == 0) return;
  begin(Kind::reduce_scatter, type, out_elements, 0);
  // A round slot holds a part of each rank's slice.
  const std::size_t part_bytes = round_bytes_ / static_cast<std::size_t>(size_);
  for (std::size_t done = 0; done < bytes; done += part_bytes) {
    const std::size_t part = std::min(part_bytes, bytes - done);
    for (int owner = 0; owner < size_; ++owner) {
      if (owner == rank_) continue;
      put(round_slot(rank_) + owner * part_bytes, in + owner * bytes + done, part);
    }
    publish();
    wait_for_all(step_);
    std::array<const void*, kMaxRanks> sources{};
    for (int rank = 0; rank < size_; ++rank) {
      sources[rank] = round_slot(rank) + rank_ * part_bytes;
    }
    sources[rank_] = in + rank_ * bytes + done;
    sum_cpu(type, out + done, {sources.data(), static_cast<std::size_t>(size_)},
            part / size_of(type));
    ++rounds_;
  }
  end();
}

void ShmExchange::all_gather(std::byte* out, const std::byte* in, std::size_t in_bytes) {
  if (in_bytes == 0) return;
  std::byte* own = out + static_cast<std::size_t>(rank_) * in_bytes;
  begin(Kind::all_gather, DType::u8, in_bytes, 0);
  for (std::size_t done = 0; done < in_bytes; done += round_bytes_) {
    const std::size_t part = std::min(round_bytes_, in_bytes - done);
    if (size_ > 1) put(round_slot(rank_), in + done, part);
    publish();
    if (own != in) std::memcpy(own + done, in + done, part);
    for (int other = 1; other < size_; ++other) {
      const int from = (rank_ + other) % size_;
      wait_for(from, step_);
      take(out + static_cast<std::size_t>(from) * in_bytes + done, round_slot(from), part);
    }
    ++rounds_;
  }
  end();
}

void ShmExchange::gather(std::byte* out, const std::byte* in, std::size_t in_bytes, int root) {
  if (in_bytes == 0) return;
  begin(Kind::gather, DType::u8, in_bytes, root);
  for (std::size_t done = 0; done < in_bytes; done += round_bytes_) {
    const std::size_t part = std::min(round_bytes_, in_bytes - done);
    if (rank_ != root) put(round_slot(rank_), in + done, part);
    publish();
    wait_for_all(step_);
    for (int from = 0; from < size_ && rank_ == root; ++from) {
      std::byte* to = out + static_cast<std::size_t>(from) * in_bytes + done;
      const std::byte* source = from == rank_ ? in + done : round_slot(from);
      if (to != source) take(to, source, part);
    }
    ++rounds_;
  }
  end();
}

void ShmExchange::broadcast(std::byte* data, std::size_t bytes, int root) {
  if (bytes == 0) return;
  begin(Kind::broadcast, DType::u8, bytes, root);
  for (std::size_t done = 0; done < bytes; done += round_bytes_) {
    const std::size_t part = std::min(round_bytes_, bytes - done);
    if (rank_ == root && size_ > 1) put(round_slot(rank_), data + done, part);
    publish();
    wait_for_all(step_);
    if (rank_ != root) take(data + done, round_slot(root), part);
    ++rounds_;
  }
  end();
}

void ShmExchange::barrier() {
  begin(Kind::barrier, DType::u8, 0, 0);
  publish();
  wait_for_all(step_);
  ++rounds_;
  end();
}

}  // namespace nvllm::ipc
