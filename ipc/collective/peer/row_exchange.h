// Sends overlapped rows (Communicator::begin_reduce_scatter()) from GPU to GPU by copy engines,
// which leave all multiprocessors to other work.
//
// Rank r owns those of a slot's n rows that start at r * ceil(n / ranks). Every rank has memory
// that the others have mapped through CUDA IPC:
//
//   gathered  the rows of all slots: each rank's own, which it copies into the others' memory
//   inboxes   of each slot, and each other rank: its parts of this rank's own rows
//   numbers   of each slot, step (scattered, gathered) and rank: behind its rows a rank copies the
//             number of its call, for which kernels look (peer_overlap.cu)
//
// Why nothing is overwritten before it is read: within a slot, p's copies of call k + 1 follow p's
// wait for the rows that r gathered in call k. r sent these after it had summed its inbox, and r's
// later reads of `gathered` precede the same wait. Calls of a slot are numbered on the host,
// identically on all ranks, so captured graphs cannot contain them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/group.h"

namespace nvllm::ipc {

class RowExchange {
 public:
  // A collective call. nullptr on all ranks if one of them fails; `why` then says which and why.
  // links: of the ranks that sum; the first of them has rank `first` in the group.
  static std::unique_ptr<RowExchange> create(Member& member, Backend& backend,
                                             const peer::Links& links, int first,
                                             std::int64_t slot_rows, std::int64_t columns,
                                             DType dtype, std::string& why);
  ~RowExchange();
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  // The three steps of a slot. links: of this call.
  void scatter(OverlappedRows rows, TensorView x, Stream& stream);
  void sum_and_gather(const peer::Links& links, OverlappedRows rows, const kernels::RmsNorm& args,
                      Gathered gathered, Stream& stream);
  TensorView finish(const peer::Links& links, OverlappedRows rows, Stream& stream);

 private:
  enum class Step : std::uint8_t { scattered, gathered };
  struct Slot {
    TensorView x{};  // of the call in flight
    std::uint32_t calls = 0;
    std::unique_ptr<Event> ready;  // the data to copy has been computed
  };
  struct RowRange {
    std::int64_t begin, count;
  };

  RowExchange(Backend& backend, const peer::Links& links, std::int64_t slot_rows,
              std::int64_t columns, DType dtype);
  void open_peers(Member& member, int first, std::string& why);

  RowRange owned_by(int rank, std::int64_t rows) const;
  std::byte* gathered_at(int rank, std::int64_t row) const;
  // The inbox for the sender in that seat.
  std::byte* inbox_at(int rank, int slot, int seat) const;
  std::uint32_t* numbers_at(int rank, int slot, Step step) const;
  peer::Arrivals arrivals(int slot, Step step) const;
  // Copies rows into another rank's memory, then this rank's number.
  void send(int to, std::byte* there, const std::byte* here, std::int64_t rows, int slot,
            Step step);

  Backend& backend_;
  const int rank_, ranks_;
  const std::int64_t slot_rows_, columns_;
  const DType dtype_;
  const std::size_t row_bytes_;
  std::array<Slot, OverlappedRows::kSlots> slots_;
  Buffer memory_;
  Buffer numbers_;                           // [kNumbers], uint32: element i is i
  std::unique_ptr<Stream> copies_;           // this rank's copies, in order
  std::array<std::byte*, kMaxRanks> all_{};  // every rank's memory_, at its address in this process
};

}  // namespace nvllm::ipc
