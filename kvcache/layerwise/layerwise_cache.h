// LayerwiseCache: one rank's part of a KV cache in host memory that is loaded to the device layer
// by layer. Its blocks are the scheduler's, so prefix sharing works as in a paged cache.
//
//   host     groups of neighbouring blocks in pinned memory (layer_groups.h)
//   device   a ring of buffers, each [block][keys, values][token][kv_head][head_dim]: all blocks of
//            one layer. Every buffer has the same place for a block, so block tables and slots are
//            as if the buffer were the layer's cache. Only blocks that the step reads are loaded.
//
// A pass processes the layers in order, and may visit a layer several times with other rows before
// it continues. With N buffers the loads are up to N - 1 layers ahead, and start with the next
// step's before this step has ended:
//
//   load stream   wait computed and written (buffer), written (layer) -> load -> record loaded
//   pass          wait loaded -> store new tokens, attention ...      -> record computed
//   write stream  wait computed -> copy new tokens to the host -> record written (buffer, layer)
//
// A decode step may be captured (StepPlan::capturable). The graph then includes its copies. The
// loads round a sequence's last block up to a multiple of kGrain tokens, so that many steps need
// the same copies. For each sequence a kernel writes the new token to its block, at the position
// that the device knows. After its last layers the pass loads the first layers again, for the next
// step with the same graph key; any other step loads them before its pass.
//
// Quest reads only a few pages of a layer and does not need all of it on the device. With
// decodes_on_host, steps of one row per sequence load nothing: the pass stores the new tokens in a
// buffer, copies them from there to host memory (write_newest()), and reads all other tokens from
// host memory (host_blocks()). The graph key stays the same until a sequence enters another block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/kv_cache.h"
#include "kvcache/layerwise/layer_groups.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

// Every wait of one stream for another, by name. Each occurs at one place in the code, and a test
// can omit one to show that results become wrong without it.
enum class LayerwiseWait : std::uint8_t {
  load_of_reading,   // a load waits until the previous layer in its buffer has been read
  load_of_writing,   // and until its buffer's new tokens have been written to the host
  load_of_layer,     // and until its layer's new tokens have been written to the host
  pass_of_load,      // the pass waits for a layer's load
  writing_of_pass,   // new tokens are written to the host after the pass has stored them
  pass_of_writings,  // a step that reads host memory waits for all earlier writes to it
  load_of_leaving,   // a load of a captured pass waits until its buffer has been read
  pass_of_loads,     // a captured pass ends after its loads
};
inline constexpr std::uint8_t kLayerwiseWaits = 8;

// Not thread-safe; uses one stream for all passes.
class LayerwiseCache : public KvCache {
 public:
  // buffers: at least 2. left_out (bits of LayerwiseWait) and sizes are for tests. Ledger: "kv
  // cache layers" (device), device_bytes() per block; "kv cache" (pinned), host_bytes() per block
  // once all blocks have been used; with decodes_on_host also HostTables::host_bytes() per block as
  // "kv cache layers" (pinned).
  LayerwiseCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                 std::int64_t buffers, std::uint32_t left_out = 0, bool decodes_on_host = false,
                 const GroupSizes& sizes = {});
  // Waits for its copies.
  ~LayerwiseCache() override;

  // Bytes per block.
  static std::size_t device_bytes(const BlockShape& shape, std::int64_t buffers,
                                  bool decodes_on_host = false);
  static std::size_t host_bytes(const BlockShape& shape) { return shape.kv_bytes(); }

  TensorView tokens() const override { return tokens_; }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream&) override {}
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override;
  void run_attention(std::int64_t layer, const kernels::Attention& args,
                     std::int64_t decode_sequences, Stream& stream) override;
  void end_pass(Stream& stream) override;
  void end_step(Stream& stream) override;
  KvTraffic traffic() const override { return traffic_; }

  bool decodes_on_host() const { return decodes_on_host_; }
  // Whether this step decodes on the host. If so, store_view() only holds new tokens,
  // run_attention() must not be called, and the caller counts the bytes that it gathers.
  bool on_host() const { return on_host_; }
  // In such a step, after rows of a layer have been stored: copies them to host memory. kv_length:
  // the lengths of the layer's next sequences, as passed to attention, followed by padding. Returns
  // the blocks in which these sequences have their new tokens.
  std::span<const BlockId> write_newest(std::int64_t layer, const TensorView& kv_length,
                                        Stream& stream);
  // The locations of the layer's blocks: addresses of their groups' parts, and each block's index
  // in its group, [blocks], int32.
  GatheredQuest::Blocks host_blocks(std::int64_t layer) const;
  kernels::KvView group_of(BlockId block, std::int64_t layer);
  TensorView numbers_in_groups() const { return tables_->in_groups(); }

 private:
  static constexpr std::int64_t kNoLayer = -1;
  static constexpr std::int64_t kGrain = 256;  // tokens

  // Tokens [begin, end) of a block; with `blocks` > 1 also the whole blocks that follow it.
  struct Part {
    BlockId block = 0;
    std::int64_t blocks = 1;
    std::int64_t begin = 0, end = 0;
    bool operator==(const Part&) const = default;
  };
  struct BufferState {
    unsigned char* data = nullptr;  // the first block
    std::unique_ptr<Event> loaded, computed, written;
  };

  // Adds the parts of a sequence's blocks that hold `tokens`.
  void add_parts(std::vector<Part>& parts, std::span<const BlockId> blocks, std::int64_t first,
                 std::int64_t end) const;
  // Merges parts of the same block, or of adjacent blocks in a group.
  void join(std::vector<Part>& parts) const;
  void copy(const Part& part, std::int64_t layer, unsigned char* to, const unsigned char* from,
            Stream& stream);
  // The bytes of this many tokens, or of parts, in the first `layers` layers.
  std::uint64_t bytes_of(std::uint64_t tokens, std::int64_t layers) const;
  std::uint64_t bytes_of(std::span<const Part> parts, std::int64_t layers) const;
  void wait(LayerwiseWait which, Stream& stream, const Event& event) const;
  BufferState& buffer_of(std::int64_t layer);
  // All blocks of a layer in a buffer, without a table.
  kernels::KvView view_in(const BufferState& buffer, std::int64_t layer) const;
  unsigned char* place(std::int64_t layer, BlockId block);  // in the layer's buffer
  void copy_loads(std::int64_t layer);
  void load(std::int64_t layer);
  void leave_layer(Stream& stream);
  StepPlan begin_host_step(const KvStep& step, Stream& stream);
  // For captured steps.
  void choose_loads(std::span<const StepSequence> sequences);
  void choose_newest(std::span<const StepSequence> sequences);
  void choose_graph_key();
  void preload(Stream& stream);
  void leave_captured_layer(Stream& stream);

  Backend& backend_;
  BlockShape shape_;
  std::int64_t blocks_;
  std::uint32_t left_out_;
  Buffer device_;
  LayerGroups host_;
  TensorView tokens_;
  std::vector<BufferState> buffers_;
  std::vector<std::unique_ptr<Event>> layer_written_;
  std::unique_ptr<Stream> load_stream_, write_stream_;

  std::uint64_t visits_ = 0;          // of layers, in previous steps
  std::int64_t layer_ = kNoLayer;     // the pass's current layer
  std::size_t written_ = 0;           // entries of newest_ written in this layer
  std::vector<Part> loads_, writes_;  // of every layer, in this step

  // For passes that repeat. Layer l is in buffer l % N.
  bool capturable_ = false;  // this pass does
  // identifies the loads of such passes and the blocks that they write
  std::uint64_t graph_key_ = 0;
  std::vector<Part> key_loads_;               // the loads of graph_key_
  std::vector<BlockId> newest_, key_newest_;  // by sequence: the block of its new token
  bool preloaded_ = false;  // its first layers are in the buffers, or will be before the next pass
  std::vector<std::unique_ptr<Event>> left_, arrived_;  // of each layer, in a pass
  std::unique_ptr<Event> joined_, all_written_;

  // For steps that decode on the host.
  const bool decodes_on_host_;
  bool on_host_ = false;  // this step
  bool writing_ = false;  // copies to the host may be in flight that such a step has not waited for
  std::optional<HostTables> tables_;

  KvTraffic traffic_;
};

}  // namespace nvllm::kvcache
