#include "layers/gated_delta_net.h"

#include "kernels/linear_attention/linear_attention.h"

namespace nvllm::layers {

GatedDeltaNet::GatedDeltaNet(const std::string& name, const GatedDeltaNetConfig& config,
                             Shard shard)
    : own_(even_part_of(config.key_heads, shard)),
      group_(config.value_heads / config.key_heads),
      dk_(config.dk),
      dv_(config.dv),
      input_(name + ".in", input_modules(config), config.hidden, /*bias=*/false),
      norm_(name + ".norm", config.norm, config.dv, config.epsilon),
      output_(name + ".out", config.output, config.hidden, config.value_heads * dv_,
              scaled(own_, group_ * dv_), /*bias=*/false, shard, segments_of(config.key_heads)) {
  set_gates(name, config);
  const std::int64_t of_segment = config.key_heads / segments_of(config.key_heads);
  gates_.unaligned_shards = shard.tp_invariant && of_segment * 2 * group_ % 8 != 0;
  set_conv(name, config);
  a_log_ = head_parameter(name + ".a_log", config.a_log, config.value_heads);
  dt_bias_ = head_parameter(name + ".dt_bias", config.dt_bias, config.value_heads);
  norm_.weight.fixed_type = DType::f32;
}

// This rank's rows of q, then k, v and z.
std::vector<ColumnParallelLinear::Module> GatedDeltaNet::input_modules(
    const GatedDeltaNetConfig& config) const {
  const std::int64_t keys = config.key_heads * dk_, values = config.value_heads * dv_;
  const std::int64_t group_values = group_ * dv_;
  if (config.qkvz.empty()) {
    const std::int64_t qkv = 2 * keys + values;
    return {{config.qkv, qkv, scaled(own_, dk_)},
            {config.qkv, qkv, scaled(own_, dk_, keys)},
            {config.qkv, qkv, scaled(own_, group_values, 2 * keys)},
            {config.z, values, scaled(own_, group_values)}};
  }
  const std::int64_t of_head = 2 * dk_ + 2 * group_values;
  std::vector<ColumnParallelLinear::Module> modules;
  const auto add_part = [&](std::int64_t begin, std::int64_t size) {
    for (std::int64_t head = own_.begin; head < own_.end; ++head) {
      const std::int64_t first = head * of_head + begin;
      modules.push_back({config.qkvz, config.key_heads * of_head, {first, first + size}});
    }
  };
  add_part(0, dk_);
  add_part(dk_, dk_);
  add_part(2 * dk_, group_values);
  add_part(2 * dk_ + group_values, group_values);
  return modules;
}

void GatedDeltaNet::set_gates(const std::string& name, const GatedDeltaNetConfig& config) {
  const std::int64_t hidden = config.hidden, heads = config.value_heads;
  gates_.name = name + ".gates.weight";
  gates_.shape = {2 * value_heads(), hidden};
  std::int64_t to = 0;
  const auto add = [&](const std::string& module, std::int64_t outputs, Range rows) {
    if (rows.size() == 0) return;
    gates_.slices.push_back({module + ".weight", {outputs, hidden}, rows, {0, hidden}, to});
    to += rows.size();
  };
  if (config.ba.empty()) {
    add(config.b, heads, scaled(own_, group_));
    add(config.a, heads, scaled(own_, group_));
    return;
  }
  for (const std::int64_t part : {std::int64_t{0}, group_}) {
    for (std::int64_t head = own_.begin; head < own_.end; ++head) {
      const std::int64_t first = head * 2 * group_ + part;
      add(config.ba, 2 * heads, {first, first + group_});
    }
  }
}

// In both weight layouts the channels are all of q, all of k, then all of v.
void GatedDeltaNet::set_conv(const std::string& name, const GatedDeltaNetConfig& config) {
  const std::int64_t keys = config.key_heads * dk_, width = config.conv_width;
  const std::int64_t all = 2 * keys + config.value_heads * dv_;
  conv_.name = name + ".conv.weight";
  conv_.shape = {channels(), width};
  std::int64_t to = 0;
  for (const Range rows :
       {scaled(own_, dk_), scaled(own_, dk_, keys), scaled(own_, group_ * dv_, 2 * keys)}) {
    if (rows.size() > 0) conv_.slices.push_back({config.conv, {all, width}, rows, {0, width}, to});
    to += rows.size();
  }
}

// Declares a parameter with one number per value head of this rank.
Parameter GatedDeltaNet::head_parameter(const std::string& name, const std::string& tensor,
                                        std::int64_t value_heads) const {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = {own_.size() * group_};
  parameter.fixed_type = DType::f32;
  const Range rows = scaled(own_, group_);
  if (rows.size() > 0) parameter.slices = {{tensor, {value_heads}, rows, {0, 1}, 0}};
  return parameter;
}

void GatedDeltaNet::declare(std::vector<Parameter*>& all) {
  input_.declare(all);
  for (Parameter* parameter : {&gates_, &conv_, &a_log_, &dt_bias_}) all.push_back(parameter);
  norm_.declare(all);
  output_.declare(all);
}

void GatedDeltaNet::forward(ResidualStream& stream, const RmsNorm& norm, const Batch& batch,
                            const DeltaNetState& state, const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const TensorView x = read_normed(stream, norm, context);
  const std::int64_t rows = stream.rows(), values = value_heads() * dv_;
  const auto allocate = [&](std::int64_t columns) {
    return context.scratch.allocate(stream.dtype(), rows, columns);
  };
  const TensorView in = allocate(input_.outputs()), qkv = allocate(channels());
  const TensorView heads = allocate(values);
  const TensorView ba = context.scratch.allocate(DType::f32, rows, gates_.shape[0]);

  input_.forward(in, x, context);
  context.gemm.run(context.gemm.call(gemm_weight(gates_), {.out = ba, .x = x}), context.stream);
  const kernels::StateRows of_sequences{batch.query_start, batch.kv_length, batch.state_slots};
  kernels::causal_conv({.out = qkv,
                        .x = columns_of(in, 0, channels()),
                        .weight = conv_.view,
                        .state = state.conv,
                        .rows = of_sequences},
                       context.stream);
  kernels::gated_delta_rule({.out = heads,
                             .qkv = qkv,
                             .z = columns_of(in, channels(), values),
                             .ba = ba,
                             .a_log = a_log_.view,
                             .dt_bias = dt_bias_.view,
                             .norm = norm_.weight.view,
                             .state = state.heads,
                             .rows = of_sequences,
                             .key_heads = key_heads(),
                             .epsilon = norm_.epsilon,
                             .chunks = chunks_for(batch, stream.dtype(), context)},
                            context.stream);
  if (output_.tp_invariant()) return output_.forward(add_reduced(stream), heads, context);
  context.gemm.run(
      context.gemm.call(output_.weight(), add_operands(stream, heads, {}, nullptr, context)),
      context.stream);
}

// Scratch memory for the chunked prefill kernels; empty where no sequence has enough rows, or where
// results must not depend on the chunk boundaries.
TensorView GatedDeltaNet::chunks_for(const Batch& batch, DType dtype,
                                     const Context& context) const {
  if (context.invariant || batch.max_query_rows < kernels::kMinChunkedRows ||
      !kernels::has_delta_chunks(context.stream.kind(), dtype, dk_, dv_)) {
    return {};
  }
  return context.scratch.allocate(
      DType::u8, 1,
      kernels::delta_chunk_bytes(batch.rows(), batch.state_slots.shape[0], value_heads()));
}

// An upper bound: assumes a GPU, and as many sequences with chunks as the rows allow.
std::size_t GatedDeltaNet::scratch_bytes(std::int64_t rows, DType dtype) const {
  const std::int64_t chunks = kernels::has_delta_chunks(DeviceKind::cuda, dtype, dk_, dv_)
                                  ? kernels::delta_chunk_bytes(rows, rows, value_heads())
                                  : 0;
  return Scratch::bytes_of(dtype, rows, input_.outputs()) +
         Scratch::bytes_of(dtype, rows, channels()) +
         Scratch::bytes_of(dtype, rows, value_heads() * dv_) +
         Scratch::bytes_of(DType::f32, rows, gates_.shape[0]) +
         Scratch::bytes_of(DType::u8, 1, chunks) + output_.scratch_bytes(rows);
}

std::size_t GatedDeltaNet::state_bytes(std::int64_t slots, DType dtype) const {
  return Scratch::bytes_of(dtype, slots * (conv_.shape[1] - 1), channels()) +
         Scratch::bytes_of(DType::f32, slots * value_heads() * dk_, dv_);
}

DeltaNetState GatedDeltaNet::state_in(Scratch& memory, std::int64_t slots, DType dtype) const {
  const std::int64_t before = conv_.shape[1] - 1;
  return {.conv = {memory.allocate(dtype, slots * before, channels()).data,
                   dtype,
                   {slots, before, channels()}},
          .heads = {memory.allocate(DType::f32, slots * value_heads() * dk_, dv_).data,
                    DType::f32,
                    {slots, value_heads(), dk_, dv_}}};
}

}  // namespace nvllm::layers
