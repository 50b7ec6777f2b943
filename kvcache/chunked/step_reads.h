// StepReads plans where the sequences of a ChunkedCache's step read their blocks: in device slots,
// through the ring, or in host memory, by the host's cores. The plan depends only on the running
// sequences and the contents of slots, so it is known before the step and loads can run ahead.
// StepTables writes the plan to device memory.
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
    bool quest = false;           // Quest selects pages for sequences of one row
    std::int64_t max_blocks = 0;  // max. per sequence
    // A prompt policy serves prompts of at least this many tokens.
    bool prompts = false;
    std::int64_t min_tokens = 0;
    bool whole_sequences = false;  // nothing is computed in parts; neither Quest nor prompts choose
  };

  // A block that is loaded through the ring once per layer: the step's sequences that attend to it
  // on arrival, and its number in the staged layer, if it belongs there.
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

  // The plan of one of the step's sequences.
  struct Part {
    Kind kind = Kind::everything;
    std::int64_t begin = 0, rows = 0;     // in the batch
    std::int64_t first = 0;               // position of the first row
    std::int64_t later_rows = 0;          // rows of it in later steps
    std::vector<std::int32_t> residents;  // slots of its blocks that are on the device
    std::int64_t resident_tokens = 0;     // tokens in these slots
    // A prompt served by a policy, or a whole sequence, is staged after this many ring reads, plus
    // these blocks from slots. Or all of its blocks are resident, and it attends to them in place.
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

  // host_share: the share of the reads of sequences with one row that the host's cores take.
  void plan(const KvStep& step, const DeviceSlots& slots, double host_share);

  const std::vector<Part>& parts() const { return parts_; }
  // In order of arrival: reads for staged layers first, sequence by sequence.
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
  // Whether the step reads the same as the previous one, in the same order.
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
  // Members only to keep their memory.
  std::vector<Part> parts_, last_parts_;
  std::int64_t residents_ = 0, last_residents_ = 0;
  std::vector<Read> reads_, last_reads_;
  std::vector<std::int32_t> read_of_;  // by block: its index in reads_, or kNoRead
  std::vector<BlockId> staging_;       // by number: the block that the staged layer holds
  std::vector<HostRead> host_reads_, last_host_reads_;
  std::vector<std::int32_t> readers_;
  std::vector<bool> taken_;
};

// StepTables: the plan of a ChunkedCache's step in device memory: the locations of blocks, and the
// resident blocks of each sequence. Written by the host before every step, in one copy or two, so
// that a graph that reads it serves many steps. Not thread-safe; uses one stream.
class StepTables {
 public:
  struct Limits {
    std::int64_t blocks = 0, block_size = 0;
    std::int64_t slots = 0;                         // of the device
    std::int64_t ring_slots = 0, ring_at_once = 0;  // LoadRing's
    std::int64_t sequences = 0;                     // per step
    int steps_ahead = 0;                            // steps that may be enqueued at once
    bool addresses = false;                         // also of blocks in host memory
  };

  // Ledger: "step input" (device, pinned), "quest" (device): addresses.
  StepTables(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);  // device memory

  // Sets a block's address in host memory. Sent to the device together with the block map, when
  // that has changed.
  void set_address(BlockId block, const void* address);
  void stage(const StepReads& reads, DeviceSlots& slots, Stream& stream);

  TensorView block_map() const;  // [blocks], int32: slots, or -1
  TensorView addresses() const;  // [blocks], int64
  TensorView whole(
      // [1], int32: the tokens of `blocks` blocks, at most ring_at_once
      std::int64_t blocks) const;
  // [1, blocks], int32: `blocks` consecutive slots of the ring, from this one on.
  TensorView ring(std::int64_t slot, std::int64_t blocks) const;
  // Tables of the step's sequences, int32: {0, rows} of one sequence; the resident tokens of each;
  // and their slots.
  TensorView rows(std::size_t sequence) const;                          // [2]
  TensorView lengths(std::int64_t sequences) const;                     // [sequences]
  TensorView table(std::int64_t sequences, std::int64_t blocks) const;  // [sequences, blocks]

 private:
  // Offsets in 32-bit words; the arrays are contiguous.
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
