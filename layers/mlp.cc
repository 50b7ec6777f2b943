#include "layers/mlp.h"

namespace nvllm::layers {

GatedMlp::GatedMlp(const std::string& name, const MlpConfig& config, Shard shard)
    : gate_up_(name + ".gate_up", config.gate, config.up, config.intermediate, config.hidden,
               config.bias, shard),
      down_(name + ".down", config.down, config.hidden, config.intermediate,
            part_of(config.intermediate, shard), config.bias, shard),
      activation_(config.activation) {}

void GatedMlp::declare(std::vector<Parameter*>& all) {
  gate_up_.declare(all);
  down_.declare(all);
}

void GatedMlp::forward(ResidualStream& stream, const RmsNorm& norm, const Context& context,
                       const kernels::KvPrefetch& ahead) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t rows = stream.rows();
  const TensorView gate_up = context.scratch.take(stream.dtype(), rows, gate_up_.outputs());
  const TensorView activated = context.scratch.take(stream.dtype(), rows, down_.inputs());
  Input in = stream.input(norm);
  in.ahead = ahead;
  down_.add_to(stream, gate_up_.forward_gated(gate_up, activated, activation_, in, context),
               context);
}

std::size_t GatedMlp::scratch_bytes(std::int64_t rows, DType dtype) const {
  return Scratch::bytes_of(dtype, rows, gate_up_.outputs()) +
         Scratch::bytes_of(dtype, rows, down_.inputs());
}

}  // namespace nvllm::layers
