// The backend implementations of this folder's operations, for checked arguments; each corresponds
// to the function of the same name in nvllm::kernels.
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
