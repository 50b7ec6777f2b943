// ResidentBlocks: where keys and values are in host memory and visit the device in chunks, which blocks stay there. A
// sequence is told how many of its first blocks do when it enters, and they do until it leaves: all that it can
// ever need if there is room for them, else as many as there is room for. A block that several sequences keep
// takes one place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::runtime {

// Not thread-safe.
class ResidentBlocks {
 public:
  // The device has room for so many, of so many that there are. Where it has room for all, nobody has to share.
  ResidentBlocks(std::int64_t places, std::int64_t blocks);

  // All of so many blocks could stay.
  bool has_room_for(std::int64_t blocks) const { return all_ || blocks <= free(); }
  // The sequence has these blocks, and may have `most` one day. How many it keeps: that many places are its own from
  // now on, whether it has the blocks already or not.
  std::int64_t enter(std::span<const kvcache::BlockId> blocks, std::int64_t most);
  // It has one of those that it keeps, which is new.
  void add(kvcache::BlockId block);
  // kept: what enter() said.
  void leave(std::span<const kvcache::BlockId> blocks, std::int64_t kept);

  // Whether there are fewer places than blocks; then so many, and so many of them are nobody's.
  bool shared() const { return !all_; }
  std::int64_t places() const { return places_; }
  std::int64_t free() const { return places_ - held_ - promised_; }

 private:
  std::int32_t& holders(kvcache::BlockId block) {
    return holders_[static_cast<std::size_t>(block)];
  }

  const std::int64_t places_;
  const bool all_;
  std::int64_t held_ = 0;      // blocks with holders
  std::int64_t promised_ = 0;  // to sequences that do not have them yet
  std::vector<std::int32_t> holders_;
};

}  // namespace nvllm::runtime
