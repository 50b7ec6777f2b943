#include "kvcache/host_blocks.h"

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "base/math.h"
#include "base/text.h"
#include "base/thread.h"
#include "device/host_memory.h"

namespace nvllm::kvcache {
namespace {

BlockShape with_tokens(BlockShape shape, std::int64_t tokens) {
  shape.block_size = tokens;
  return shape;
}

}  // namespace

HostBlocks::HostBlocks(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                       std::size_t piece_bytes, std::size_t ahead_bytes, std::int64_t last_tokens)
    : backend_(backend),
      shape_(shape),
      last_shape_(with_tokens(shape, last_tokens)),
      blocks_(blocks),
      full_size_(last_tokens > 0 ? blocks - 1 : blocks),
      index_(static_cast<std::size_t>(full_size_), kUnassigned) {
  NVLLM_CHECK(blocks >= 0, blocks);
  NVLLM_CHECK(last_tokens == 0 || (full_size_ > 0 && last_tokens < shape.block_size), last_tokens);
  const std::size_t block_bytes = shape.kv_bytes();
  if (block_bytes == 0 || blocks == 0) return;
  piece_blocks_ =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(piece_bytes / block_bytes), 1, full_size_);
  const std::size_t all_of_piece = static_cast<std::size_t>(piece_blocks_) * block_bytes;
  wanted_ = ahead_ = std::max(ahead_bytes / all_of_piece, std::size_t{1});
  full_pieces_ = static_cast<std::size_t>(divide_up(full_size_, piece_blocks_));
  pieces_.resize(full_pieces_ + (last_tokens > 0 ? 1 : 0));
  const Ledger& ledger = backend.ledger();
  require_host_memory(
      all_bytes(), ledger.total(MemoryKind::pinned) + ledger.total(MemoryKind::host), "kv cache");
  thread_ = start_thread("that gets memory for keys and values", [this] { allocate_all(); });
}

HostBlocks::~HostBlocks() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::size_t HostBlocks::all_bytes() const {
  return static_cast<std::size_t>(full_size_) * shape_.kv_bytes() + last_shape_.kv_bytes();
}

std::size_t HostBlocks::bytes_of(std::size_t piece) const {
  if (piece == full_pieces_) return last_shape_.kv_bytes();
  const auto first = static_cast<std::int64_t>(piece) * piece_blocks_;
  return static_cast<std::size_t>(std::min(piece_blocks_, full_size_ - first)) * shape_.kv_bytes();
}

Error HostBlocks::why_no_more(std::size_t there, const char* what) const {
  return Error(str("KV cache in host memory: ", format_bytes(there), " of ",
                   format_bytes(all_bytes()), " are there, then: ", what,
                   "; pass a smaller --kv-offloading-size"));
}

// Requests for the last block's piece precede pieces that are only allocated ahead.
std::optional<std::size_t> HostBlocks::next_piece() const {
  const bool last_missing = pieces_.size() > full_pieces_ && !last_there_;
  if (last_missing && last_wanted_) return full_pieces_;
  if (there_ < std::min(wanted_, full_pieces_)) return there_;
  if (last_missing && wanted_ > full_pieces_) return full_pieces_;
  return std::nullopt;
}

void HostBlocks::allocate_all() {
  std::size_t taken = 0;
  for (std::size_t count = 0; count < pieces_.size(); ++count) {
    std::size_t piece = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || (!paused_ && next_piece()); });
      if (stopping_) return;
      piece = *next_piece();
      allocating_ = true;
    }
    try {
      pieces_[piece] = backend_.allocate(MemoryKind::pinned, bytes_of(piece), "kv cache");
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      allocating_ = false;
      error_ = why_no_more(taken, error.what());
      changed_.notify_all();
      return;
    }
    taken += bytes_of(piece);
    const std::lock_guard lock(mutex_);
    allocating_ = false;
    if (piece < full_pieces_) {
      ++there_;
    } else {
      last_there_ = true;
    }
    changed_.notify_all();
  }
}

HostBlocks::Pause::Pause(HostBlocks& blocks) : blocks_(blocks) {
  std::unique_lock lock(blocks_.mutex_);
  blocks_.paused_ = true;
  blocks_.changed_.wait(lock, [&] { return !blocks_.allocating_; });
}

HostBlocks::Pause::~Pause() {
  const std::lock_guard lock(blocks_.mutex_);
  blocks_.paused_ = false;
  blocks_.changed_.notify_all();
}

void* HostBlocks::part(BlockId block, std::int64_t layer) {
  NVLLM_CHECK(block >= 0 && block < blocks_, "there is no host block ", block, " of ", blocks_);
  if (block == full_size_) return last_part(layer);
  std::int64_t& index = index_[static_cast<std::size_t>(block)];
  if (index == kUnassigned) index = assigned_++;
  const auto piece = static_cast<std::size_t>(index / piece_blocks_);
  if (piece >= available_) {
    std::unique_lock lock(mutex_);
    wanted_ = std::max(wanted_, piece + 1 + ahead_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return there_ > piece || error_; });
    if (there_ <= piece) throw *error_;
    available_ = piece + 1;
  }
  const std::size_t place = static_cast<std::size_t>(index % piece_blocks_) * shape_.kv_bytes();
  return static_cast<unsigned char*>(pieces_[piece].data()) + place + shape_.bytes_before(layer);
}

// The same for a last block that is shorter than the others.
void* HostBlocks::last_part(std::int64_t layer) {
  if (!last_available_) {
    std::unique_lock lock(mutex_);
    last_wanted_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return last_there_ || error_; });
    if (!last_there_) throw *error_;
    last_available_ = true;
  }
  return static_cast<unsigned char*>(pieces_.back().data()) + last_shape_.bytes_before(layer);
}

}  // namespace nvllm::kvcache
