// Decoder: a decoder of any family, one rank's share of it: embedding, layers, norm, head.
//
// In a pipeline the share is of one stage's layers. The embedding is on the first stage and the
// head on the last; what flows between them, the sum of the residual stream, goes from stage to
// stage (ipc/collective/stage_link.h).
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

// What forward() is given at most.
struct DecoderLimits {
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t positions = 0;  // every position is below
  // Sequences whose state linear attention keeps; models without it keep none.
  std::int64_t state_slots = 0;
  // Of a part, where rows are in parts (layers::Batch); 0: they never are.
  std::int64_t part_rows = 0;
  // Parts, where rows are in some, are two, whose sums over the ranks are overlapped: with
  // part_rows == 0 alone.
  bool overlap = false;
  bool invariant = false;  // layers::Context

  std::int64_t rows_at_once() const { return part_rows == 0 ? rows : std::min(rows, part_rows); }
};

class Decoder;

// What a decoder needs beside weights and the cache, sized by arithmetic: activations, which every
// forward pass overwrites, the RoPE table, and of linear attention the states of sequences. These
// live from pass to pass in their slots, and a sequence's first rows start from zeros.
class DecoderMemory {
 public:
  DecoderMemory(const Decoder& decoder, const DecoderLimits& limits, Backend& backend);

  // Of the activations.
  static std::size_t bytes(const Decoder& decoder, const DecoderLimits& limits);
  // Of the states of linear attention.
  static std::size_t state_bytes(const Decoder& decoder, std::int64_t slots);

  // Calls piece(data, bytes) for each piece of what is kept of the sequence in a slot. A slot's
  // pieces have the same sizes as another's, and together, each rounded up to Scratch::kAlignment,
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

  // Where forward() leaves the first `rows` rows of logits: also a captured one, in every replay.
  TensorView logits(const Decoder& decoder, std::int64_t rows) const;

 private:
  friend class Decoder;
  void make_states(const Decoder& decoder, std::int64_t slots, Backend& backend);

  DecoderLimits limits_;
  Buffer activations_;
  TensorView sum_;            // [rows, hidden]: of the residual stream
  TensorView normed_, part_;  // [rows at once, hidden]: likewise
  TensorView squares_;        // of deferred norms (kernels::DeferredNorm)
  TensorView per_layer_;      // [rows, layers * width]: inputs of layers; or no columns
  TensorView logits_;         // [logit_rows, stride of the head], float32
  layers::Scratch scratch_;
  layers::RopeTable rope_;
  std::optional<layers::RopeTable> local_rope_;
  Buffer state_memory_;
  std::vector<layers::DeltaNetState> states_;  // of every layer; empty: none has any
};

// What a forward pass runs on.
struct Device {
  Stream& stream;
  kernels::Gemm& gemm;
  // Of the stage's ranks; nullptr, or of one: there is one rank.
  ipc::Communicator* communicator = nullptr;
  ipc::StageLink* link = nullptr;  // nullptr: one stage
  // Called by the stream behind each layer of a pass in parts, which may take minutes, and of a
  // prompt's in a pipeline of CPUs, where other stages wait for it; by what thread is the stream's
  // affair.
  std::function<void()> progress = {};
};

// Sees hidden states as they come: "embed", "layer0", "layer1", ..., each [rows, hidden], and
// "norm", [logit rows, hidden]. The tensors are good until the stream's work goes on; nothing else
// changes.
using Observer = std::function<void(std::string_view what, TensorView hidden)>;

// Its parameters have no memory until they are bound. forward() may run on any number of threads,
// each with its own DecoderMemory.
class Decoder {
 public:
  // shard: of the stage's ranks; dtype: of weights, activations and cache.
  Decoder(const ModelConfig& config, layers::Shard shard, DType dtype, layers::Stage stage = {});
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // In the order in which a forward pass needs them. They live as long as the decoder.
  const std::vector<layers::Parameter*>& parameters() const { return parameters_; }
  // Whether some of them are kept quantized.
  bool quantized() const;

  const ModelConfig& config() const { return config_; }
  layers::Shard shard() const { return shard_; }
  layers::Stage stage() const { return stage_; }
  // Which of the model's layers these are.
  layers::Range own_layers() const { return own_layers_; }
  DType dtype() const { return dtype_; }
  const layers::HeadPart& heads() const { return layers_.front().heads(); }
  // Of one of own_layers().
  const layers::HeadPart& heads(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer - own_layers_.begin)].heads();
  }
  // How blocks of this rank's keys and values, of the stage's layers, lie in a cache of this type.
  kvcache::BlockShape block_shape(std::int64_t block_size, DType dtype) const;
  // Of attention's results for a row, in the layer that has the most.
  std::int64_t max_head_values() const;
  bool has_head() const { return head_.has_value(); }  // on the last stage
  const layers::LmHead& head() const { return *head_; }
  // Of the tables of RoPE.
  std::size_t rope_bytes(std::int64_t positions) const;

  // Enqueues it; no allocation, no synchronisation, so it may be captured if the cache's plan of
  // the step allows it. kv: of this rank's KV heads, of the stage's layers with attention. Returns
  // this rank's logits, float32 [logit rows, its part of the vocabulary], rows head().stride()
  // apart, in `memory`; no data on stages without the head. An Error for more rows than the memory
  // was made for.
  TensorView forward(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                     const Device& device, const Observer& observer = {}) const;

  // The same but for what makes the logits, which is returned: it is to be run next, or sampled
  // from in its GEMM's epilogue, before `memory` is used again. Nothing on stages without the head.
  std::optional<layers::LogitsCall> forward_to_head(const layers::Batch& batch,
                                                    kvcache::KvCache& kv, DecoderMemory& memory,
                                                    const Device& device) const;

  // Chooses how the GEMMs of passes of about so many rows are computed (kernels::Gemm::tune) by
  // running such a pass, whose results are worth nothing. Waits for it. A collective call, as
  // forward() is.
  void tune(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
            const Device& device) const;

 private:
  friend class DecoderMemory;
  std::size_t scratch_bytes(const DecoderLimits& limits) const;
  void check(const layers::Batch& batch, const DecoderLimits& limits) const;
  void declare_parameters();
  std::int64_t own_kv_layers() const;
  // The pass of these rows through layer `layer` of layers_; they are those from first_row on in
  // `memory`.
  layers::DecoderLayer::Pass pass_of(const layers::Batch& rows, std::int64_t first_row,
                                     kvcache::KvCache& kv, const DecoderMemory& memory,
                                     std::int64_t layer) const;
  void embed(const layers::Batch& rows, std::int64_t first_row, DecoderMemory& memory,
             const layers::Context& context) const;
  layers::ResidualStream stream_of(const DecoderMemory& memory, std::int64_t first_row,
                                   std::int64_t rows) const;
  layers::ResidualStream overlapped_stream_of(const DecoderMemory& memory,
                                              const layers::BatchPart& part, int slot) const;
  // All rows through one layer after the other, each in the batch's parts. Of the residual stream
  // nothing but its sums is left.
  void run_in_parts(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                    const layers::Context& context, const std::function<void()>& progress) const;
  // Whether a batch goes through run_overlapped().
  bool overlaps(const layers::Batch& batch, const DecoderLimits& limits) const;
  // Two parts take turns, block by block, through all layers but the last: while a part's sum over
  // the ranks is made, the other part has the GEMMs. The last layer takes all rows at once. early:
  // as of run_layers().
  void run_overlapped(layers::ResidualStream& stream, const layers::Batch& batch,
                      kvcache::KvCache& kv, DecoderMemory& memory, const layers::Context& context,
                      bool early) const;
  // All rows together through one layer after the other. early: only those whose logits are wanted
  // go through all of the last layer.
  void run_layers(layers::ResidualStream& stream, const layers::Batch& batch, kvcache::KvCache& kv,
                  DecoderMemory& memory, const layers::Context& context, const Observer& observer,
                  const std::function<void()>& progress, bool early) const;
  // all_rows: all of them go through all of the last layer, not only those whose logits are wanted.
  std::optional<layers::LogitsCall> forward_to_head(const layers::Batch& batch,
                                                    kvcache::KvCache& kv, DecoderMemory& memory,
                                                    const Device& device, const Observer& observer,
                                                    bool all_rows) const;

  ModelConfig config_;
  layers::Shard shard_;
  layers::Stage stage_;
  layers::Range own_layers_;
  DType dtype_;
  layers::VocabParallelEmbedding embedding_;
  std::optional<layers::PerLayerEmbedding> per_layer_;
  std::deque<layers::DecoderLayer> layers_;
  std::vector<std::int64_t> kv_layers_;  // DecoderLayer::Pass::layer of each of them
  layers::RmsNorm norm_;
  std::optional<layers::LmHead> head_;
  std::vector<layers::Parameter*> parameters_;
};

}  // namespace nvllm::model
