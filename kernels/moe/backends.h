// The backend implementations of this folder's operations, for checked arguments; each corresponds
// to the function of the same name in nvllm::kernels.
#pragma once

namespace nvllm {
class Stream;
}

namespace nvllm::kernels {

struct CombineExperts;
struct SingleTokenMoe;
struct Route;

namespace cpu {

void combine_experts(const CombineExperts& args, Stream& stream);
void route(const Route& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void combine_experts(const CombineExperts& args, Stream& stream);
void single_token_moe(const SingleTokenMoe& args, Stream& stream);
bool takes_single_token(const SingleTokenMoe& args);
// On Hopper, if the arguments fit its shared memory; otherwise returns false.
bool single_token_moe_sm90(const SingleTokenMoe& args, Stream& stream);
void route(const Route& args, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
