// Host memory that cannot be allocated, at the start and in the background: the waiting thread gets
// an Error, and none waits forever.
#include "kvcache/host_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/testing/wrapped_backend.h"
#include "kvcache/layerwise/layerwise_cache.h"
#include "testing/error_of.h"

namespace nvllm::kvcache {
namespace {

// Three blocks a piece, and ten blocks.
constexpr BlockShape kShape = {
    .layers = 2, .block_size = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::f32};
constexpr std::int64_t kBlocks = 10;
constexpr std::size_t kPiece = 3 * 2 * 2 * 4 * 8 * sizeof(float);

// The first `pieces` of pinned memory can be had; the others are refused when `refuse` is there.
class LittlePinned : public WrappedBackend {
 public:
  LittlePinned(Backend& backend, int pieces, std::shared_future<void> refuse = {})
      : WrappedBackend(backend), pieces_(pieces), refuse_(std::move(refuse)) {}

  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    if (kind == MemoryKind::pinned && pieces_.fetch_sub(1) <= 0) {
      if (refuse_.valid()) refuse_.wait();
      fail("the driver refuses it");
    }
    return WrappedBackend::allocate(kind, bytes, purpose);
  }

 private:
  std::atomic<int> pieces_;
  const std::shared_future<void> refuse_;
};

std::string why_not(HostBlocks& blocks, BlockId block) {
  return testing::error_of([&] { blocks.part(block, 0); });
}

TEST_CASE("blocks that come to the piece that is refused say why, those before them are there") {
  const auto cpu = create_backend(DeviceKind::cpu);
  LittlePinned backend(*cpu, 2);
  HostBlocks blocks(backend, kShape, kBlocks, kPiece);
  const std::string why =
      "KV cache in host memory: 3 KiB of 5 KiB are there, then: the driver refuses it; "
      "pass a smaller --kv-offloading-size";
  for (const BlockId block : {9, 1, 7, 0, 3, 4}) CHECK(why_not(blocks, block) == "");
  CHECK(why_not(blocks, 2) == why);
  CHECK(why_not(blocks, 8) == why);
  CHECK(why_not(blocks, 9) == "");
  CHECK(why_not(blocks, 2) == why);  // as often as it is asked for
}

TEST_CASE("no memory is taken during a pause, and all of it afterwards") {
  const auto cpu = create_backend(DeviceKind::cpu);
  for (int i = 0; i < 20; ++i) {
    HostBlocks blocks(*cpu, kShape, kBlocks, kPiece);
    const auto taken = [&] { return cpu->ledger().total(MemoryKind::pinned); };
    {
      const HostBlocks::Pause pause(blocks);
      const std::size_t before = taken();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      CHECK(taken() == before);
    }
    CHECK(why_not(blocks, 9) == "");
  }
}

TEST_CASE("who waits for a block is told when it is refused") {
  const auto cpu = create_backend(DeviceKind::cpu);
  std::promise<void> refuse;
  LittlePinned backend(*cpu, 1, refuse.get_future().share());
  HostBlocks blocks(backend, kShape, kBlocks, kPiece);
  for (const BlockId block : {5, 6, 7}) CHECK(why_not(blocks, block) == "");
  auto waiting = std::async(std::launch::async, [&] { return why_not(blocks, 3); });
  CHECK(waiting.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  refuse.set_value();
  CHECK(waiting.get().find("the driver refuses it") != std::string::npos);
}

TEST_CASE("memory is taken a little ahead of the blocks that are asked for") {
  const auto cpu = create_backend(DeviceKind::cpu);
  HostBlocks blocks(*cpu, kShape, kBlocks, kPiece, 2 * kPiece);
  const auto settles_at = [&](std::size_t bytes) {
    const auto pinned = [&] { return cpu->ledger().total(MemoryKind::pinned); };
    for (int i = 0; i < 1000 && pinned() < bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // or the thread has gone on
    return pinned() == bytes;
  };
  CHECK(settles_at(2 * kPiece));
  blocks.part(2, 0);
  CHECK(settles_at(3 * kPiece));
  blocks.part(9, 0);
  blocks.part(2, 1);
  blocks.part(3, 0);
  CHECK(settles_at(3 * kPiece));
  blocks.part(0, 0);
  CHECK(settles_at(3 * kPiece + kPiece / 3));  // all: the last piece has one block
}

TEST_CASE("more than the machine has is refused at once") {
  const auto cpu = create_backend(DeviceKind::cpu);
  BlockShape shape = kShape;
  shape.block_size = std::int64_t{1} << 30;
  CHECK_THROWS_WITH_AS(HostBlocks(*cpu, shape, 1 << 20), doctest::Contains("available"), Error);
  CHECK(cpu->ledger().total(MemoryKind::pinned) == 0);
}

TEST_CASE("what the process holds, pinned or not, is not there for blocks") {
  const auto cpu = create_backend(DeviceKind::cpu);
  const std::size_t held = cpu->memory().total / 5 * 3;
  for (const bool pageable : {true, false}) {
    CAPTURE(pageable);
    LittlePinned backend(*cpu, 0);
    backend.ledger().add(MemoryKind::pinned, "weights", held);
    if (pageable) backend.ledger().add(MemoryKind::host, "other weights", held);
    const auto open = [&] { HostBlocks(backend, kShape, (1 << 20) / kPiece * 3 + 3, kPiece); };
    if (pageable) {
      CHECK_THROWS_WITH_AS(open(), doctest::Contains("0 B available"), Error);
    } else {
      CHECK_NOTHROW(open());
    }
  }
}

TEST_CASE("a shorter last block has memory of its own, whenever it comes") {
  const auto cpu = create_backend(DeviceKind::cpu);
  constexpr std::size_t kBlock = kPiece / 3, kAll = 9 * kBlock + kBlock / 4;
  for (const BlockId when : {0, 4, 9}) {
    CAPTURE(when);
    HostBlocks blocks(*cpu, kShape, kBlocks, kPiece, 1, 1);
    std::vector<std::pair<const char*, std::size_t>> parts;
    const auto ask = [&](BlockId block) {
      for (const std::int64_t layer : {0, 1}) {
        auto* const part = static_cast<char*>(blocks.part(block, layer));
        const std::size_t bytes = blocks.part_bytes() / (block == 9 ? 4 : 1);
        std::memset(part, block, bytes);  // AddressSanitizer knows whether that is too much
        parts.emplace_back(part, bytes);
      }
    };
    for (BlockId block = 0; block < 9; ++block) {
      if (block == when) ask(9);
      ask(block);
    }
    if (when == 9) ask(9);
    std::sort(parts.begin(), parts.end());
    for (std::size_t i = 1; i < parts.size(); ++i) {
      CHECK(parts[i - 1].first + parts[i - 1].second <= parts[i].first);
    }
    CHECK(cpu->ledger().total(MemoryKind::pinned) == kAll);
  }
}

TEST_CASE("a shorter last block that is refused says why, and so does a piece behind it") {
  const auto cpu = create_backend(DeviceKind::cpu);
  std::promise<void> refuse;
  LittlePinned backend(*cpu, 1, refuse.get_future().share());
  HostBlocks blocks(backend, kShape, kBlocks, kPiece, 1, 1);
  CHECK(why_not(blocks, 5) == "");
  refuse.set_value();
  const std::string why =
      "KV cache in host memory: 1.50 KiB of 4.62 KiB are there, then: the driver refuses it; "
      "pass a smaller --kv-offloading-size";
  CHECK(why_not(blocks, 9) == why);
  for (const BlockId block : {6, 7}) CHECK(why_not(blocks, block) == "");
  CHECK(why_not(blocks, 8) == why);
}

TEST_CASE("layer-wise: a step that comes to a group without memory fails, and its streams end") {
  const auto cpu = create_backend(DeviceKind::cpu);
  LittlePinned backend(*cpu, 2);
  // Groups of two blocks, each a piece.
  constexpr GroupSizes kGroups = {.blocks = 2, .piece_bytes = 1, .ahead_bytes = 1};
  LayerwiseCache storage(backend, kShape, kBlocks, 2, 0, false, kGroups);
  const auto stream = cpu->create_stream();
  const auto pass = [&](const std::vector<BlockId>& blocks) {
    const auto rows = static_cast<std::int64_t>(blocks.size()) * kShape.block_size;
    const std::vector<StepSequence> step = {
        {.slot = 0, .blocks = blocks, .first = 0, .rows = rows}};
    storage.begin_step({.number = 1, .sequences = step}, *stream);
    for (std::int64_t layer = 0; layer < kShape.layers; ++layer) storage.store_view(layer, *stream);
    storage.end_pass(*stream);
  };
  pass({9, 8, 2});
  CHECK_THROWS_WITH_AS(pass({3, 8, 5}), doctest::Contains("the driver refuses it"), Error);
  stream->synchronize();
}

TEST_CASE("layer-wise: a step that capturable or decodes on the host fails before it begins") {
  const auto cpu = create_backend(DeviceKind::cpu);
  for (const bool on_host : {false, true}) {
    CAPTURE(on_host);
    constexpr GroupSizes kGroups = {.blocks = 2, .piece_bytes = 1, .ahead_bytes = 1};
    LittlePinned backend(*cpu, on_host ? 3 : 1);  // its tables are two
    LayerwiseCache storage(backend, kShape, kBlocks, 2, 0, on_host, kGroups);
    const auto stream = cpu->create_stream();
    const auto begin = [&](BlockId block) {
      const std::vector<StepSequence> step = {
          {.slot = 0, .blocks = {&block, 1}, .first = 0, .rows = 1}};
      storage.begin_step({.number = 1, .sequences = step, .may_capture = true}, *stream);
    };
    begin(9);
    CHECK_THROWS_WITH_AS(begin(3), doctest::Contains("the driver refuses it"), Error);
    begin(8);
    stream->synchronize();
  }
}

}  // namespace
}  // namespace nvllm::kvcache
