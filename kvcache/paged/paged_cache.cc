#include "kvcache/paged/paged_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "base/thread.h"
#include "device/topology.h"

namespace nvllm::kvcache {
namespace {

// Large enough for a negligible allocation overhead, small enough not to delay a step for long.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCommitPiece = std::size_t{32} << 20;  // that a thread takes at a time
constexpr std::size_t kMaxThreads = 16;

// Returns whether all pages are present now; otherwise errno has the reason.
bool populate(unsigned char* data, std::size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, from Linux 5.14 on
  int result = -1;
  do {
    result = ::madvise(data, bytes, kPopulateWrite);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno != EINVAL) return result == 0;
  for (std::size_t at = 0; at < bytes; at += kPage) {
    std::atomic_ref(data[at]).fetch_or(0, std::memory_order_relaxed);
  }
  return true;
}

// Makes the system allocate all pages now, with several threads; their contents do not change.
void commit_memory(void* data, std::size_t bytes, const std::function<void()>& progress) {
  // Pages that are shared with other memory are already present: they hold the heap's own data.
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t skipped = round_up(address, kPage) - address;
  if (bytes < skipped + kPage) return;
  auto* const begin = static_cast<unsigned char*>(data) + skipped;
  const std::size_t whole = (bytes - skipped) / kPage * kPage;
  const std::size_t pieces = divide_up(whole, kCommitPiece);

  std::atomic<std::size_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&](const std::function<void()>& after_piece) {
    for (std::size_t piece; error == 0 && (piece = next.fetch_add(1)) < pieces;) {
      const std::size_t first = piece * kCommitPiece;
      if (!populate(begin + first, std::min(kCommitPiece, whole - first))) error = errno;
      if (after_piece) after_piece();
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t threads = std::min({pieces, allowed_cores().size(), kMaxThreads});
  try {
    while (helpers.size() + 1 < threads) {
      helpers.push_back(start_thread<std::jthread>("that gets memory", [&] { work({}); }));
    }
  } catch (const Error&) {  // continue with fewer threads
  }
  work(progress);
  helpers.clear();           // joins them
  if (progress) progress();  // the helpers may have taken every piece
  if (error != 0) fail("getting ", format_bytes(bytes), " of KV cache: ", errno_text(error));
}

}  // namespace

PagedCache::PagedCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                       std::int64_t host_blocks)
    : backend_(backend),
      shape_(shape),
      blocks_(blocks),
      host_blocks_(host_blocks),
      piece_blocks_(
          std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceBytes / shape.bytes()))),
      host_pieces_(static_cast<std::size_t>(divide_up(host_blocks, piece_blocks_))) {
  NVLLM_CHECK(blocks >= 0 && host_blocks >= 0, blocks, " and ", host_blocks);
  memory_ = backend.allocate(MemoryKind::device, static_cast<std::size_t>(blocks) * shape.bytes(),
                             "kv cache");
  auto* const data = static_cast<unsigned char*>(memory_.data());
  const auto distance = static_cast<std::int64_t>(shape.kv_bytes() / size_of(shape.dtype));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    views_.push_back(block_views(data + shape.bytes_before(layer), shape, layer, blocks, distance));
  }
  tokens_ = TensorView(data + static_cast<std::size_t>(blocks) * shape.kv_bytes(), DType::i32,
                       {blocks, shape.block_size});
}

void PagedCache::commit(const std::function<void()>& progress) {
  if (backend_.kind() != DeviceKind::cpu) return;
  commit_memory(memory_.data(), memory_.bytes(), progress);
}

PagedCache::Place PagedCache::on_device(BlockId block) const {
  return {static_cast<unsigned char*>(memory_.data()), blocks_, block};
}

PagedCache::Place PagedCache::on_host(BlockId block) const {
  const std::int64_t piece = block / piece_blocks_;
  const Buffer& buffer = host_pieces_[static_cast<std::size_t>(piece)];
  if (!buffer) fail("swapping blocks of the KV cache: nothing was swapped to host block ", block);
  return {static_cast<unsigned char*>(buffer.data()),
          std::min(piece_blocks_, host_blocks_ - piece * piece_blocks_),
          block - piece * piece_blocks_};
}

void PagedCache::make_host_piece(BlockId block) {
  const std::int64_t piece = block / piece_blocks_;
  Buffer& buffer = host_pieces_[static_cast<std::size_t>(piece)];
  if (buffer) return;
  const std::int64_t count = std::min(piece_blocks_, host_blocks_ - piece * piece_blocks_);
  buffer = backend_.allocate(MemoryKind::pinned, static_cast<std::size_t>(count) * shape_.bytes(),
                             "swapped kv cache");
}

void PagedCache::check_blocks(const BlockCopy& copy, bool out) const {
  const auto require = [](BlockId block, std::int64_t blocks, const char* where) {
    if (block >= 0 && block < blocks) return;
    fail("swapping blocks of the KV cache: there is no ", where, " block ", block, ", they are ",
         blocks);
  };
  require(out ? copy.from : copy.to, blocks_, "device");
  require(out ? copy.to : copy.from, host_blocks_, "host");
}

// The number of leading copies that can be merged: adjacent on both sides, within one piece of host
// memory.
std::size_t PagedCache::run_length(std::span<const BlockCopy> copies, bool out) const {
  const BlockCopy& first = copies.front();
  const auto inside = (out ? first.to : first.from) % piece_blocks_;
  const auto max_count = std::min(copies.size(), static_cast<std::size_t>(piece_blocks_ - inside));
  std::size_t count = 1;
  while (count < max_count && copies[count].from == first.from + static_cast<BlockId>(count) &&
         copies[count].to == first.to + static_cast<BlockId>(count)) {
    ++count;
  }
  return count;
}

void PagedCache::copy(const Place& to, const Place& from, std::size_t count, Stream& stream) {
  const std::size_t kv = shape_.kv_bytes(), tokens = shape_.token_bytes();
  const auto kv_of = [&](const Place& place) {
    return place.memory + static_cast<std::size_t>(place.first) * kv;
  };
  const auto tokens_of = [&](const Place& place) {
    return place.memory + static_cast<std::size_t>(place.blocks) * kv +
           static_cast<std::size_t>(place.first) * tokens;
  };
  if (kv > 0) backend_.copy(kv_of(to), kv_of(from), count * kv, stream);
  backend_.copy(tokens_of(to), tokens_of(from), count * tokens, stream);
}

void PagedCache::swap_out(std::span<const BlockCopy> copies, Stream& stream) {
  for (const BlockCopy& each : copies) {
    check_blocks(each, true);
    make_host_piece(each.to);
  }
  traffic_.to_host += copies.size() * shape_.bytes();
  while (!copies.empty()) {
    const std::size_t count = run_length(copies, true);
    copy(on_host(copies.front().to), on_device(copies.front().from), count, stream);
    copies = copies.subspan(count);
  }
}

void PagedCache::swap_in(std::span<const BlockCopy> copies, Stream& stream) {
  for (const BlockCopy& each : copies) check_blocks(each, false);
  traffic_.to_device += copies.size() * shape_.bytes();
  while (!copies.empty()) {
    const std::size_t count = run_length(copies, false);
    copy(on_device(copies.front().to), on_host(copies.front().from), count, stream);
    copies = copies.subspan(count);
  }
}

}  // namespace nvllm::kvcache
