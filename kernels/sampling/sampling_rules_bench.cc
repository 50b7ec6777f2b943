// What a slot's new rules cost: the rules alone, and with all lists that there may be.
#include "kernels/sampling/sampling_rules.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t count : {std::int64_t{sizeof(SlotParams) / 4}, std::int64_t{4096}}) {
      testing::register_benchmark(
          "write_words", kind, DType::i32, std::to_string(count), [=](GraphBenchmark& bench) {
            const TensorView to = bench.tensor(DType::i32, {count});
            const std::vector<std::uint32_t> words(count, 7);
            bench.run(to.bytes(), [&] {
              write_words(to.as<std::uint32_t>(), words.data(), count, bench.stream());
            });
          });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
