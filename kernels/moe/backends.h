// The backend implementations of this folder's operations, for checked arguments; each corresponds
// to the function of the same name in nvllm::kernels.
#pragma once

namespace nvllm {
class Stream;
}

namespace nvllm::kernels {

struct CombineExperts;
struct OneRowExperts;
struct Route;

namespace cpu {

void combine_experts(const CombineExperts& args, Stream& stream);
void route(const Route& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void combine_experts(const CombineExperts& args, Stream& stream);
void one_row_experts(const OneRowExperts& args, Stream& stream);
bool takes_one_row(const OneRowExperts& args);
// On Hopper, if the arguments fit its shared memory; otherwise returns false.
bool one_row_experts_sm90(const OneRowExperts& args, Stream& stream);
void route(const Route& args, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
