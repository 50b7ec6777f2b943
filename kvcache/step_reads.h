// StepReads: where the sequences of a ChunkedCache's step find the blocks that they attend to: in the device's
// slots, through the ring, or where they lie in host memory, by the host's cores. Known before the step from who runs
// and what is in slots, so loads can run ahead.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/device_slots.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

class StepReads {
 public:
  static constexpr std::int64_t kNotStaged = -1;

  struct Rules {
    std::int64_t blocks = 0;  // of the cache
    std::int64_t block_size = 0;
    bool heads = true;             // without heads nothing is read
    bool quest = false;            // chooses for sequences of one row
    std::int64_t most_blocks = 0;  // of a sequence
    // A prompt policy chooses for prompts of so many tokens and more.
    bool prompts = false;
    std::int64_t least_tokens = 0;
  };

  // A block that comes through the ring, once in each layer: the step's sequences that attend to it as it
  // comes, and which block of a staged one it is.
  struct Read {
    BlockId block = 0;
    std::vector<std::size_t> sequences;
    std::int64_t staged = kNotStaged;
    bool operator==(const Read&) const = default;
  };

  // A block that the host's cores attend to, for a row.
  struct HostRead {
    std::int32_t row = 0;
    BlockId block = 0;
    bool operator==(const HostRead&) const = default;
  };

  enum class Kind { everything, quest, prompt };  // of others than the first there are no partials

  // Of a sequence of the step.
  struct Part {
    Kind kind = Kind::everything;
    std::int64_t begin = 0, rows = 0;     // of the batch
    std::int64_t first = 0;               // position of the first row
    std::int64_t to_come = 0;             // rows of it in later steps
    std::vector<std::int32_t> residents;  // slots of its blocks that are in some
    std::int64_t resident_tokens = 0;     // that attention to everything finds there
    // Of a prompt that is chosen for: it is staged when the ring has come so far, and these are too, from slots. Or it
    // has residents, which are all of its blocks, and is attended to where they are.
    struct Staged {
      std::int64_t number;
      DeviceSlot slot;
    };
    std::size_t reads_end = 0;
    std::vector<Staged> staged;
  };

  explicit StepReads(const Rules& rules);

  // host_share: of what sequences of one row read, the share of the host's cores.
  void plan(const KvStep& step, const DeviceSlots& slots, double host_share);

  const std::vector<Part>& parts() const { return parts_; }
  // In the order in which they come: those that are staged first, sequence by sequence.
  const std::vector<Read>& through_ring() const { return reads_; }
  // Of the reads from `first` on, and before `end`, how many may be taken at once: those that are not staged, as far as
  // the same sequences attend to them.
  std::size_t together(std::size_t first, std::size_t end) const;
  const std::vector<HostRead>& by_host() const { return host_reads_; }  // by ascending row
  // As many as a part has residents, or more: so it seldom is another one than before. As many as a part can have if
  // nothing else is read; otherwise a power of two as far as there are slots, and 1 at least.
  std::int64_t residents() const { return residents_; }
  // Nothing but what is on the device.
  bool none() const { return reads_.empty() && host_reads_.empty(); }
  bool any(Kind kind) const;
  // The same work as in the step before, in the same order.
  bool as_before() const;

 private:
  Kind kind_of(const StepSequence& sequence) const;
  bool find_all(const StepSequence& sequence, const DeviceSlots& slots, Part& part);
  void stage(const StepSequence& sequence, const DeviceSlots& slots, Part& part);
  void find(const StepSequence& sequence, const DeviceSlots& slots, std::size_t place);
  void read(BlockId block, std::size_t sequence);
  void forget_reads();
  void give_to_host(double share);

  const Rules rules_;
  // The vectors are kept for their memory.
  std::vector<Part> parts_;
  std::int64_t residents_ = 0, last_residents_ = 0;
  std::vector<Read> reads_, last_reads_;
  std::vector<std::int32_t> read_of_;  // by block: its place in reads_; kNoRead
  std::vector<BlockId> staging_;       // as the reads go on: what is in which place
  std::vector<HostRead> host_reads_, last_host_reads_;
  std::vector<std::int32_t> readers_;
  std::vector<bool> taken_;
};

}  // namespace nvllm::kvcache
