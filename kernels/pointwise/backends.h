// The backend implementations of this folder's operations, among which NAME.cc selects, for checked
// arguments on a stream of that backend. Each corresponds to the function of the same name in
// nvllm::kernels.
#pragma once

#include <cstdint>

namespace nvllm {
class Stream;
}

namespace nvllm::kernels {

struct CopyLastKv;
struct CopyToRing;
struct Embedding;
struct GatedActivation;
struct NormRopeStore;
struct RandomFill;
struct RmsNorm;
struct ScaledSum;
struct SigmoidGate;
struct SoftCap;
struct StepInput;
struct TreeSum;

namespace cpu {

void gated_activation(const GatedActivation& args, Stream& stream);
void norm_rope_store(const NormRopeStore& args, Stream& stream);
void random_fill(const RandomFill& args, Stream& stream);
void random_bytes(const RandomFill& args, Stream& stream);
void rms_norm(const RmsNorm& args, Stream& stream);
void scaled_sum(const ScaledSum& args, Stream& stream);
void sigmoid_gate(const SigmoidGate& args, Stream& stream);
void soft_cap(const SoftCap& args, Stream& stream);
void tree_sum(const TreeSum& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void copy_last_kv(const CopyLastKv& args, Stream& stream);
void copy_to_ring(const CopyToRing& args, Stream& stream);
void embedding(const Embedding& args, Stream& stream);
void norm_rope_store(const NormRopeStore& args, Stream& stream);
void random_fill(const RandomFill& args, Stream& stream);
void random_bytes(const RandomFill& args, Stream& stream);
void scaled_sum(const ScaledSum& args, Stream& stream);
void sigmoid_gate(const SigmoidGate& args, Stream& stream);
void soft_cap(const SoftCap& args, Stream& stream);
void step_input(const StepInput& args, Stream& stream);
void tree_sum(const TreeSum& args, Stream& stream);
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

// trigger_early: whether the next kernel may be launched before this one's wait
// (kernels/common/sm80/launch.cuh).
void gated_activation(const GatedActivation& args, Stream& stream, bool trigger_early = false);
void rms_norm(const RmsNorm& args, Stream& stream, bool trigger_early = false);

}  // namespace cuda
}  // namespace nvllm::kernels
