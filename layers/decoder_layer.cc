// The forward pass of a DecoderLayer, the plan of its GEMMs, and the memory that it needs.
#include "layers/decoder_layer.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::layers {
namespace {

// The KV prefetch into L2 for the attention of layer `layer`, issued by one of the two GEMMs that
// precede it (kernels::KvPrefetch). It is used only when many sequences decode: with fewer,
// attention's blocks request most of what they read as soon as they start.
kernels::KvPrefetch kv_prefetch_of(const Batch& batch, const kvcache::KvCache& kv,
                                   std::int64_t layer, std::int64_t share, std::int64_t window) {
  constexpr std::int64_t kManySequences = 17;
  if (batch.max_query_rows != 1 || batch.rows() < kManySequences) return {};
  // The prefetched pieces may lie before the sliding windows.
  if (window > 0 && window < batch.max_kv_length) return {};
  kernels::KvPrefetch prefetch =
      kv.prefetch(layer, batch.block_table_in(kv.in_window_group(layer)), batch.kv_length);
  prefetch.share = share;
  return prefetch;
}

// Returns nullptr if there is no norm.
const RmsNorm* pointer(const std::optional<RmsNorm>& norm) {
  return norm ? &*norm : nullptr;
}

}  // namespace

void DecoderLayer::forward(ResidualStream& stream, const Pass& pass, const Context& context) const {
  const LayerPlan plan = this->plan(stream, pass, context);
  if (delta_net_) {
    delta_net_->forward(stream, attention_norm_, pass.batch, pass.state, context);
  } else {
    attention_block(stream, pass, plan, context);
  }

  if (pass.select_logit_rows) select_rows(stream, pass.batch.logit_rows, context);

  if (beside_mlp_) {
    mlp_and_moe_block(stream, plan, context);
  } else if (moe_) {
    moe_->forward(stream, mlp_norm_, context);
  } else {
    mlp_block(stream, pass, plan, context);
  }
  if (per_layer_input_) per_layer_input_->forward(stream, pass.per_layer, context);
  stream.layer_scale = layer_scale_.view;
}

bool DecoderLayer::can_overlap() const {
  return attention_ && mlp_ && !moe_ && !per_layer_input_ && layer_scale_.shape.empty();
}

void DecoderLayer::forward_attention(ResidualStream& stream, const Pass& pass,
                                     const Context& context) const {
  attention_block(stream, pass, plan(stream, pass, context), context);
  begin_reduce_scatter(stream, mlp_norm_, context);
}

void DecoderLayer::forward_mlp(ResidualStream& stream, const Pass& pass,
                               const Context& context) const {
  mlp_block(stream, pass, plan(stream, pass, context), context);
  begin_reduce_scatter(stream, pass.next->attention_norm_, context);
}

void DecoderLayer::attention_block(ResidualStream& stream, const Pass& pass, const LayerPlan& plan,
                                   const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows();
  const TensorView qkv = context.scratch.allocate(stream.dtype(), rows, attention_->qkv.outputs());
  const TensorView heads =
      context.scratch.allocate(stream.dtype(), rows, attention_->output.inputs());

  kernels::GemmOperands in = norm_operands(stream, attention_norm_, context);
  in.out = qkv;
  in.kv_prefetch = kv_prefetch_of(pass.batch, pass.kv, pass.layer, 1, window_);
  context.gemm.run({plan.qkv, attention_->qkv.weight(), in}, context.stream);
  begin_all_gather(pass.other, context);
  norm_rope_and_store(qkv, pass, context);
  kernels::Attention attention = attention_of(heads, qkv, pass);
  attention.invariant = context.invariant;
  pass.kv.run_attention(pass.layer, attention, pass.batch.decode_sequences, context.stream);
  if (attention_->gate) {
    NVLLM_CHECK(stream.unfused_norms, "gates read the norm of the stream");
    const TensorView gate = context.scratch.allocate(stream.dtype(), rows, heads.shape[1]);
    attention_->gate->forward(gate, in.x, context);
    kernels::sigmoid_gate({.x = heads, .gate = gate}, context.stream);
  }
  if (attention_->output.tp_invariant()) {
    return attention_->output.forward(add_reduced(stream, pointer(post_attention_norm_)), heads,
                                      context);
  }
  context.gemm.run({plan.output, attention_->output.weight(),
                    add_operands(stream, heads, plan.output, &mlp_norm_, context,
                                 pointer(post_attention_norm_))},
                   context.stream);
}

void DecoderLayer::mlp_block(ResidualStream& stream, const Pass& pass, const LayerPlan& plan,
                             const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  kernels::GemmOperands in = norm_operands(stream, mlp_norm_, context);
  if (pass.next != nullptr && pass.next->attention_) {
    in.kv_prefetch = kv_prefetch_of(pass.batch, pass.kv, pass.next_layer, 0, pass.next->window_);
  }
  const GateUp rows = gate_up(in, stream.rows(), plan, context);
  begin_all_gather(pass.other, context);
  if (mlp_->down.tp_invariant()) {
    return mlp_->down.forward(add_reduced(stream, pointer(post_mlp_norm_)),
                              activated(rows, context), context);
  }
  kernels::GemmOperands out = add_operands(
      stream, rows.x, plan.down, pass.next == nullptr ? nullptr : &pass.next->attention_norm_,
      context, pointer(post_mlp_norm_));
  out.prologue.prepared = rows.prepared;
  context.gemm.run({plan.down, mlp_->down.weight(), out}, context.stream);
}

// The result is in scratch memory of the caller's frame.
DecoderLayer::GateUp DecoderLayer::gate_up(kernels::GemmOperands in, std::int64_t rows,
                                           const LayerPlan& plan, const Context& context) const {
  const DType dtype = in.x.dtype;
  const TensorView gate_up = context.scratch.allocate(dtype, rows, mlp_->gate_up.outputs());
  const TensorView activated = context.scratch.allocate(dtype, rows, mlp_->down.inputs());
  const bool fused = plan.gate_up.shape.fusion.epilogue == kernels::Epilogue::gated_activation;
  in.out = fused ? activated : gate_up;
  if (fused) in.epilogue.gate_up = gate_up;
  context.gemm.run({plan.gate_up, mlp_->gate_up.weight(), in}, context.stream);
  return {.x = in.out, .prepared = fused ? TensorView() : activated};
}

// The down GEMM's input for a plan without an activation prologue: runs the activation kernel.
TensorView DecoderLayer::activated(const GateUp& rows, const Context& context) const {
  if (rows.prepared.data == nullptr) return rows.x;
  kernels::gated_activation({.out = rows.prepared, .x = rows.x, .activation = mlp_->activation},
                            context.stream);
  return rows.prepared;
}

// Both read the stream as it is after the attention block. Their results are summed over the ranks
// in one collective, since each is normed before they are added.
void DecoderLayer::mlp_and_moe_block(ResidualStream& stream, const LayerPlan& plan,
                                     const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows(), hidden = stream.hidden.shape[1];
  const auto allocate = [&](std::int64_t count, std::int64_t columns) {
    return context.scratch.allocate(stream.dtype(), count, columns);
  };
  const TensorView both = allocate(2 * rows, hidden);
  const TensorView of_mlp = both.rows(0, rows), of_moe = both.rows(rows, rows);
  {
    const Scratch::Frame of_block(context.scratch);
    const GateUp inner = gate_up(norm_operands(stream, mlp_norm_, context), rows, plan, context);
    if (mlp_->down.tp_invariant()) {
      mlp_->down.forward(of_mlp, activated(inner, context), context);
    } else {
      kernels::GemmOperands down{.out = of_mlp, .x = inner.x};
      down.prologue.prepared = inner.prepared;
      context.gemm.run({plan.down, mlp_->down.weight(), down}, context.stream);
    }
  }
  {
    const Scratch::Frame of_block(context.scratch);
    const TensorView x = allocate(rows, hidden);
    run_norm(x, stream.hidden, beside_mlp_->norm, context);
    moe_->forward(of_moe, x, stream.hidden, context);
  }
  if (!context.alone() && !mlp_->down.tp_invariant()) {
    context.communicator->all_reduce(both, context.stream);
  }
  run_norm(of_mlp, of_mlp, beside_mlp_->post_mlp_norm, context);
  run_norm(of_moe, of_moe, beside_mlp_->moe_result_norm, context);
  kernels::scaled_sum(
      {.out = add_reduced(stream, pointer(post_mlp_norm_)), .a = of_mlp, .b = of_moe},
      context.stream);
}

LayerGemms DecoderLayer::gemms() const {
  LayerGemms gemms{.qkv = attention_ ? attention_->qkv.weight() : delta_net_->input_weight(),
                   .output = attention_ ? attention_->output.weight() : delta_net_->output_weight(),
                   .gate_up = {},
                   .down = {},
                   .attention_norm = attention_norm_.weight.view,
                   .mlp_norm = mlp_norm_.weight.view,
                   .mlp = mlp_.has_value()};
  if (mlp_) {
    gemms.gate_up = mlp_->gate_up.weight();
    gemms.down = mlp_->down.weight();
    gemms.activation = mlp_->activation;
  }
  return gemms;
}

LayerPlan DecoderLayer::plan(const ResidualStream& stream, const Pass& pass,
                             const Context& context) const {
  std::optional<LayerGemms> next;
  if (pass.next != nullptr) next = pass.next->gemms();
  return plan_layer(context.gemm, gemms(),
                    {.m = stream.rows(),
                     .mlp_m = pass.select_logit_rows ? pass.batch.logits() : stream.rows(),
                     .ranks = context.ranks(),
                     .unfused_norms = stream.unfused_norms,
                     .deferred = stream.deferred,
                     .may_defer = stream.squares.data != nullptr,
                     .next = next ? &*next : nullptr});
}

void DecoderLayer::norm_rope_and_store(TensorView qkv, const Pass& pass,
                                       const Context& context) const {
  kernels::NormRopeStore args;
  args.qkv = qkv;
  if (const auto& norms = attention_->norms) {
    args.q_norm = norms->q.weight.view;
    if (norms->k) args.k_norm = norms->k->weight.view;
    args.epsilon = norms->q.epsilon;
    args.weight_offset = norms->q.weight_offset;
  }
  args.norms_v = attention_->norms_v;
  args.shares_kv = attention_->shares_kv;
  args.cos_sin = pass.cos_sin;
  args.positions = pass.batch.positions;
  args.slot_mapping = pass.batch.slot_mapping_in(pass.kv.in_window_group(pass.layer));
  args.kv = pass.kv.store_view(pass.layer, context.stream);
  args.kv_scales = pass.kv.scales().of_layer(pass.layer);
  args.heads = part_.q.size();
  args.history_is_visible = true;
  kernels::norm_rope_store(args, context.stream);
}

// All attention parameters except the location of keys and values.
kernels::Attention DecoderLayer::attention_of(TensorView out, TensorView qkv,
                                              const Pass& pass) const {
  const Batch& batch = pass.batch;
  const std::int64_t rows = qkv.shape[0];
  kernels::Attention args;
  args.out = TensorView(out.data, out.dtype, {rows, part_.q.size(), head_dim_});
  args.q = TensorView(qkv.data, qkv.dtype, {rows, part_.q.size(), head_dim_});
  args.q.stride[0] = qkv.stride[0];
  args.kv.block_table = batch.block_table_in(pass.kv.in_window_group(pass.layer));
  args.kv_scales = pass.kv.scales().of_layer(pass.layer);
  args.sinks = attention_->sinks.view;
  args.query_start = batch.query_start;
  args.kv_length = batch.kv_length;
  args.group = part_.group;
  args.first_head = part_.first_head;
  args.window = window_;
  args.scale = scale_;
  args.max_query_rows = batch.max_query_rows;
  args.max_kv_length = batch.max_kv_length;
  return args;
}

std::size_t DecoderLayer::scratch_bytes(std::int64_t rows, DType dtype) const {
  const std::size_t mlp = mlp_scratch_bytes(rows, dtype);
  if (delta_net_) return std::max(delta_net_->scratch_bytes(rows, dtype), mlp);
  const std::size_t heads = Scratch::bytes_of(dtype, rows, attention_->output.inputs());
  const std::size_t attention = Scratch::bytes_of(dtype, rows, attention_->qkv.outputs()) +
                                heads * (attention_->gate ? 2 : 1) +
                                attention_->output.scratch_bytes(rows);
  return std::max(attention, mlp);
}

std::size_t DecoderLayer::mlp_scratch_bytes(std::int64_t rows, DType dtype) const {
  const std::size_t moe = moe_ ? moe_->scratch_bytes(rows, dtype) : 0;
  const std::size_t mlp = mlp_ ? Scratch::bytes_of(dtype, rows, mlp_->gate_up.outputs()) +
                                     Scratch::bytes_of(dtype, rows, mlp_->down.inputs()) +
                                     mlp_->down.scratch_bytes(rows)
                               : 0;
  if (beside_mlp_) {
    const std::int64_t hidden = attention_norm_.weight.shape[0];
    return Scratch::bytes_of(dtype, 2 * rows, hidden) +
           std::max(mlp, Scratch::bytes_of(dtype, rows, hidden) + moe);
  }
  const std::size_t per_layer = per_layer_input_ ? per_layer_input_->scratch_bytes(rows, dtype) : 0;
  return std::max(mlp + moe, per_layer);  // the layer has one of the two
}

}  // namespace nvllm::layers
