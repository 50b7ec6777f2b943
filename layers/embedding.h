// The two ends of a decoder, split by vocabulary: tokens to rows, and rows to logits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/parameter.h"
#include "layers/partition.h"

namespace nvllm::layers {

class VocabParallelEmbedding {
 public:
  // tensor: "model.embed_tokens.weight"; scale: factor of its rows.
  VocabParallelEmbedding(const std::string& name, const std::string& tensor,
                         std::int64_t vocabulary, std::int64_t columns, Shard shard,
                         float scale = 1);

  void declare(std::vector<Parameter*>& all) { all.push_back(&weight_); }

  // out: [rows, columns], the same on all ranks. ids: [rows], int32.
  void forward(TensorView out, TensorView ids, const Context& context) const;

 private:
  friend class LmHead;
  Parameter weight_;  // [own, columns]
  std::int64_t vocabulary_;
  Shard shard_;
  float scale_;
};

// A planned LM-head GEMM. The caller enqueues it, or samples in its epilogue where the plan allows
// that (kernels::Gemm::run_and_sample).
struct LogitsCall {
  kernels::GemmCall gemm;
  float cap = 0;  // kernels::SoftCap; 0: none

  void run(kernels::Gemm& with, Stream& stream) const;
};

// Computes the logits of this rank's part of the vocabulary, in float32.
class LmHead {
 public:
  // tensor: "lm_head.weight"; cap: LogitsCall::cap
  LmHead(const std::string& name, const std::string& tensor, std::int64_t vocabulary,
         std::int64_t columns, Shard shard, float cap = 0);
  // Shares the weight of the embedding, which must outlive this object.
  explicit LmHead(const VocabParallelEmbedding& tied, float cap = 0);
  LmHead(const LmHead&) = delete;
  LmHead& operator=(const LmHead&) = delete;

  void declare(std::vector<Parameter*>& all);  // none if tied

  Range vocabulary() const { return own_; }
  // The width of the widest part of all ranks.
  std::int64_t stride() const;

  // logits: [rows, vocabulary().size()], float32, any row stride. in: x, and the prologue's RMSNorm
  // if norm_weight is set.
  LogitsCall call(TensorView logits, const kernels::GemmOperands& in, const Context& context) const;

  // For tests and tools: gathers all ranks' logits on every rank. logits: [rows, own] with a row
  // stride of stride(), all of it allocated; all: [ranks, rows, stride()], dense, each row starting
  // with rank r's part.
  void gather(TensorView all, TensorView logits, const Context& context) const;

 private:
  Parameter own_weight_;
  const Parameter* weight_;  // own_weight_ or the embedding's
  std::int64_t vocabulary_;
  Shard shard_;
  Range own_;
  float cap_;
};

}  // namespace nvllm::layers
