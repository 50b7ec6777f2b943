#include "layers/decoder_layer.h"

#include <algorithm>
#include <cmath>

#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::layers {
namespace {

// What the attention of layer `layer` will read, for one of the two GEMMs ahead of it that fetch
// for it (kernels::KvPrefetch). Only where many sequences decode: with fewer, attention's blocks
// ask for most of what they read as soon as they come.
kernels::KvPrefetch kv_prefetch_of(const Batch& batch, const kvcache::KvCache& kv,
                                   std::int64_t layer, std::int64_t share, std::int64_t window) {
  constexpr std::int64_t kManySequences = 17;
  if (batch.max_query_rows != 1 || batch.rows() < kManySequences) return {};
  // The pieces that are fetched may be before the windows.
  if (window > 0 && window < batch.max_kv_length) return {};
  kernels::KvPrefetch prefetch = kv.prefetch(layer, batch.block_table, batch.kv_length);
  prefetch.share = share;
  return prefetch;
}

// nullptr: none.
const RmsNorm* pointer(const std::optional<RmsNorm>& norm) {
  return norm ? &*norm : nullptr;
}

}  // namespace

DecoderLayer::DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard)
    : part_(heads_of(config.attention.heads, config.attention.kv_heads, shard)),
      head_dim_(config.attention.head_dim),
      window_(config.attention.window),
      scale_(config.attention.scale != 0 ? config.attention.scale
                                         : 1.0f / std::sqrt(static_cast<float>(head_dim_))),
      attention_norm_(name + ".attention_norm", config.attention_norm, config.attention.hidden,
                      config.epsilon, config.norm_weight_offset),
      qkv_(name + ".attention.qkv", config.attention.qkv, config.attention.heads,
           config.attention.kv_heads, head_dim_, config.attention.hidden, config.attention.qkv_bias,
           shard),
      output_(name + ".attention.out", config.attention.output, config.attention.hidden,
              config.attention.heads * head_dim_,
              {part_.q.begin * head_dim_, part_.q.end * head_dim_}, config.attention.output_bias,
              shard),
      mlp_norm_(name + ".mlp_norm", config.mlp_norm, config.attention.hidden, config.epsilon,
                config.norm_weight_offset) {
  const MlpConfig& mlp = config.mlp;
  if (config.moe) {
    moe_.emplace(name + ".moe", *config.moe, shard);
  } else {
    mlp_.emplace(
        Mlp{.gate_up = MergedColumnParallelLinear(name + ".mlp.gate_up", mlp.gate, mlp.up,
                                                  mlp.intermediate, mlp.hidden, mlp.bias, shard),
            .down = RowParallelLinear(name + ".mlp.down", mlp.down, mlp.hidden, mlp.intermediate,
                                      part_of(mlp.intermediate, shard), mlp.bias, shard),
            .activation = mlp.activation});
  }
  const auto result_norm = [&](const char* part, const std::string& tensor) {
    return tensor.empty() ? std::nullopt
                          : std::optional(RmsNorm(name + part, tensor, config.attention.hidden,
                                                  config.epsilon, config.norm_weight_offset));
  };
  attention_result_norm_ = result_norm(".attention_result_norm", config.attention_result_norm);
  mlp_result_norm_ = result_norm(".mlp_result_norm", config.mlp_result_norm);
  NVLLM_CHECK(!moe_ || !mlp_result_norm_, "experts whose result is normed");
  if (!config.attention.sinks.empty()) {
    sinks_.name = name + ".attention.sinks";
    sinks_.shape = {part_.q.size()};
    sinks_.slices = {{config.attention.sinks, {config.attention.heads}, part_.q, {0, 1}, 0}};
  }
  if (!config.attention.qk_norm) return;
  const auto head_norm = [&](const char* part, const std::string& tensor) {
    return RmsNorm(name + part, tensor, head_dim_, config.attention.epsilon,
                   config.attention.norm_weight_offset);
  };
  head_norms_.emplace(HeadNorms{head_norm(".attention.q_norm", config.attention.q_norm),
                                head_norm(".attention.k_norm", config.attention.k_norm)});
}

void DecoderLayer::declare(std::vector<Parameter*>& all) {
  attention_norm_.declare(all);
  qkv_.declare(all);
  if (head_norms_) {
    head_norms_->q.declare(all);
    head_norms_->k.declare(all);
  }
  if (!sinks_.shape.empty()) all.push_back(&sinks_);
  output_.declare(all);
  if (attention_result_norm_) attention_result_norm_->declare(all);
  mlp_norm_.declare(all);
  if (moe_) return moe_->declare(all);
  mlp_->gate_up.declare(all);
  mlp_->down.declare(all);
  if (mlp_result_norm_) mlp_result_norm_->declare(all);
}

void DecoderLayer::forward(ResidualStream& stream, const Pass& pass, const Context& context) const {
  const kernels::LayerPlan plan = this->plan(stream, pass, context);
  const auto run = [&](const kernels::GemmPlan& of, const kernels::GemmWeight& weight,
                       const kernels::GemmOperands& operands) {
    context.gemm.run({of, weight, operands}, context.stream);
  };

  {  // The attention block.
    const Scratch::Frame frame(context.scratch);
    const std::int64_t rows = stream.rows();
    const TensorView qkv = context.scratch.allocate(stream.dtype(), rows, qkv_.outputs());
    const TensorView heads = context.scratch.allocate(stream.dtype(), rows, output_.inputs());

    kernels::GemmOperands in = norm_operands(stream, attention_norm_, context);
    in.out = qkv;
    in.kv_prefetch = kv_prefetch_of(pass.batch, pass.kv, pass.layer, 1, window_);
    run(plan.qkv, qkv_.weight(), in);
    norm_rope_and_store(qkv, pass, context);
    pass.kv.run_attention(pass.layer, attention_of(heads, qkv, pass), context.stream);
    run(plan.output, output_.weight(),
        add_operands(stream, heads, plan.output, &mlp_norm_, context,
                     pointer(attention_result_norm_)));
  }

  if (pass.select_logit_rows) select_rows(stream, pass.batch.logit_rows, context);

  if (moe_) {
    moe_->forward(stream, mlp_norm_, context);
  } else {
    mlp_block(stream, pass, plan, context);
  }
}

void DecoderLayer::mlp_block(ResidualStream& stream, const Pass& pass,
                             const kernels::LayerPlan& plan, const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows();
  const TensorView gate_up =
      context.scratch.allocate(stream.dtype(), rows, mlp_->gate_up.outputs());
  const TensorView activated = context.scratch.allocate(stream.dtype(), rows, mlp_->down.inputs());

  const bool fused = plan.gate_up.shape.fusion.epilogue == kernels::Epilogue::gated_activation;
  kernels::GemmOperands in = norm_operands(stream, mlp_norm_, context);
  in.out = fused ? activated : gate_up;
  if (fused) in.epilogue.gate_up = gate_up;
  if (pass.next != nullptr) {
    in.kv_prefetch = kv_prefetch_of(pass.batch, pass.kv, pass.layer + 1, 0, pass.next->window_);
  }
  context.gemm.run({plan.gate_up, mlp_->gate_up.weight(), in}, context.stream);
  kernels::GemmOperands out = add_operands(
      stream, in.out, plan.down, pass.next == nullptr ? nullptr : &pass.next->attention_norm_,
      context, pointer(mlp_result_norm_));
  if (!fused) out.prologue.prepared = activated;
  context.gemm.run({plan.down, mlp_->down.weight(), out}, context.stream);
}

kernels::LayerGemms DecoderLayer::gemms() const {
  kernels::LayerGemms gemms{.qkv = qkv_.weight(),
                            .output = output_.weight(),
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

kernels::LayerPlan DecoderLayer::plan(const ResidualStream& stream, const Pass& pass,
                                      const Context& context) const {
  std::optional<kernels::LayerGemms> next;
  if (pass.next != nullptr) next = pass.next->gemms();
  return context.gemm.plan_layer(
      gemms(), {.m = stream.rows(),
                .mlp_m = pass.select_logit_rows ? pass.batch.logits() : stream.rows(),
                .ranks = context.ranks(),
                .norms_apart = stream.norms_apart,
                .deferred = stream.deferred,
                .may_defer = stream.squares.data != nullptr,
                .next = next ? &*next : nullptr});
}

void DecoderLayer::norm_rope_and_store(TensorView qkv, const Pass& pass,
                                       const Context& context) const {
  kernels::NormRopeStore args;
  args.qkv = qkv;
  if (head_norms_) {
    args.q_norm = head_norms_->q.weight.view;
    args.k_norm = head_norms_->k.weight.view;
    args.epsilon = head_norms_->q.epsilon;
    args.weight_offset = head_norms_->q.weight_offset;
  }
  args.cos_sin = pass.cos_sin;
  args.positions = pass.batch.positions;
  args.slots = pass.batch.slots;
  args.kv = pass.kv.store_view(pass.layer, context.stream);
  args.kv_scales = pass.kv.scales().of_layer(pass.layer);
  args.heads = part_.q.size();
  args.only_rows_are_new = true;
  kernels::norm_rope_store(args, context.stream);
}

// All but where keys and values are.
kernels::Attention DecoderLayer::attention_of(TensorView out, TensorView qkv,
                                              const Pass& pass) const {
  const Batch& batch = pass.batch;
  const std::int64_t rows = qkv.shape[0];
  kernels::Attention args;
  args.out = TensorView(out.data, out.dtype, {rows, part_.q.size(), head_dim_});
  args.q = TensorView(qkv.data, qkv.dtype, {rows, part_.q.size(), head_dim_});
  args.q.stride[0] = qkv.stride[0];
  args.kv.block_table = batch.block_table;
  args.kv_scales = pass.kv.scales().of_layer(pass.layer);
  args.sinks = sinks_.view;
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
  const std::size_t attention = Scratch::bytes_of(dtype, rows, qkv_.outputs()) +
                                Scratch::bytes_of(dtype, rows, output_.inputs());
  return std::max(attention, mlp_scratch_bytes(rows, dtype));
}

std::size_t DecoderLayer::mlp_scratch_bytes(std::int64_t rows, DType dtype) const {
  if (moe_) return moe_->scratch_bytes(rows, dtype);
  return Scratch::bytes_of(dtype, rows, mlp_->gate_up.outputs()) +
         Scratch::bytes_of(dtype, rows, mlp_->down.inputs());
}

}  // namespace nvllm::layers
