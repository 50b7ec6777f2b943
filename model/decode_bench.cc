// Decoding on one core: elements per second, and bytes read plus written per second beside those of
// a plain copy of as many bytes in the same run ("limit"; "of_limit" is the share of it reached).
// Blocks and elements lie in the second-level cache, as they do while loading.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/quantization_reference.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kElements = 64 << 10;

using Decode = void (*)(Encoding, const std::byte*, std::int64_t, DType, void*);

double copy_bytes_per_second(std::size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  double best = 0;
  for (int i = 0; i < 50; ++i) {
    const std::int64_t start = now_ns();
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
    best = std::max(best, 2 * static_cast<double>(bytes) / seconds_since(start));
  }
  return best;
}

void decode_elements(benchmark::State& state, Decode function, Encoding encoding, DType to) {
  std::mt19937 random(1);
  std::vector<std::byte> blocks(
      static_cast<std::size_t>(kElements / block_elements(encoding) * block_bytes(encoding)));
  // Scales are finite, as all are in practice: no byte makes an exponent of ones.
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() & 0x3b);
  std::vector<std::byte> out(kElements * size_of(to));
  const double traffic = static_cast<double>(blocks.size() + out.size());
  const double limit = copy_bytes_per_second((blocks.size() + out.size()) / 2);
  std::int64_t calls = 0;
  const std::int64_t start = now_ns();
  for (auto _ : state) {
    function(encoding, blocks.data(), kElements, to, out.data());
    benchmark::ClobberMemory();
    ++calls;
  }
  const double seconds = seconds_since(start) / static_cast<double>(calls);
  state.SetItemsProcessed(calls * kElements);
  state.SetBytesProcessed(calls * static_cast<std::int64_t>(traffic));
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = traffic / seconds / limit;
}

// Registers all cases when the program starts.
const bool registered = [] {
  constexpr Encoding kAll[] = {Encoding::f32,  Encoding::f16,  Encoding::bf16, Encoding::q8_0,
                               Encoding::q4_0, Encoding::q4_1, Encoding::q5_0, Encoding::q5_1,
                               Encoding::q4_k, Encoding::q5_k, Encoding::q6_k};
  for (const bool plain : {false, true}) {
    const Decode function = plain ? decode_plain : decode;
    for (const DType to : {DType::bf16, DType::f32}) {
      for (const Encoding encoding : kAll) {
        const std::string full = std::string(plain ? "decode_plain" : "decode") + "/" +
                                 name_of(encoding) + "/" + nvllm::name_of(to);
        benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
          decode_elements(state, function, encoding, to);
        })->UseRealTime();
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::model
