// StepReads plans where the sequences of a ChunkedCache's step find the blocks that they attend to:
// in device slots, through the ring, or in host memory, where the host's cores read them. The plan
// follows from which sequences run and what lies in slots, so it is known before the step and loads
// can run ahead. StepTables writes the plan to the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kvcache/chunked/device_slots.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

class StepReads {
 public:
  static constexpr std::int64_t kNotStaged = -1;

  struct Rules {
    std::int64_t blocks = 0;  // of the cache
    std::int64_t block_size = 0;
    bool heads = true;            // without heads nothing is read
    bool quest = false;           // chooses for sequences of one row
    std::int64_t max_blocks = 0;  // of a sequence
    // A prompt policy chooses for prompts of so many tokens and more.
    bool prompts = false;
    std::int64_t min_tokens = 0;
    bool whole_sequences = false;  // nothing is computed in parts; neither Quest nor prompts choose
  };

  // A block that comes through the ring, once per layer: the step's sequences that attend to it
  // when it comes, and its number in the staged layer, if it goes there.
  struct Read {
    BlockId block = 0;
    std::vector<std::size_t> sequences;
    std::int64_t staged = kNotStaged;
    bool operator==(const Read&) const = default;
  };

  // A block over which the host's cores compute attention for a row.
  struct HostRead {
    std::int32_t row = 0;
    BlockId block = 0;
    bool operator==(const HostRead&) const = default;
  };

  // How a sequence's rows attend: to everything, in parts unless all of it lies in slots; to what
  // Quest or a prompt policy chooses; or to everything in one piece, which is staged.
  enum class Kind { everything, quest, prompt, whole };

  // What the plan says of one of the step's sequences.
  struct Part {
    Kind kind = Kind::everything;
    std::int64_t begin = 0, rows = 0;     // of the batch
    std::int64_t first = 0;               // position of the first row
    std::int64_t to_come = 0;             // rows of it in later steps
    std::vector<std::int32_t> residents;  // the slots of its blocks that are on the device
    std::int64_t resident_tokens = 0;     // tokens in these slots
    // Of a prompt that is chosen for, and of a whole sequence: it is staged when the ring has come
    // so far, and these are too, from slots. Or the prompt has residents, which are all of its
    // blocks, and is attended to where they are.
    struct Staged {
      std::int64_t number;
      DeviceSlot slot;
      bool operator==(const Staged&) const = default;
    };
    std::size_t reads_end = 0;
    std::vector<Staged> staged;

    bool is_staged() const { return kind == Kind::prompt || kind == Kind::whole; }
  };

  explicit StepReads(const Rules& rules);

  // host_share: the share of the reads of sequences with one row that the host's cores serve.
  void plan(const KvStep& step, const DeviceSlots& slots, double host_share);

  const std::vector<Part>& parts() const { return parts_; }
  // In the order in which they come: reads for staged layers first, sequence by sequence.
  const std::vector<Read>& through_ring() const { return reads_; }
  // How many of the reads [first, end) can be attended to in one part: reads that are not staged
  // and have the same sequences.
  std::size_t run_length(std::size_t first, std::size_t end) const;
  const std::vector<HostRead>& by_host() const { return host_reads_; }  // by ascending row
  // The width of the table of resident blocks. It is rounded up so that it seldom changes from step
  // to step: to the maximum if nothing else is read, otherwise to a power of two (at most the
  // number of slots, at least 1).
  std::int64_t residents() const { return residents_; }
  // Whether the step reads only blocks on the device.
  bool none() const { return reads_.empty() && host_reads_.empty(); }
  bool any(Kind kind) const;
  // Whether the step reads the same as the step before, in the same order.
  bool same_as_last() const;

 private:
  Kind kind_of(const StepSequence& sequence, const DeviceSlots& slots) const;
  std::span<const BlockId> blocks_of(const StepSequence& sequence) const;
  bool all_in_slots(const StepSequence& sequence, const DeviceSlots& slots) const;
  bool find_all(const StepSequence& sequence, const DeviceSlots& slots, Part& part);
  void stage(const StepSequence& sequence, const DeviceSlots& slots, Part& part);
  void find(const StepSequence& sequence, const DeviceSlots& slots, std::size_t place);
  void read(BlockId block, std::size_t sequence);
  void forget_reads();
  void assign_to_host(double share);

  const Rules rules_;
  // These vectors are members to keep their memory.
  std::vector<Part> parts_, last_parts_;
  std::int64_t residents_ = 0, last_residents_ = 0;
  std::vector<Read> reads_, last_reads_;
  std::vector<std::int32_t> read_of_;  // by block: its index in reads_, or kNoRead
  std::vector<BlockId> staging_;       // by number: which block the staged layer holds
  std::vector<HostRead> host_reads_, last_host_reads_;
  std::vector<std::int32_t> readers_;
  std::vector<bool> taken_;
};

// StepTables: what the device is told of a ChunkedCache's step, in its memory: where blocks are,
// and which of them each sequence finds in the device's slots. Written by the host before every
// step, in one copy or two, so that a graph that reads it serves for many steps. Used by one
// thread, with one stream.
class StepTables {
 public:
  struct Limits {
    std::int64_t blocks = 0, block_size = 0;
    std::int64_t slots = 0;                         // of the device
    std::int64_t ring_slots = 0, ring_at_once = 0;  // LoadRing's
    std::int64_t sequences = 0;                     // of a step
    int steps_ahead = 0;                            // steps that may be enqueued at once
    bool addresses = false;                         // of blocks in the host's memory, too
  };

  // Ledger: "step input" (device, pinned), "quest" (device): addresses.
  StepTables(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);  // device memory

  // Where a block lies in host memory. Sent to the device together with the block map, when that
  // has changed.
  void set_address(BlockId block, const void* address);
  void stage(const StepReads& reads, DeviceSlots& slots, Stream& stream);

  TensorView block_map() const;  // [blocks], int32: slots, or -1
  TensorView addresses() const;  // [blocks], int64
  TensorView whole(
      std::int64_t blocks) const;  // [1], int32: the tokens of so many blocks, up to ring_at_once
  // [1, blocks], int32: as many slots of the ring, one behind the other from this one on.
  TensorView ring(std::int64_t slot, std::int64_t blocks) const;
  // Of the step's sequences, int32: {0, rows} of one; the tokens of each in slots; and these slots.
  TensorView rows(std::size_t sequence) const;                          // [2]
  TensorView lengths(std::int64_t sequences) const;                     // [sequences]
  TensorView table(std::int64_t sequences, std::int64_t blocks) const;  // [sequences, blocks]

 private:
  // Words of 32 bits, one kind of them behind the other.
  struct Places {
    explicit Places(const Limits& limits);
    std::int64_t whole, ring, lengths, rows, table, end;
  };
  struct Staged {
    Buffer memory;  // pinned
    std::unique_ptr<Event> copied;
    Buffer addresses;  // pinned
  };

  TensorView ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const;
  void write(const StepReads& reads, std::int32_t* words) const;

  Backend& backend_;
  const Limits limits_;
  const Places at_;
  Buffer memory_, address_memory_;
  std::vector<std::int64_t> addresses_;
  std::vector<Staged> staged_;
  std::size_t next_ = 0;
};

}  // namespace nvllm::kvcache
