// What every backend offers of the operations in this folder, for checked arguments; each does what
// the function of the same name in nvllm::kernels does.
#pragma once

namespace nvllm {
class Stream;
}

namespace nvllm::kernels {

struct CausalConv;
struct GatedDeltaRule;

namespace cpu {

void causal_conv(const CausalConv& args, Stream& stream);
void gated_delta_rule(const GatedDeltaRule& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void causal_conv(const CausalConv& args, Stream& stream);
void gated_delta_rule(const GatedDeltaRule& args, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
