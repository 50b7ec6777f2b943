// Attention by the host's cores beside a device: what it gives is attention to the blocks, however
// the queries lie and as often as a graph repeats it; and which blocks the cores take.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/testing/backend_under_test.h"
#include "kvcache/chunked/host_attention.h"

namespace nvllm::kvcache {
namespace {

constexpr BlockShape kShape = {
    .layers = 2, .block_size = 16, .kv_heads = 2, .head_dim = 32, .dtype = DType::f32};
constexpr std::int64_t kHeads = 4, kRows = 3, kBlocks = 4;

// Blocks 0 to 3 with random contents; row 0 attends to block 2, row 2 to the others.
class Attended {
 public:
  explicit Attended(Backend& backend)
      : backend_(backend),
        stream_(backend.create_stream()),
        cache_(backend.allocate(MemoryKind::pinned, kBlocks * kShape.kv_bytes(), "test")),
        host_(backend, {.shape = kShape, .heads = kHeads, .sequences = kRows, .threads = 2},
              hooks_) {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal;
    std::generate_n(static_cast<float*>(cache_.data()), cache_.bytes() / sizeof(float),
                    [&] { return normal(bits); });
    const auto block = [&](int number) {
      return static_cast<const unsigned char*>(cache_.data()) +
             static_cast<std::size_t>(number) * kShape.kv_bytes();
    };
    blocks_ = {{0, block(2)}, {2, block(0)}, {2, block(3)}, {2, block(1)}};
    host_.plan(blocks_, kRows);
  }

  // Both layers, with query rows `apart` elements apart; if `graph`, two replays of one graph.
  std::vector<float> run(std::int64_t apart, bool graph) {
    const std::int64_t row = kHeads * kShape.head_dim;
    const Buffer queries = backend_.allocate(
        MemoryKind::device, static_cast<std::size_t>(kRows * apart) * sizeof(float), "test");
    const Buffer staged = backend_.allocate(MemoryKind::pinned, queries.bytes(), "test");
    std::fill_n(static_cast<float*>(staged.data()), kRows * apart, std::nanf(""));
    for (std::int64_t i = 0; i < kRows * row; ++i) {
      static_cast<float*>(staged.data())[i / row * apart + i % row] =
          static_cast<float>(i % 13) / 8 - 0.75f;
    }
    backend_.copy(queries.data(), staged.data(), staged.bytes(), *stream_);
    args_.q = TensorView(queries.data(), DType::f32, {kRows, kHeads, kShape.head_dim});
    args_.q.stride[0] = apart;
    args_.group = kHeads / kShape.kv_heads;
    args_.scale = 0.25f;
    const std::size_t bytes = static_cast<std::size_t>(kRows * (row + kHeads)) * sizeof(float);
    const Buffer taken = backend_.allocate(MemoryKind::pinned,
                                           static_cast<std::size_t>(kShape.layers) * bytes, "test");
    const auto pass = [&] {
      for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
        host_.launch(layer, args_, nullptr, *stream_);
        const kernels::CombineAttention::Part part = host_.result(*stream_);
        auto* const to = static_cast<float*>(taken.data()) + layer * kRows * (row + kHeads);
        stream_->host_call([to, part, row] {
          std::memcpy(to, part.out.data, static_cast<std::size_t>(kRows * row) * sizeof(float));
          std::memcpy(to + kRows * row, part.lse.data,
                      static_cast<std::size_t>(kRows * kHeads) * sizeof(float));
        });
      }
    };
    if (graph) {
      const auto captured = backend_.capture(*stream_, pass);
      captured->launch(*stream_);
      stream_->synchronize();
      std::fill_n(static_cast<unsigned char*>(taken.data()), taken.bytes(), 0);
      host_.plan({}, 0);  // the graph goes on with what was planned
      captured->launch(*stream_);
      stream_->synchronize();
      host_.plan(blocks_, kRows);
    } else {
      pass();
      stream_->synchronize();
    }
    const auto* const first = static_cast<const float*>(taken.data());
    return {first, first + taken.bytes() / sizeof(float)};
  }

  // By the kernel alone.
  std::vector<float> expected() {
    const std::int64_t row = kHeads * kShape.head_dim;
    std::vector<float> q(static_cast<std::size_t>(kRows * row)), all, scratch;
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = static_cast<float>(i % 13) / 8 - 0.75f;
    }
    nvllm::cpu::ThreadPool pool(1);
    for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
      std::vector<float> out(q.size()), lse(static_cast<std::size_t>(kRows * kHeads));
      kernels::HostAttention args;
      args.out = TensorView(out.data(), DType::f32, {kRows, kHeads, kShape.head_dim});
      args.lse = TensorView(lse.data(), DType::f32, {kRows, kHeads});
      args.q = TensorView(q.data(), DType::f32, {kRows, kHeads, kShape.head_dim});
      args.blocks = blocks_;
      args.keys = layer * 2 * kShape.layer_elements() * 4;
      args.values = args.keys + kShape.layer_elements() * 4;
      args.block_tokens = kShape.block_size;
      args.kv_heads = kShape.kv_heads;
      args.group = kHeads / kShape.kv_heads;
      args.scale = 0.25f;
      kernels::host_attention(args, pool, scratch);
      all.insert(all.end(), out.begin(), out.end());
      all.insert(all.end(), lse.begin(), lse.end());
    }
    return all;
  }

 private:
  Backend& backend_;
  const OffloadHooks hooks_;
  std::unique_ptr<Stream> stream_;
  Buffer cache_;
  std::vector<kernels::HostAttentionBlock> blocks_;
  kernels::Attention args_;
  HostAttention host_;
};

TEST_CASE("host attention: each layer's own blocks, however queries lie, in graphs and without") {
  BACKEND_OR_SKIP(backend);
  Attended attended(*backend);
  const std::vector<float> right = attended.expected();
  const std::int64_t row = kHeads * kShape.head_dim;
  // Beside each other; with keys and values between them; with more.
  for (const std::int64_t apart : {row, row + 2 * kShape.kv_heads * kShape.head_dim, 3 * row}) {
    CAPTURE(apart);
    CHECK(attended.run(apart, false) == right);
    CHECK(attended.run(apart, true) == right);
  }
}

TEST_CASE("host attention: speeds are measured with the cache's own memory") {
  BACKEND_OR_SKIP(backend);
  const OffloadHooks hooks;
  HostAttention host(*backend, {.shape = kShape, .heads = kHeads, .sequences = kRows, .threads = 2},
                     hooks);
  const std::size_t part = kShape.kv_bytes() / 2;
  const Buffer memory = backend->allocate(MemoryKind::pinned, 64 * part, "test");
  std::memset(memory.data(), 0, memory.bytes());
  const Buffer device = backend->allocate(MemoryKind::device, part, "test");
  std::vector<const unsigned char*> parts;
  for (std::size_t i = 0; i < 64; ++i) {
    parts.push_back(static_cast<const unsigned char*>(memory.data()) + i * part);
  }
  const HostAttention::Speeds speeds = host.measure(parts, device.data());
  CHECK(speeds.cores > 0);
  CHECK(speeds.link > 0);
  CHECK(speeds.share() > 0);
  CHECK(speeds.share() < 1);
}

TEST_CASE("host attention: the cores take the number of blocks that makes both sides end first") {
  std::vector<bool> taken;
  for (const std::size_t blocks : {0u, 1u, 2u, 7u, 40u}) {
    for (const double share : {0.0, 0.05, 0.3, 0.5, 0.76, 1.0}) {
      CAPTURE(blocks);
      CAPTURE(share);
      const std::vector<std::int32_t> readers(blocks, 1);
      choose_for_host(readers, share, taken);
      const auto time = [&](auto count) {
        return std::max(static_cast<double>(count) * (1 - share),
                        static_cast<double>(blocks - static_cast<std::size_t>(count)) * share);
      };
      REQUIRE(taken.size() == blocks);
      const auto count = std::count(taken.begin(), taken.end(), true);
      for (std::size_t other = 0; other <= blocks; ++other) CHECK(time(count) <= time(other));
      // The last ones.
      CHECK(std::is_sorted(taken.begin(), taken.end()));
    }
  }
}

TEST_CASE(
    "host attention: the cores take what several rows read last, and never what others need") {
  std::vector<bool> taken;
  const std::vector<std::int32_t> readers = {1, 2, 0, 1, 2, 1};
  choose_for_host(readers, 0.5, taken);
  CHECK(taken == std::vector<bool>{true, false, false, true, false, true});
  choose_for_host(readers, 1, taken);
  CHECK(taken == std::vector<bool>{true, true, false, true, true, true});
  choose_for_host(readers, 0, taken);
  CHECK(taken == std::vector<bool>(6, false));
}

}  // namespace
}  // namespace nvllm::kvcache
