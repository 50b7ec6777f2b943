#include "layers/sparse_moe.h"

#include <cmath>

#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/tree_sum.h"

namespace nvllm::layers {

struct SparseMoe::Routed {
  TensorView weights, expert_start, source_rows, entries;  // kernels::Route
};

SparseMoe::SparseMoe(const std::string& name, const SparseMoeConfig& config, Shard shard)
    : experts_per_token_(config.experts_per_token),
      renormalize_(config.renormalize),
      expert_parallel_(shard.tp_invariant || (config.expert_parallel && shard.ranks > 1)),
      activation_(config.activation),
      limit_(config.limit) {
  const auto experts = static_cast<std::int64_t>(config.experts.size());
  own_experts_ = expert_parallel_ ? even_part_of(experts, shard) : Range{0, experts};
  slice_ = expert_parallel_ ? Range{0, config.intermediate}
                            : shard_range(config.intermediate, shard, config.shard_alignment);
  if (shard.tp_invariant) sum_ = SegmentSum(segments_of(experts), shard);
  router_.name = name + ".router.weight";
  router_.shape = {experts, config.hidden};
  router_.slices = {
      {config.router + ".weight", {experts, config.hidden}, {0, experts}, {0, config.hidden}, 0}};
  set_weights(name, config);
  if (config.bias) set_biases(name, config, shard);
  if (config.shared_intermediate > 0) set_shared(name + ".shared", config, shard);
  if (!config.router_norm.empty()) {
    router_norm_.emplace(name + ".router.norm", config.router_norm, config.hidden, config.epsilon);
  }
  if (config.expert_scales.empty()) return;
  expert_scales_.name = name + ".expert_scales";
  expert_scales_.shape = {experts};
  expert_scales_.slices = {{config.expert_scales, {experts}, {0, experts}, {0, 1}, 0}};
}

void SparseMoe::set_weights(const std::string& name, const SparseMoeConfig& config) {
  const std::int64_t hidden = config.hidden, inner = config.intermediate;
  gate_up_.name = name + ".experts.gate_up.weight";
  gate_up_.shape = {own_experts_.size() * 2 * slice_.size(), hidden};
  gate_up_.may_be_quantized = MayBeQuantized::yes;
  down_.name = name + ".experts.down.weight";
  down_.shape = {own_experts_.size() * hidden, slice_.size()};
  down_.may_be_quantized = MayBeQuantized::yes;
  if (slice_.size() == 0) return;
  std::int64_t gate_up_row = 0, down_row = 0;
  for (std::int64_t number = own_experts_.begin; number < own_experts_.end; ++number) {
    const SparseMoeConfig::Expert& expert = config.experts[static_cast<std::size_t>(number)];
    for (const std::string& module : {expert.gate, expert.up}) {
      gate_up_.slices.push_back(
          {module + ".weight", {inner, hidden}, slice_, {0, hidden}, gate_up_row});
      gate_up_row += slice_.size();
    }
    down_.slices.push_back(
        {expert.down + ".weight", {hidden, inner}, {0, hidden}, slice_, down_row});
    down_row += hidden;
  }
}

void SparseMoe::set_shared(const std::string& name, const SparseMoeConfig& config, Shard shard) {
  const std::int64_t hidden = config.hidden, inner = config.shared_intermediate;
  shared_.emplace(Shared{
      .gate_up = MergedColumnParallelLinear(name + ".gate_up", config.shared.gate, config.shared.up,
                                            inner, hidden, /*bias=*/false, shard),
      .down = RowParallelLinear(name + ".down", config.shared.down, hidden, inner,
                                shard_range(inner, shard), /*bias=*/false, shard,
                                segments_of_parts(inner)),
      .gate = {}});
  Parameter& gate = shared_->gate;
  gate.name = name + ".gate";
  gate.shape = {1, hidden};
  gate.slices = {{config.shared_gate, {1, hidden}, {0, 1}, {0, hidden}, 0}};
}

void SparseMoe::set_biases(const std::string& name, const SparseMoeConfig& config, Shard shard) {
  const std::int64_t hidden = config.hidden, inner = config.intermediate;
  const bool has_down = expert_parallel_ || shard.rank == 0;
  router_bias_.name = name + ".router.bias";
  router_bias_.shape = {experts()};
  router_bias_.slices = {{config.router + ".bias", {experts()}, {0, experts()}, {0, 1}, 0}};
  gate_up_bias_.name = name + ".experts.gate_up.bias";
  gate_up_bias_.shape = {gate_up_.shape[0]};
  down_bias_.name = name + ".experts.down.bias";
  if (has_down) down_bias_.shape = {down_.shape[0]};
  std::int64_t gate_up_row = 0, down_row = 0;
  for (std::int64_t number = own_experts_.begin; number < own_experts_.end; ++number) {
    const SparseMoeConfig::Expert& expert = config.experts[static_cast<std::size_t>(number)];
    for (const std::string& module : {expert.gate, expert.up}) {
      if (slice_.size() == 0) continue;
      gate_up_bias_.slices.push_back({module + ".bias", {inner}, slice_, {0, 1}, gate_up_row});
      gate_up_row += slice_.size();
    }
    if (!has_down) continue;
    down_bias_.slices.push_back({expert.down + ".bias", {hidden}, {0, hidden}, {0, 1}, down_row});
    down_row += hidden;
  }
}

void SparseMoe::declare(std::vector<Parameter*>& all) {
  for (Parameter* parameter : {&router_, &gate_up_, &down_}) all.push_back(parameter);
  for (Parameter* each : {&router_bias_, &gate_up_bias_, &down_bias_, &expert_scales_}) {
    if (!each->shape.empty()) all.push_back(each);
  }
  if (router_norm_) router_norm_->declare(all);
  if (!shared_) return;
  shared_->gate_up.declare(all);
  shared_->down.declare(all);
  all.push_back(&shared_->gate);
}

SparseMoe::Routed SparseMoe::route(TensorView x, const Context& context) const {
  const std::int64_t rows = x.shape[0], k = experts_per_token_;
  const auto integers = [&](std::int64_t count) {
    const TensorView row = context.scratch.allocate(DType::i32, 1, count);
    return TensorView(row.data, DType::i32, {count});
  };
  Routed routed{.weights = context.scratch.allocate(DType::f32, rows, k),
                .expert_start = integers(experts() + 1),
                .source_rows = integers(rows * k),
                .entries = context.scratch.allocate(DType::i32, rows, k)};
  const TensorView logits = context.scratch.allocate(DType::f32, rows, experts());
  context.gemm.run(
      context.gemm.call(gemm_weight(router_, router_bias_.view), {.out = logits, .x = x}),
      context.stream);
  kernels::route({.logits = logits,
                  .weights = routed.weights,
                  .expert_start = routed.expert_start,
                  .source_rows = routed.source_rows,
                  .entries = routed.entries,
                  .renormalize = renormalize_,
                  .scales = expert_scales_.view},
                 context.stream);
  return routed;
}

SparseMoe::SharedResult SparseMoe::run_shared(TensorView x, const Context& context) const {
  const std::int64_t rows = x.shape[0];
  const SharedResult result{.out = context.scratch.allocate(x.dtype, rows, x.shape[1]),
                            .gate = context.scratch.allocate(DType::f32, rows, 1)};
  const Scratch::Frame frame(context.scratch);
  const TensorView gate_up = context.scratch.allocate(x.dtype, rows, shared_->gate_up.outputs());
  const TensorView activated = context.scratch.allocate(x.dtype, rows, shared_->down.inputs());
  shared_->gate_up.forward(gate_up, x, context);
  kernels::gated_activation({.out = activated, .x = gate_up, .activation = activation_},
                            context.stream);
  if (shared_->down.tp_invariant()) {
    shared_->down.forward(result.out, activated, context);
  } else {
    context.gemm.run(context.gemm.call(shared_->down.weight(), {.out = result.out, .x = activated}),
                     context.stream);
  }
  context.gemm.run(context.gemm.call(gemm_weight(shared_->gate), {.out = result.gate, .x = x}),
                   context.stream);
  return result;
}

void SparseMoe::forward(ResidualStream& stream, const RmsNorm& norm, const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  if (run_single_token(stream, norm, context)) return;
  const TensorView x = read_normed(stream, norm, context);
  const Routed routed = route(x, context);
  const SharedResult shared = shared_ ? run_shared(x, context) : SharedResult{};
  if (sum_.segments() > 0) {
    return run_experts(add_reduced(stream), {}, x, routed, shared, context);
  }
  const kernels::GemmOperands add = add_operands(stream, x, {}, nullptr, context);
  run_experts(add.out, add.residual, x, routed, shared, context);
}

bool SparseMoe::run_single_token(ResidualStream& stream, const RmsNorm& norm,
                                 const Context& context) const {
  // With more rows, other kernels sum in another order.
  const bool may = stream.rows() == 1 && !context.invariant && !expert_parallel_;
  if (!may || !expert_scales_.shape.empty()) return false;
  kernels::SingleTokenMoe one{.out = stream.hidden,
                              .x = stream.hidden,
                              .logits = {nullptr, DType::f32, {1, experts()}},
                              .gate_up = gemm_weight(gate_up_, gate_up_bias_.view),
                              .down = gemm_weight(down_, down_bias_.view),
                              .k = experts_per_token_,
                              .renormalize = renormalize_,
                              .activation = activation_,
                              .limit = limit_};
  if (!kernels::takes_single_token(context.stream.kind(), one)) return false;
  one.logits = context.scratch.allocate(DType::f32, 1, experts());
  one.activated = context.scratch.allocate(stream.dtype(), experts_per_token_, intermediate());
  kernels::GemmOperands in;
  if (shared_) {  // the shared expert reads the norm, too
    in.x = read_normed(stream, norm, context);
  } else {
    in = norm_operands(stream, norm, context);
  }
  in.out = one.logits;
  const bool norms = in.prologue.norm_weight.data != nullptr;
  context.gemm.run(context.gemm.call(
                       gemm_weight(router_, router_bias_.view), in,
                       {.prologue = norms ? kernels::Prologue::rms_norm : kernels::Prologue::none}),
                   context.stream);
  const SharedResult shared = shared_ ? run_shared(in.x, context) : SharedResult{};
  const kernels::GemmOperands add = add_operands(stream, in.x, {}, nullptr, context);
  one.out = add.out, one.residual = add.residual;
  one.x = in.x;
  one.norm_weight = in.prologue.norm_weight, one.epsilon = in.prologue.epsilon;
  one.shared = shared.out, one.shared_gate = shared.gate;
  kernels::single_token_moe(one, context.stream);
  return true;
}

void SparseMoe::forward(TensorView out, TensorView x, TensorView of_router,
                        const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const Routed routed = route(normed_for_router(of_router, context), context);
  run_experts(out, {}, x, routed, {}, context);
}

TensorView SparseMoe::normed_for_router(TensorView x, const Context& context) const {
  if (!router_norm_) return x;
  const TensorView normed = context.scratch.allocate(x.dtype, x.shape[0], x.shape[1]);
  run_norm(normed, x, *router_norm_, context);
  const float scale = 1 / std::sqrt(static_cast<float>(x.shape[1]));
  kernels::scaled_sum({.out = normed, .a = normed, .scale = scale}, context.stream);
  return normed;
}

// residual.data == nullptr: none. out may alias residual, but not x.
void SparseMoe::run_experts(TensorView out, TensorView residual, TensorView x, const Routed& routed,
                            const SharedResult& shared, const Context& context) const {
  // One row per entry: first the experts' gathered inputs, if any, then their outputs.
  const std::int64_t entries = routed.source_rows.shape[0];
  const auto allocate = [&](std::int64_t columns) {
    return context.scratch.allocate(x.dtype, entries, columns);
  };
  const TensorView of_experts = allocate(x.shape[1]), gate_up = allocate(2 * intermediate()),
                   activated = allocate(intermediate());
  const TensorView start = routed.expert_start.rows(own_experts_.begin, own_experts_.size() + 1);
  if (own_experts_.size() > 0) {
    context.gemm.run_grouped_mlp({.weight = gemm_weight(gate_up_, gate_up_bias_.view),
                                  .start = start,
                                  .out = activated,
                                  .x = x,
                                  .source_rows = routed.source_rows,
                                  .gathered = of_experts,
                                  .epilogue = kernels::Epilogue::gated_activation,
                                  .activation = activation_,
                                  .limit = limit_,
                                  .gate_up = gate_up},
                                 {.weight = gemm_weight(down_, down_bias_.view),
                                  .start = start,
                                  .out = of_experts,
                                  .x = activated},
                                 context.stream);
  }
  if (sum_.segments() > 0) return sum_experts(out, of_experts, routed, shared, context);
  kernels::combine_experts({.out = out,
                            .experts = of_experts,
                            .weights = routed.weights,
                            .entries = routed.entries,
                            .residual = residual,
                            .own_start = expert_parallel_ ? start : TensorView{},
                            .shared = shared.out,
                            .shared_gate = shared.gate},
                           context.stream);
}

// tp_invariant: segments consist of whole experts. The first one includes the shared expert's
// result, which every rank has in full.
void SparseMoe::sum_experts(TensorView out, TensorView of_experts, const Routed& routed,
                            const SharedResult& shared, const Context& context) const {
  const std::int64_t width = experts() / sum_.segments();
  const auto combine = [&](TensorView to, std::int64_t segment, Range rows) {
    const auto some = [&](TensorView tensor) {
      return tensor.data == nullptr ? tensor : tensor.rows(rows.begin, rows.size());
    };
    const bool has_shared = segment == 0;
    kernels::combine_experts({.out = to,
                              .experts = of_experts,
                              .weights = some(routed.weights),
                              .entries = some(routed.entries),
                              .own_start = routed.expert_start.rows(segment * width, width + 1),
                              .shared = has_shared ? some(shared.out) : TensorView{},
                              .shared_gate = has_shared ? some(shared.gate) : TensorView{}},
                             context.stream);
  };
  const auto add = [&](const kernels::TreeSum& sum, Range segments, Range rows) {
    for (std::int64_t n = 0; n < segments.size(); ++n) {
      combine(sum.sources.rows(n * rows.size(), rows.size()), segments.begin + n, rows);
    }
    kernels::tree_sum(sum, context.stream);
  };
  sum_.run(out, {}, add, context);
}

std::size_t SparseMoe::scratch_bytes(std::int64_t rows, DType dtype) const {
  const std::int64_t entries = rows * experts_per_token_;
  // The shared expert's result coexists with the experts' rows. Its intermediate rows do not, but
  // are counted, too.
  std::size_t shared = 0;
  if (shared_) {
    shared =
        Scratch::bytes_of(dtype, rows, router_.shape[1]) + Scratch::bytes_of(DType::f32, rows, 1) +
        Scratch::bytes_of(dtype, rows, shared_->gate_up.outputs()) +
        Scratch::bytes_of(dtype, rows, shared_->down.inputs()) + shared_->down.scratch_bytes(rows);
  }
  const std::size_t router =
      router_norm_ ? Scratch::bytes_of(dtype, rows, router_.shape[1]) : std::size_t{0};
  const std::size_t sum = sum_.scratch_bytes(rows, router_.shape[1]);
  return shared + router + sum + Scratch::bytes_of(DType::f32, rows, experts_per_token_) +
         Scratch::bytes_of(DType::i32, 1, experts() + 1) +
         Scratch::bytes_of(DType::i32, 1, entries) +
         Scratch::bytes_of(DType::i32, rows, experts_per_token_) +
         Scratch::bytes_of(DType::f32, rows, experts()) +
         Scratch::bytes_of(dtype, entries, router_.shape[1]) +
         Scratch::bytes_of(dtype, entries, 2 * intermediate()) +
         Scratch::bytes_of(dtype, entries, intermediate());
}

}  // namespace nvllm::layers
