#include "ipc/collective/peer/row_exchange.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "device/cuda/stream.h"
#include "ipc/collective/peer/ipc_exchange.h"

namespace nvllm::ipc {
namespace {

// Call numbers of a slot repeat after this many calls; at most two calls are in flight.
constexpr std::uint32_t kNumbers = 256;
constexpr int kSteps = 2;

}  // namespace

std::unique_ptr<RowExchange> RowExchange::create(Member& member, Backend& backend,
                                                 const peer::Links& links, int first,
                                                 std::int64_t slot_rows, std::int64_t columns,
                                                 DType dtype, std::string& why) {
  std::unique_ptr<RowExchange> exchange(new RowExchange(backend, links, slot_rows, columns, dtype));
  exchange->open_peers(member, first, why);
  if (!why.empty()) return nullptr;
  return exchange;
}

RowExchange::RowExchange(Backend& backend, const peer::Links& links, std::int64_t slot_rows,
                         std::int64_t columns, DType dtype)
    : backend_(backend),
      rank_(links.rank),
      ranks_(links.ranks),
      slot_rows_(slot_rows),
      columns_(columns),
      dtype_(dtype),
      row_bytes_(static_cast<std::size_t>(columns) * size_of(dtype)) {}

void RowExchange::open_peers(Member& member, int first, std::string& why) {
  // All of this must precede the exchange of handles, after which other ranks may write to the
  // memory: so the numbers are cleared here.
  cudaIpcMemHandle_t handle{};
  std::string error = error_of([&] {
    const std::size_t bytes = overlap_bytes(ranks_, slot_rows_, columns_, dtype_);
    memory_ = backend_.allocate(MemoryKind::device, bytes, "overlapped sums");
    numbers_ =
        backend_.allocate(MemoryKind::device, kNumbers * sizeof(std::uint32_t), "overlapped sums");
    for (Slot& slot : slots_) slot.ready = backend_.create_event();
    copies_ = backend_.create_stream(StreamPriority::high);
    all_[static_cast<std::size_t>(rank_)] = static_cast<std::byte*>(memory_.data());
    std::vector<std::uint32_t> numbers(kNumbers);
    std::iota(numbers.begin(), numbers.end(), 0u);
    backend_.copy(numbers_.data(), numbers.data(), numbers_.bytes(), *copies_);
    std::uint32_t* const begin = numbers_at(rank_, 0, Step::scattered);
    const auto* const end = static_cast<std::byte*>(memory_.data()) + bytes;
    backend_.fill(begin, 0, static_cast<std::size_t>(end - reinterpret_cast<std::byte*>(begin)),
                  *copies_);
    copies_->synchronize();
    cuda::check(cudaIpcGetMemHandle(&handle, memory_.data()), "sharing memory through CUDA IPC");
  });
  const auto handles = exchange_handles(member, handle, error);
  if (error.empty()) {
    error = error_of([&] {
      for (int peer = 0; peer < ranks_; ++peer) {
        const auto& theirs = handles[static_cast<std::size_t>(first + peer)];
        if (peer == rank_ || !theirs) continue;  // or that rank had an error
        all_[static_cast<std::size_t>(peer)] =
            static_cast<std::byte*>(open_memory(first + peer, *theirs));
      }
    });
  }
  why = first_error(member, error);
}

// Pending copies need their target memory until they end. If they do not end, the process is about
// to exit anyway.
RowExchange::~RowExchange() {
  try {
    if (copies_) copies_->synchronize_for(std::chrono::seconds(2));
  } catch (const std::exception&) {  // already reported, or no longer relevant
  }
  for (int peer = 0; peer < ranks_; ++peer) {
    void* const opened = all_[static_cast<std::size_t>(peer)];
    if (peer != rank_ && opened != nullptr) cudaIpcCloseMemHandle(opened);
  }
}

RowExchange::RowRange RowExchange::owned_by(int rank, std::int64_t rows) const {
  const std::int64_t share = divide_up(rows, ranks_);
  const std::int64_t begin = std::min(rank * share, rows);
  return {begin, std::min(share, rows - begin)};
}

std::byte* RowExchange::gathered_at(int rank, std::int64_t row) const {
  return all_[static_cast<std::size_t>(rank)] + static_cast<std::size_t>(row) * row_bytes_;
}

std::byte* RowExchange::inbox_at(int rank, int slot, int seat) const {
  const std::int64_t inbox = std::int64_t{slot} * (ranks_ - 1) + seat;
  return gathered_at(rank,
                     OverlappedRows::kSlots * slot_rows_ + inbox * divide_up(slot_rows_, ranks_));
}

std::uint32_t* RowExchange::numbers_at(int rank, int slot, Step step) const {
  std::byte* const numbers = inbox_at(rank, OverlappedRows::kSlots, 0);  // after all inboxes
  return reinterpret_cast<std::uint32_t*>(numbers) +
         (std::size_t{kSteps} * static_cast<std::size_t>(slot) + static_cast<std::size_t>(step)) *
             kMaxRanks * peer::kNumberStride;
}

peer::Arrivals RowExchange::arrivals(int slot, Step step) const {
  return {.numbers = numbers_at(rank_, slot, step),
          .expected = slots_[static_cast<std::size_t>(slot)].calls % kNumbers};
}

void RowExchange::send(int to, std::byte* there, const std::byte* here, std::int64_t rows, int slot,
                       Step step) {
  if (rows > 0) backend_.copy(there, here, static_cast<std::size_t>(rows) * row_bytes_, *copies_);
  const std::uint32_t number = slots_[static_cast<std::size_t>(slot)].calls % kNumbers;
  backend_.copy(numbers_at(to, slot, step) + static_cast<std::size_t>(rank_) * peer::kNumberStride,
                static_cast<std::uint32_t*>(numbers_.data()) + number, sizeof(number), *copies_);
}

void RowExchange::scatter(OverlappedRows rows, TensorView x, Stream& stream) {
  Slot& slot = slots_.at(static_cast<std::size_t>(rows.slot));
  const std::int64_t count = x.shape[0];
  NVLLM_CHECK(slot.x.data == nullptr, "slot ", rows.slot, " is under way");
  NVLLM_CHECK(x.contiguous() && x.dtype == dtype_ && x.shape[1] == columns_ &&
                  count <= slot_rows_ && rows.first_row + count <= 2 * slot_rows_,
              x.describe(), " from row ", rows.first_row, " on, where slots have ", slot_rows_);
  slot.x = x;
  ++slot.calls;
  slot.ready->record(stream);
  copies_->wait(*slot.ready);
  for (int n = 1; n < ranks_; ++n) {  // each rank starts with another one
    const int to = (rank_ + n) % ranks_;
    const RowRange own = owned_by(to, count);
    const auto* const part =
        own.count > 0 ? x.rows(own.begin, own.count).as<const std::byte>() : nullptr;
    const int seat = rank_ < to ? rank_ : rank_ - 1;
    send(to, inbox_at(to, rows.slot, seat), part, own.count, rows.slot, Step::scattered);
  }
}

void RowExchange::sum_and_gather(const peer::Links& links, OverlappedRows rows,
                                 const kernels::RmsNorm& args, Gathered gathered, Stream& stream) {
  Slot& slot = slots_.at(static_cast<std::size_t>(rows.slot));
  NVLLM_CHECK(slot.x.data == args.x.data, args.x.describe(), " was not started");
  const RowRange own = owned_by(rank_, args.x.shape[0]);
  const std::int64_t first = rows.first_row + own.begin;
  kernels::RmsNorm of_own = args;
  of_own.x = args.x.rows(own.begin, own.count);
  of_own.residual = args.residual.rows(own.begin, own.count);
  of_own.out = of_own.x;
  of_own.out.data = gathered_at(rank_, first);
  peer::launch_sum_own_rows(
      links, of_own, inbox_at(rank_, rows.slot, 0), divide_up(slot_rows_, ranks_) * columns_,
      arrivals(rows.slot, Step::scattered), gathered == Gathered::norm, cuda::native(stream));
  slot.ready->record(stream);
  copies_->wait(*slot.ready);
  for (int n = 1; n < ranks_; ++n) {
    const int to = (rank_ + n) % ranks_;
    send(to, gathered_at(to, first), gathered_at(rank_, first), own.count, rows.slot,
         Step::gathered);
  }
}

TensorView RowExchange::finish(const peer::Links& links, OverlappedRows rows, Stream& stream) {
  Slot& slot = slots_.at(static_cast<std::size_t>(rows.slot));
  NVLLM_CHECK(slot.x.data != nullptr, "slot ", rows.slot, " was not started");
  peer::launch_await(links, arrivals(rows.slot, Step::gathered), cuda::native(stream));
  TensorView whole = slot.x;
  whole.data = gathered_at(rank_, rows.first_row);
  slot.x = {};
  return whole;
}

}  // namespace nvllm::ipc
