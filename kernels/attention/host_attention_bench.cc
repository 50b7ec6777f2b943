// Measures how fast the host's cores read keys and values through attention, by number of threads,
// and how fast they simply read the same memory: one row of a sequence whose blocks lie in host
// memory. bytes_per_second counts keys and values; "of_read" is the share of the plain read's
// speed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "device/backend.h"
#include "device/cpu/thread_pool.h"
#include "device/topology.h"
#include "kernels/attention/host_attention.h"

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kBlockTokens = 4096;
constexpr std::int64_t kBlocks = 16;  // with 8 KV heads of 128 in bfloat16: 256 MiB

struct Shape {
  DType dtype;
  std::int64_t heads, kv_heads, head_dim;

  std::int64_t token_bytes() const {
    return kv_heads * head_dim * static_cast<std::int64_t>(size_of(dtype));
  }
};

// Small numbers of either sign in any of the types.
void fill(void* data, std::size_t bytes, DType dtype) {
  std::uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  };
  if (dtype == DType::f32)
    return std::generate_n(static_cast<float*>(data), bytes / 4, next), void();
  std::generate_n(static_cast<std::uint16_t*>(data), bytes / 2, [&] {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(next()) >> 16);
  });
}

// Bytes per second of the fastest of a few plain reads.
double read_speed(const Buffer& memory, cpu::ThreadPool& pool) {
  using Words = std::uint64_t __attribute__((vector_size(64)));
  const auto words = static_cast<std::int64_t>(memory.bytes() / sizeof(Words));
  const auto* data = static_cast<const Words*>(memory.data());
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const std::int64_t start = now_ns();
    pool.run(words, 4096, [&](std::int64_t begin, std::int64_t end) {
      Words sum[4] = {};
      for (std::int64_t i = begin; i < end; ++i) sum[i % 4] ^= data[i];
      benchmark::DoNotOptimize(sum);
    });
    best = std::max(
        best, static_cast<double>(memory.bytes()) / (static_cast<double>(now_ns() - start) * 1e-9));
  }
  return best;
}

void attend(benchmark::State& state, const Shape& shape) {
  const auto backend = create_backend(DeviceKind::cpu);
  cpu::ThreadPool pool(static_cast<int>(state.range(0)));
  const std::int64_t half = kBlockTokens * shape.token_bytes();
  const Buffer memory = backend->allocate(
      MemoryKind::pinned, static_cast<std::size_t>(kBlocks * 2 * half), "benchmark");
  fill(memory.data(), memory.bytes(), shape.dtype);
  std::vector<float> q(static_cast<std::size_t>(shape.heads * shape.head_dim));
  fill(q.data(), q.size() * size_of(shape.dtype), shape.dtype);
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(shape.heads)), scratch;
  std::vector<HostAttentionBlock> blocks;
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    blocks.push_back({0, static_cast<unsigned char*>(memory.data()) + block * 2 * half});
  }
  HostAttention args;
  args.out = TensorView(out.data(), DType::f32, {1, shape.heads, shape.head_dim});
  args.lse = TensorView(lse.data(), DType::f32, {1, shape.heads});
  args.q = TensorView(q.data(), shape.dtype, {1, shape.heads, shape.head_dim});
  args.blocks = blocks;
  args.values = half;
  args.block_tokens = kBlockTokens;
  args.kv_heads = shape.kv_heads;
  args.group = shape.heads / shape.kv_heads;
  args.scale = 0.1f;
  host_attention(args, pool, scratch);  // memory and threads come
  std::int64_t fastest_ns = INT64_MAX;
  for (auto _ : state) {
    const std::int64_t start = now_ns();
    host_attention(args, pool, scratch);
    fastest_ns = std::min(fastest_ns, now_ns() - start);
  }
  const auto bytes = static_cast<double>(memory.bytes());
  const double speed = bytes / (static_cast<double>(fastest_ns) * 1e-9);
  state.counters["bytes_per_second"] = speed;
  state.counters["read_bytes_per_second"] = read_speed(memory, pool);
  state.counters["of_read"] = speed / state.counters["read_bytes_per_second"];
}

void register_all() {
  struct Named {
    const char* name;
    Shape shape;
  };
  const auto cores = static_cast<int>(allowed_cores().size());
  for (const Named& each : {Named{"bf16/32x8x128", {DType::bf16, 32, 8, 128}},
                            Named{"f16/32x8x128", {DType::f16, 32, 8, 128}},
                            Named{"f32/32x8x128", {DType::f32, 32, 8, 128}},
                            Named{"bf16/64x8x128", {DType::bf16, 64, 8, 128}},
                            Named{"bf16/16x8x64", {DType::bf16, 16, 8, 64}}}) {
    auto* const made = benchmark::RegisterBenchmark(
        (std::string("host_attention/") + each.name).c_str(),
        [shape = each.shape](benchmark::State& state) { attend(state, shape); });
    made->ArgName("threads")->UseRealTime()->Unit(benchmark::kMillisecond);
    for (int threads = 1; threads < cores; threads *= 2) made->Arg(threads);
    made->Arg(cores);
  }
}

const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace nvllm::kernels
