#include "kvcache/host_blocks.h"

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "base/divide.h"
#include "base/text.h"
#include "device/host_memory.h"

namespace nvllm::kvcache {

HostBlocks::HostBlocks(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                       std::size_t piece_bytes, std::size_t ahead_bytes)
    : backend_(backend),
      layers_(shape.layers),
      blocks_(blocks),
      part_bytes_(static_cast<std::size_t>(2 * shape.layer_elements()) * size_of(shape.dtype)),
      places_(static_cast<std::size_t>(blocks), kNoPlace) {
  NVLLM_CHECK(blocks >= 0, blocks);
  const std::size_t block_bytes = shape.kv_bytes();
  if (block_bytes == 0 || blocks == 0) return;
  piece_blocks_ =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(piece_bytes / block_bytes), 1, blocks);
  const std::size_t all_of_piece = static_cast<std::size_t>(piece_blocks_) * block_bytes;
  wanted_ = ahead_ = std::max(ahead_bytes / all_of_piece, std::size_t{1});
  const Ledger& ledger = backend.ledger();
  require_host_memory(static_cast<std::size_t>(blocks) * block_bytes,
                      ledger.total(MemoryKind::pinned) + ledger.total(MemoryKind::host),
                      "kv cache");
  pieces_.resize(static_cast<std::size_t>(divide_up(blocks, piece_blocks_)));
  thread_ = std::thread([this] { allocate_all(); });
}

HostBlocks::~HostBlocks() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    news_.notify_all();
  }
  thread_.join();
}

Error HostBlocks::why_no_more(std::size_t there, const char* what) const {
  const std::size_t all = static_cast<std::size_t>(blocks_ * layers_) * part_bytes_;
  return Error(str("KV cache in host memory: ", format_bytes(there), " of ", format_bytes(all),
                   " are there, then: ", what, "; pass a smaller --kv-offloading-size"));
}

void HostBlocks::allocate_all() {
  const std::size_t block_bytes = static_cast<std::size_t>(layers_) * part_bytes_;
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [&] { return stopping_ || (piece < wanted_ && !paused_); });
      if (stopping_) return;
      allocating_ = true;
    }
    const auto first = static_cast<std::int64_t>(piece) * piece_blocks_;
    const std::int64_t count = std::min(piece_blocks_, blocks_ - first);
    try {
      pieces_[piece] = backend_.allocate(MemoryKind::pinned,
                                         static_cast<std::size_t>(count) * block_bytes, "kv cache");
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      allocating_ = false;
      error_ = why_no_more(static_cast<std::size_t>(first) * block_bytes, error.what());
      news_.notify_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    allocating_ = false;
    ++there_;
    news_.notify_all();
  }
}

HostBlocks::Pause::Pause(HostBlocks& blocks) : blocks_(blocks) {
  std::unique_lock lock(blocks_.mutex_);
  blocks_.paused_ = true;
  blocks_.news_.wait(lock, [&] { return !blocks_.allocating_; });
}

HostBlocks::Pause::~Pause() {
  const std::lock_guard lock(blocks_.mutex_);
  blocks_.paused_ = false;
  blocks_.news_.notify_all();
}

void* HostBlocks::part(BlockId block, std::int64_t layer) {
  NVLLM_CHECK(block >= 0 && block < blocks_, "there is no host block ", block, " of ", blocks_);
  std::int64_t& place = places_[static_cast<std::size_t>(block)];
  if (place == kNoPlace) place = placed_++;
  const auto piece = static_cast<std::size_t>(place / piece_blocks_);
  if (piece >= asked_) {
    std::unique_lock lock(mutex_);
    wanted_ = std::max(wanted_, piece + 1 + ahead_);
    news_.notify_all();
    news_.wait(lock, [&] { return there_ > piece || error_; });
    if (there_ <= piece) throw *error_;
    asked_ = piece + 1;
  }
  const auto part = static_cast<std::size_t>(place % piece_blocks_ * layers_ + layer);
  return static_cast<unsigned char*>(pieces_[piece].data()) + part * part_bytes_;
}

}  // namespace nvllm::kvcache
