#include "layers/tuning_matmul.h"

namespace nvllm::layers {

void TuningMatmul::linear(const kernels::Linear& args, Stream& stream) {
  const Kind kind{args.x.shape[0], args.weight.shape[0], args.weight.shape[1],
                  args.before,     args.after,           args.residual.data != nullptr};
  noted_[kind].push_back(args);
  matmul_.linear(args, stream);
}

void TuningMatmul::tune_all(Stream& stream) {
  for (const auto& [kind, alike] : noted_) matmul_.tune(alike, stream);
}

}  // namespace nvllm::layers
