// Host memory that cannot be had, at the start and in the background: whoever needs it is told why, and nobody
// waits for ever.
#include "kvcache/host_blocks.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/wrapped_backend.h"
#include "kvcache/layerwise_storage.h"

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
  try {
    blocks.part(block, 0);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
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

TEST_CASE("layer-wise: a step that comes to a layer without memory fails, and its streams end") {
  const auto cpu = create_backend(DeviceKind::cpu);
  BlockShape shape = kShape;
  shape.layers = 4;
  shape.block_size = std::int64_t{1} << 19;  // 32 MiB a layer: of five blocks it is a piece
  LittlePinned backend(*cpu, 2);
  const std::vector<BlockId> numbers = {0};
  const std::vector<StepSequence> step = {{.slot = 0, .blocks = numbers, .first = 0, .rows = 1}};
  const auto stream = cpu->create_stream();
  LayerwiseStorage storage(backend, shape, 5, 2);
  storage.begin_step({.number = 1, .sequences = step}, *stream);
  const auto pass = [&] {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) storage.store_view(layer, *stream);
    storage.end_pass(*stream);
  };
  CHECK_THROWS_WITH_AS(pass(), doctest::Contains("the driver refuses it"), Error);
  stream->synchronize();
}

}  // namespace
}  // namespace nvllm::kvcache
