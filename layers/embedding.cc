#include "layers/embedding.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/gemm/quantized_embedding.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/step_input.h"
#include "layers/linear.h"

namespace nvllm::layers {
namespace {

Parameter vocabulary_rows(const std::string& name, const std::string& tensor,
                          std::int64_t vocabulary, std::int64_t columns, Shard shard) {
  const Range own = vocabulary_part_of(vocabulary, shard);
  Parameter weight;
  weight.name = name + ".weight";
  weight.shape = {own.size(), columns};
  weight.may_be_quantized = MayBeQuantized::vocabulary;
  weight.unaligned_shards = shard.tp_invariant && vocabulary % 8 != 0;
  if (own.size() > 0) {
    weight.slices = {{tensor, {vocabulary, columns}, own, {0, columns}, 0}};
  }
  return weight;
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, const std::string& tensor,
                                               std::int64_t vocabulary, std::int64_t columns,
                                               Shard shard, float scale)
    : weight_(vocabulary_rows(name, tensor, vocabulary, columns, shard)),
      vocabulary_(vocabulary),
      shard_(shard),
      scale_(scale) {}

void VocabParallelEmbedding::forward(TensorView out, TensorView ids, const Context& context) const {
  const std::int64_t first_id = vocabulary_part_of(vocabulary_, shard_).begin;
  if (weight_.quantization) {
    kernels::quantized_embedding({.out = out,
                                  .ids = ids,
                                  .shape = weight_.quantized_shape(),
                                  .values = weight_.view,
                                  .scales = weight_.scales,
                                  .first_id = first_id,
                                  .scale = scale_},
                                 context.stream);
  } else {
    kernels::embedding(
        {.out = out, .ids = ids, .table = weight_.view, .first_id = first_id, .scale = scale_},
        context.stream);
  }
  // Exact: all summands but one are zeros. Only -0 becomes +0, which no GEMM's sum can distinguish.
  if (!context.alone()) context.communicator->all_reduce(out, context.stream);
}

LmHead::LmHead(const std::string& name, const std::string& tensor, std::int64_t vocabulary,
               std::int64_t columns, Shard shard, float cap)
    : own_weight_(vocabulary_rows(name, tensor, vocabulary, columns, shard)),
      weight_(&own_weight_),
      vocabulary_(vocabulary),
      shard_(shard),
      own_(vocabulary_part_of(vocabulary, shard)),
      cap_(cap) {}

LmHead::LmHead(const VocabParallelEmbedding& tied, float cap)
    : weight_(&tied.weight_),
      vocabulary_(tied.vocabulary_),
      shard_(tied.shard_),
      own_(vocabulary_part_of(vocabulary_, shard_)),
      cap_(cap) {}

std::int64_t LmHead::stride() const {
  std::int64_t widest = 0;
  Shard shard = shard_;
  for (shard.rank = 0; shard.rank < shard.ranks; ++shard.rank) {
    widest = std::max(widest, vocabulary_part_of(vocabulary_, shard).size());
  }
  return widest;
}

void LmHead::declare(std::vector<Parameter*>& all) {
  if (weight_ == &own_weight_) all.push_back(&own_weight_);
}

void LogitsCall::run(kernels::Gemm& with, Stream& stream) const {
  with.run(gemm, stream);
  if (cap > 0) kernels::soft_cap({.x = gemm.operands.out, .cap = cap}, stream);
}

LogitsCall LmHead::call(TensorView logits, const kernels::GemmOperands& in,
                        const Context& context) const {
  kernels::GemmOperands operands = in;
  operands.out = logits;
  const bool norm = in.prologue.norm_weight.data != nullptr;
  LogitsCall call{.gemm = context.gemm.call(
                      gemm_weight(*weight_, {}), operands,
                      {.prologue = norm ? kernels::Prologue::rms_norm : kernels::Prologue::none}),
                  .cap = cap_};
  if (cap_ > 0) call.gemm.plan.samples = false;  // the sampling epilogue cannot cap logits
  return call;
}

void LmHead::gather(TensorView all, TensorView logits, const Context& context) const {
  NVLLM_CHECK_EQ(logits.stride[0], stride());
  const TensorView padded(logits.data, logits.dtype, {logits.shape[0], stride()});
  context.communicator->all_gather(all, padded, context.stream);
}

}  // namespace nvllm::layers
