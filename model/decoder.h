// Decoder: one rank's share of a decoder of any family: embedding, layers, norm, head.
//
// In a pipeline it is the share of one stage's layers. The first stage has the embedding and the
// last the head; the sum of the residual stream is passed from stage to stage
// (ipc/collective/stage_link.h).
//
//   Decoder decoder(config, {rank, ranks}, DType::bf16);
//   const Buffer weights = bind_parameters(decoder.parameters(), decoder.dtype(), backend);
//   load_parameters(decoder.parameters(), checkpoint, backend, {});
//   DecoderMemory memory(decoder, {.rows = 512, .logit_rows = 16, .positions = 4096}, backend);
//   cache.begin_step(step, stream);
//   const TensorView logits =
//       decoder.forward(batch, cache, memory, {stream, gemm, communicator});
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/collective/stage_link.h"
#include "layers/context.h"
#include "layers/decoder_layer.h"
#include "layers/embedding.h"
#include "layers/partition.h"
#include "layers/per_layer_input.h"
#include "layers/rope.h"
#include "model/config/config.h"

namespace nvllm::model {

// Upper bounds of forward()'s arguments.
struct DecoderLimits {
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t positions = 0;  // all positions are below
  // Sequences whose linear-attention state is kept; unused in models without it.
  std::int64_t state_slots = 0;
  // Max. rows of a part, if rows are split into parts (layers::Batch); 0: they never are.
  std::int64_t micro_batch_rows = 0;
  // If rows are split, it is into two parts, whose sums over the ranks are overlapped; only with
  // micro_batch_rows == 0.
  bool overlap = false;
  bool invariant = false;  // layers::Context

  std::int64_t rows_at_once() const {
    return micro_batch_rows == 0 ? rows : std::min(rows, micro_batch_rows);
  }
};

class Decoder;

// Memory of a decoder besides weights and the cache, with computed sizes: activations, which every
// forward pass overwrites, the RoPE table, and the linear-attention states of sequences. The states
// persist between passes in their slots; a sequence's first rows start from zeros.
class DecoderMemory {
 public:
  DecoderMemory(const Decoder& decoder, const DecoderLimits& limits, Backend& backend);

  // Bytes of the activations.
  static std::size_t bytes(const Decoder& decoder, const DecoderLimits& limits);
  // Bytes of the linear-attention states.
  static std::size_t state_bytes(const Decoder& decoder, std::int64_t slots);

  // Calls piece(data, bytes) for each piece of the state of the sequence in a slot. All slots have
  // pieces of the same sizes, which, each rounded up to Scratch::kAlignment, sum up to
  // state_bytes(decoder, 1).
  template <typename Piece>
  void for_each_state_piece(std::int64_t slot, const Piece& piece) const {
    for (const layers::DeltaNetState& state : states_) {
      for (const TensorView& all : {state.conv, state.heads}) {
        if (all.data == nullptr) continue;
        const TensorView one = all.rows(slot, 1);
        if (one.bytes() > 0) piece(one.data, one.bytes());
      }
    }
  }

  // Where forward() writes the first `rows` rows of logits; also in every replay of a captured
  // graph.
  TensorView logits(const Decoder& decoder, std::int64_t rows) const;

 private:
  friend class Decoder;
  void make_states(const Decoder& decoder, std::int64_t slots, Backend& backend);

  DecoderLimits limits_;
  Buffer activations_;
  TensorView hidden_;            // [rows, hidden]: the residual stream's
  TensorView normed_, partial_;  // [rows at once, hidden]: the residual stream's
  TensorView squares_;           // for deferred norms (kernels::DeferredNorm)
  TensorView per_layer_;         // [rows, layers * width]: per-layer inputs; or no columns
  TensorView logits_;            // [logit_rows, stride of the head], float32
  layers::Scratch scratch_;
  layers::RopeTable rope_;
  std::optional<layers::RopeTable> local_rope_;
  Buffer state_memory_;
  std::vector<layers::DeltaNetState> states_;  // by layer; empty: no linear attention
};

// The device-side context of a forward pass.
struct ForwardResources {
  Stream& stream;
  kernels::Gemm& gemm;
  // The stage's communicator; nullptr, or with one rank: a single rank.
  ipc::Communicator* communicator = nullptr;
  ipc::StageLink* link = nullptr;  // nullptr: one stage
  // Called in stream order after each layer of a pass in parts, which may take minutes, and of a
  // prompt in a pipeline of CPUs, where other stages wait for it; the calling thread is
  // unspecified.
  std::function<void()> progress = {};
};

// Observes hidden states in order: "embed", "layer0", "layer1", ..., each [rows, hidden], and
// "norm", [logit rows, hidden]. The tensors are valid until the stream's work continues. Does not
// affect results.
using Observer = std::function<void(std::string_view what, TensorView hidden)>;

// Its parameters have no memory until they are bound. forward() may run on any number of threads,
// each with its own DecoderMemory.
class Decoder {
 public:
  // shard: of the stage's ranks; dtype: of weights, activations and cache.
  Decoder(const ModelConfig& config, layers::Shard shard, DType dtype, layers::Stage stage = {});
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // In the order in which a forward pass uses them. They live as long as the decoder.
  const std::vector<layers::Parameter*>& parameters() const { return parameters_; }
  // Whether some parameters are quantized.
  bool quantized() const;

  const ModelConfig& config() const { return config_; }
  layers::Shard shard() const { return shard_; }
  layers::Stage stage() const { return stage_; }
  // The range of the model's layers in this stage.
  layers::Range own_layers() const { return own_layers_; }
  DType dtype() const { return dtype_; }
  const layers::HeadShard& heads() const { return layers_.front().heads(); }
  // layer: one of own_layers().
  const layers::HeadShard& heads(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer - own_layers_.begin)].heads();
  }
  // The layout of a block of this rank's K/V for the stage's layers, in a cache of this type.
  kvcache::BlockShape block_shape(std::int64_t block_size, DType dtype) const;
  // Elements of attention's output per row, in the layer with the most.
  std::int64_t max_head_values() const;
  bool has_head() const { return head_.has_value(); }  // on the last stage
  const layers::LmHead& head() const { return *head_; }
  // Whether sums over the ranks can be overlapped (DecoderLimits::overlap); otherwise such parts
  // run through the layers together.
  bool can_overlap() const;
  // Bytes of the RoPE tables.
  std::size_t rope_bytes(std::int64_t positions) const;

  // Enqueues a pass without allocation or synchronization, so that it may be captured if the
  // cache's plan of the step allows it. kv: this rank's KV heads, for the stage's layers with
  // attention. Returns this rank's logits, float32 [logit rows, its part of the vocabulary], with a
  // row stride of head().stride(), in `memory`; no data on stages without the head. Throws an Error
  // for more rows than the memory was sized for.
  TensorView forward(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                     const ForwardResources& device, const Observer& observer = {}) const;

  // The same without the LM head's GEMM, which is returned: the caller runs it next, or samples in
  // its epilogue, before `memory` is used again. Nothing on stages without the head.
  std::optional<layers::LogitsCall> forward_to_head(const layers::Batch& batch,
                                                    kvcache::KvCache& kv, DecoderMemory& memory,
                                                    const ForwardResources& device) const;

  // Autotunes the GEMMs for passes of about this many rows (kernels::Gemm::tune) by running such a
  // pass, whose results are undefined. Waits for it. A collective call, like forward().
  void tune(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
            const ForwardResources& device) const;

 private:
  friend class DecoderMemory;

  // In the last layer's MLP block, up to this many rows whose logits are needed run without the
  // others. More of them, in steps that decode sequences along with prompts, would save less, and
  // need GEMMs with numbers of rows that occur in no other layer.
  static constexpr std::int64_t kMaxSelectedRows = 64;

  std::size_t scratch_bytes(const DecoderLimits& limits) const;
  void check(const layers::Batch& batch, const DecoderLimits& limits) const;
  void declare_parameters();
  std::int64_t own_kv_layers() const;
  // The pass of these rows through layer `layer` of layers_; in `memory` they start at first_row.
  layers::DecoderLayer::Pass pass_of(const layers::Batch& rows, std::int64_t first_row,
                                     kvcache::KvCache& kv, const DecoderMemory& memory,
                                     std::int64_t layer) const;
  void embed(const layers::Batch& rows, std::int64_t first_row, DecoderMemory& memory,
             const layers::Context& context) const;
  layers::ResidualStream stream_of(const DecoderMemory& memory, std::int64_t first_row,
                                   std::int64_t rows) const;
  layers::ResidualStream overlapped_stream_of(const DecoderMemory& memory,
                                              const layers::MicroBatch& part, int slot) const;
  // Runs all rows through one layer after the other, in the batch's parts. Of the residual stream
  // only its sum remains valid.
  void run_in_parts(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                    const layers::Context& context, const std::function<void()>& progress) const;
  // Two parts alternate, block by block, through all layers but the last: while one part's sum over
  // the ranks is computed, the other part runs its GEMMs. The last layer processes all rows at
  // once. prune_last_layer: as in run_layers().
  void run_overlapped(layers::ResidualStream& stream, const layers::Batch& batch,
                      kvcache::KvCache& kv, DecoderMemory& memory, const layers::Context& context,
                      bool prune_last_layer) const;
  // Runs all rows together through one layer after the other. prune_last_layer: only rows whose
  // logits are needed go through all of the last layer.
  void run_layers(layers::ResidualStream& stream, const layers::Batch& batch, kvcache::KvCache& kv,
                  DecoderMemory& memory, const layers::Context& context, const Observer& observer,
                  const std::function<void()>& progress, bool prune_last_layer) const;
  // all_rows: all of them go through all of the last layer, not only those whose logits are needed.
  std::optional<layers::LogitsCall> forward_to_head(const layers::Batch& batch,
                                                    kvcache::KvCache& kv, DecoderMemory& memory,
                                                    const ForwardResources& device,
                                                    const Observer& observer, bool all_rows) const;

  ModelConfig config_;
  layers::Shard shard_;
  layers::Stage stage_;
  layers::Range own_layers_;
  DType dtype_;
  layers::VocabParallelEmbedding embedding_;
  std::optional<layers::PerLayerEmbedding> per_layer_;
  std::deque<layers::DecoderLayer> layers_;
  std::vector<std::int64_t> kv_layers_;  // DecoderLayer::Pass::layer of each layer
  layers::RmsNorm norm_;
  std::optional<layers::LmHead> head_;
  std::vector<layers::Parameter*> parameters_;
};

}  // namespace nvllm::model
