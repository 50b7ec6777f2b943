#include "layers/linear.h"

#include "base/check.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::layers {
namespace {

// Slices the first or the second half of each head's outputs: q or the gates.
std::vector<ColumnParallelLinear::Module> halves_of_heads(const std::string& module,
                                                          std::int64_t heads, Range own,
                                                          std::int64_t head_dim, bool second) {
  std::vector<ColumnParallelLinear::Module> halves;
  for (std::int64_t head = own.begin; head < own.end; ++head) {
    const std::int64_t first = (2 * head + (second ? 1 : 0)) * head_dim;
    halves.push_back({module, 2 * heads * head_dim, {first, first + head_dim}});
  }
  return halves;
}

std::vector<ColumnParallelLinear::Module> qkv_modules(const QkvParallelLinear::Modules& modules,
                                                      std::int64_t heads, std::int64_t kv_heads,
                                                      std::int64_t head_dim, Shard shard) {
  const HeadShard part = heads_of(heads, kv_heads, shard);
  std::vector<ColumnParallelLinear::Module> all;
  if (modules.gated) {
    all = halves_of_heads(modules.q, heads, part.q, head_dim, /*second=*/false);
  } else {
    all = {{modules.q, heads * head_dim, scaled(part.q, head_dim)}};
  }
  if (modules.k.empty()) return all;
  for (const std::string& module : {modules.k, modules.v.empty() ? modules.k : modules.v}) {
    all.push_back({module, kv_heads * head_dim, scaled(part.kv, head_dim)});
  }
  return all;
}

}  // namespace

kernels::GemmWeight gemm_weight(const Parameter& weight, const TensorView& bias) {
  if (!weight.quantization) {
    return {.values = weight.view, .bias = bias, .unaligned_shards = weight.unaligned_shards};
  }
  return {.values = weight.view,
          .bias = bias,
          .format = weight.quantization->format,
          .quantized = {.scales = weight.scales,
                        .inputs = weight.shape[1],
                        .group = weight.quantization->group,
                        .type = weight.type,
                        .weight_only = weight.quantization->weight_only,
                        .blocks = weight.quantization->blocks}};
}

ColumnParallelLinear::ColumnParallelLinear(const std::string& name,
                                           const std::vector<Module>& modules, std::int64_t inputs,
                                           bool bias, bool unaligned_shards) {
  weight_.name = name + ".weight";
  bias_.name = name + ".bias";
  std::int64_t rows = 0;
  for (const Module& module : modules) {
    if (module.own.size() == 0) continue;
    weight_.slices.push_back(
        {module.name + ".weight", {module.outputs, inputs}, module.own, {0, inputs}, rows});
    if (bias) {
      bias_.slices.push_back({module.name + ".bias", {module.outputs}, module.own, {0, 1}, rows});
    }
    rows += module.own.size();
  }
  weight_.shape = {rows, inputs};
  weight_.unaligned_shards = unaligned_shards;
  weight_.may_be_quantized = MayBeQuantized::yes;
  if (bias) bias_.shape = {rows};
}

void ColumnParallelLinear::declare(std::vector<Parameter*>& all) {
  all.push_back(&weight_);
  if (!bias_.shape.empty()) all.push_back(&bias_);
}

void ColumnParallelLinear::forward(TensorView out, TensorView x, const Context& context) const {
  context.gemm.run(context.gemm.call(weight(), {.out = out, .x = x}), context.stream);
}

QkvParallelLinear::QkvParallelLinear(const std::string& name, const Modules& modules,
                                     std::int64_t heads, std::int64_t kv_heads,
                                     std::int64_t head_dim, std::int64_t inputs, bool bias,
                                     Shard shard)
    : ColumnParallelLinear(name, qkv_modules(modules, heads, kv_heads, head_dim, shard), inputs,
                           bias, shard.tp_invariant && head_dim % 8 != 0) {}

OutputGateParallelLinear::OutputGateParallelLinear(const std::string& name, const std::string& q,
                                                   std::int64_t heads, std::int64_t kv_heads,
                                                   std::int64_t head_dim, std::int64_t inputs,
                                                   bool bias, Shard shard)
    : ColumnParallelLinear(name,
                           halves_of_heads(q, heads, heads_of(heads, kv_heads, shard).q, head_dim,
                                           /*second=*/true),
                           inputs, bias, shard.tp_invariant && head_dim % 8 != 0) {}

RowParallelLinear::RowParallelLinear(const std::string& name, const std::string& module,
                                     std::int64_t outputs, std::int64_t inputs, Range own,
                                     bool bias, Shard shard, std::int64_t segments)
    : inputs_(own.size()), outputs_(outputs) {
  weight_.name = name + ".weight";
  if (shard.tp_invariant) {
    sum_ = SegmentSum(segments, shard);
    width_ = inputs / segments;
    NVLLM_CHECK(width_ * segments == inputs && scaled(sum_.own(), width_).size() == own.size(),
                inputs, " inputs in ", segments, " segments, of which ", own.size(), " are own");
    weight_.shape = {sum_.own().size() * outputs, width_};
    // All segments or none are quantized, so that ranks do not differ.
    if (width_ % kQuantizedCut == 0) weight_.may_be_quantized = MayBeQuantized::yes;
    std::int64_t to = 0;
    for (std::int64_t n = sum_.own().begin; n < sum_.own().end; ++n, to += outputs) {
      const Range columns{n * width_, (n + 1) * width_};
      weight_.slices.push_back({module + ".weight", {outputs, inputs}, {0, outputs}, columns, to});
    }
  } else {
    weight_.shape = {outputs, own.size()};
    weight_.may_be_quantized = MayBeQuantized::yes;
    if (own.size() > 0) {
      weight_.slices = {{module + ".weight", {outputs, inputs}, {0, outputs}, own, 0}};
    }
  }
  bias_.name = name + ".bias";
  if (bias && (shard.rank == 0 || shard.tp_invariant)) {
    bias_.shape = {outputs};
    bias_.slices = {{module + ".bias", {outputs}, {0, outputs}, {0, 1}, 0}};
  }
}

void RowParallelLinear::declare(std::vector<Parameter*>& all) {
  all.push_back(&weight_);
  if (!bias_.shape.empty()) all.push_back(&bias_);
}

void RowParallelLinear::add_segments(const kernels::TreeSum& sum, TensorView x, Range segments,
                                     const Context& context) const {
  const std::int64_t first = segments.begin - sum_.own().begin, count = segments.size();
  const kernels::GemmWeight weight =
      gemm_weight(weight_, {}).part(first * outputs_, count * outputs_);
  context.gemm.run_segmented(
      {.weight = weight, .x = columns_of(x, first * width_, count * width_), .sum = sum},
      context.stream);
}

std::size_t RowParallelLinear::scratch_bytes(std::int64_t rows) const {
  return sum_.scratch_bytes(rows, outputs_);
}

void RowParallelLinear::forward(TensorView out, TensorView x, const Context& context) const {
  if (tp_invariant()) {
    const auto add = [&](const kernels::TreeSum& sum, Range segments, Range rows) {
      add_segments(sum, x.rows(rows.begin, rows.size()), segments, context);
    };
    return sum_.run(out, bias_.view, add, context);
  }
  context.gemm.run(context.gemm.call(weight(), {.out = out, .x = x}), context.stream);
  if (!context.alone()) context.communicator->all_reduce(out, context.stream);
}

}  // namespace nvllm::layers
