#include "layers/attention.h"

#include <cmath>

#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::layers {
namespace {

// With fewer sequences attention's blocks ask for most of what they read as soon as they come.
constexpr std::int64_t kManySequences = 17;

}  // namespace

kernels::KvPrefetch read_ahead(const Batch& batch, const kvcache::KvCache& kv, std::int64_t layer) {
  if (batch.max_query_rows != 1 || batch.rows() < kManySequences) return {};
  return kv.prefetch(layer, batch.block_table, batch.kv_length);
}

SelfAttention::SelfAttention(const std::string& name, const AttentionConfig& config, Shard shard)
    : part_(heads_of(config.heads, config.kv_heads, shard)),
      head_dim_(config.head_dim),
      qkv_(name + ".qkv", config.qkv, config.heads, config.kv_heads, config.head_dim, config.hidden,
           config.qkv_bias, shard),
      out_(name + ".out", config.output, config.hidden, config.heads * config.head_dim,
           {part_.q.begin * config.head_dim, part_.q.end * config.head_dim}, config.output_bias,
           shard) {
  if (config.qk_norm) {
    norms_.emplace(
        HeadNorms{RmsNorm(name + ".q_norm", config.q_norm, config.head_dim, config.epsilon),
                  RmsNorm(name + ".k_norm", config.k_norm, config.head_dim, config.epsilon)});
  }
}

void SelfAttention::declare(std::vector<Parameter*>& all) {
  qkv_.declare(all);
  if (norms_) {
    norms_->q.declare(all);
    norms_->k.declare(all);
  }
  out_.declare(all);
}

void SelfAttention::forward(ResidualStream& stream, const RmsNorm& norm, const Batch& batch,
                            kvcache::KvCache& kv, std::int64_t layer, TensorView cos_sin,
                            const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows();
  const TensorView qkv = context.scratch.take(stream.dtype(), rows, qkv_.outputs());
  const TensorView heads = context.scratch.take(stream.dtype(), rows, out_.inputs());
  Input in = stream.input(norm);
  in.ahead = read_ahead(batch, kv, layer);
  in.ahead.share = 1;  // the MLP before had the first one
  qkv_.forward(qkv, in, context);
  rotate_and_store(qkv, batch, kv.store_view(layer, context.stream), cos_sin, context);
  kv.run_attention(layer, attention_of(heads, qkv, batch), context.stream);
  out_.add_to(stream, {.x = heads}, context);
}

void SelfAttention::rotate_and_store(TensorView qkv, const Batch& batch, const kernels::KvView& kv,
                                     TensorView cos_sin, const Context& context) const {
  kernels::NormRopeStore args;
  args.qkv = qkv;
  if (norms_) {
    args.q_norm = norms_->q.weight.view;
    args.k_norm = norms_->k.weight.view;
    args.epsilon = norms_->q.epsilon;
  }
  args.cos_sin = cos_sin;
  args.positions = batch.positions;
  args.slots = batch.slots;
  args.kv = kv;
  args.heads = part_.q.size();
  args.only_rows_are_new = true;
  kernels::norm_rope_store(args, context.stream);
}

// All but where keys and values are.
kernels::Attention SelfAttention::attention_of(TensorView out, TensorView qkv,
                                               const Batch& batch) const {
  const std::int64_t rows = qkv.shape[0];
  kernels::Attention args;
  args.out = TensorView(out.data, out.dtype, {rows, part_.q.size(), head_dim_});
  args.q = TensorView(qkv.data, qkv.dtype, {rows, part_.q.size(), head_dim_});
  args.q.stride[0] = qkv.stride[0];
  args.kv.block_table = batch.block_table;
  args.query_start = batch.query_start;
  args.kv_length = batch.kv_length;
  args.group = part_.group;
  args.first_head = part_.first_head;
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  args.max_query_rows = batch.max_query_rows;
  args.max_kv_length = batch.max_kv_length;
  return args;
}

std::size_t SelfAttention::scratch_bytes(std::int64_t rows, DType dtype) const {
  return Scratch::bytes_of(dtype, rows, qkv_.outputs()) +
         Scratch::bytes_of(dtype, rows, out_.inputs());
}

}  // namespace nvllm::layers
