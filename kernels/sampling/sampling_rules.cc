#include "kernels/sampling/sampling_rules.h"

#include "kernels/common/arguments.h"
#include "kernels/sampling/cpu/sampling_rules.h"
#ifdef NVLLM_CUDA
#include "kernels/sampling/sm80/sampling_rules.h"
#endif

namespace nvllm::kernels {

void check_sampling_rows(const SamplingRows& args, const char* operation) {
  const Arguments check(operation);
  const std::int64_t rows = args.rows(), own = args.own();
  check.require(args.logits, "logits", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.logits.stride[1] != 1) check.require_dense(args.logits, "logits");
  check.require_memory(args.logits, "logits");
  check.require(args.slots, "slots", DType::i32, {rows});
  check.require_dense(args.slots, "slots");
  check.require(args.positions, "positions", DType::i32, {rows});
  check.require_dense(args.positions, "positions");
  check.require(args.params, "rules", DType::u8,
                {args.params.shape[0], static_cast<std::int64_t>(sizeof(SlotParams))});
  check.require_dense(args.params, "rules");
  if (args.changed_logits.data == nullptr) return;
  check.require(args.changed_logits, "adjusted", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.changed_logits.stride[1] != 1) {
    check.require_dense(args.changed_logits, "adjusted");
  }
}

void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  if (count == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::write_words(to, words, count, stream);
#endif
  cpu::write_words(to, words, count, stream);
}

}  // namespace nvllm::kernels
