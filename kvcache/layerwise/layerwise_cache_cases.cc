// Layers that visit the device, on whichever backend is linked: what was stored is there again,
// however slow the copies are; what a step moves; what the memory is.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "device/testing/backend_under_test.h"
#include "kvcache/layerwise/layerwise_fixture.h"

namespace nvllm::kvcache {
namespace {

// Groups of all blocks, and groups whose boundaries lie between neighbouring blocks, the last of
// them shorter or not.
constexpr std::int64_t kAllGroups[] = {0, 1, 2, 5};

TEST_CASE("layers: any number of buffers, slow copies or not: what was stored is there again") {
  BACKEND_OR_SKIP(backend);
  for (const Late& late : {Late{}, kLateCopies, Late{.pass = true}}) {
    for (const std::int64_t buffers : {2, 3, 4, 8}) {
      CAPTURE(late.load);
      CAPTURE(late.pass);
      CAPTURE(buffers);
      Sequences sequences(*backend, 12, buffers, late);
      sequences.set_blocks(0, {3, 4, 5, 1});
      sequences.set_blocks(1, {9, 2, 0, 11});
      sequences.step({{0, 7}});
      sequences.step({{0, 1}, {1, 8}});
      for (int i = 0; i < 5; ++i) sequences.step({{0, 1}, {1, 1}});  // across boundaries of both
      sequences.step({{1, 1}});
      sequences.step({{0, 2}, {1, 1}});
      CHECK(sequences.first_wrong() == "");
    }
  }
}

TEST_CASE("layers: so do steps that repeat, among others") {
  BACKEND_OR_SKIP(backend);
  for (const Late& late : {Late{}, kLateCopies}) {
    for (const std::int64_t buffers : {2, 3, 8}) {
      CAPTURE(late.load);
      CAPTURE(buffers);
      Sequences sequences(*backend, 12, buffers, late);
      sequences.set_blocks(0, {3, 4, 5, 1});
      sequences.set_blocks(1, {9, 2, 0, 11});
      sequences.step({{0, 3}, {1, 5}});
      for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, How::graph);
      sequences.step({{0, 1}}, How::graph);
      sequences.step({{0, 2}, {1, 1}});
      for (int i = 0; i < 3; ++i) sequences.step({{0, 1}, {1, 1}}, How::graph);
      CHECK(sequences.first_wrong() == "");
    }
  }
}

TEST_CASE("layers: so do steps of one row on the host, captured or not, among others") {
  BACKEND_OR_SKIP(backend);
  for (const Late& late : {Late{}, kLateCopies, Late{.pass = true}}) {
    for (const How how : {How::once, How::graph}) {
      CAPTURE(late.load);
      CAPTURE(late.pass);
      CAPTURE(static_cast<int>(how));
      Sequences sequences(*backend, 12, 2, late, 0, true);
      sequences.set_blocks(0, {3, 4, 5, 1});
      sequences.set_blocks(1, {9, 2, 0, 11});
      sequences.step({{0, 3}, {1, 5}});
      for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, how);
      sequences.step({{0, 2}, {1, 1}});  // reads what those have stored
      for (int i = 0; i < 3; ++i) sequences.step({{1, 1}}, how);
      CHECK(sequences.first_wrong() == "");
    }
  }
}

TEST_CASE("layers: steps on the host load nothing, and are the same work until a block is full") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 12, 3, {}, 0, true);
  sequences.set_blocks(0, {3, 4, 5});
  sequences.set_blocks(1, {6, 7});
  constexpr std::uint64_t kToken = kShape.layers * 2 * kTokenBytes;
  sequences.step({{0, 6}, {1, 2}});
  for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, How::graph);
  CHECK(sequences.storage.traffic() == KvTraffic{.to_host = 16 * kToken, .to_device = 0});
  CHECK(sequences.first_wrong() == "");
  const std::vector<BlockId> blocks = {3, 4, 5}, others = {8};
  const auto stream = backend->create_stream();
  const auto graph_key_of = [&](const std::vector<StepSequence>& step) {
    const StepPlan plan = sequences.storage.begin_step(
        {.number = 20, .sequences = step, .may_capture = true}, *stream);
    CHECK(plan.capturable);
    return plan.graph_key;
  };
  const std::uint64_t before =
      graph_key_of({{.slot = 0, .blocks = blocks, .first = 10, .rows = 1}});
  CHECK(graph_key_of({{.slot = 0, .blocks = blocks, .first = 11, .rows = 1}}) == before);
  CHECK(graph_key_of({{.slot = 2, .blocks = others, .first = 0, .rows = 1}}) != before);
  stream->synchronize();
}

TEST_CASE("layers: blocks that another sequence had a step before are this one's") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 4, 2, kLateCopies);
  for (std::uint32_t i = 0; i < 4; ++i) {
    sequences.set_blocks(i, {static_cast<BlockId>(i % 2), 2, 3});
    sequences.step({{i, 9}});
    sequences.step({{i, 1}});
  }
  CHECK(sequences.first_wrong() == "");
}

TEST_CASE("layers: a step moves what its sequences have and what is new, and nothing else") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 12, 3);
  sequences.set_blocks(0, {3, 4, 5});
  sequences.set_blocks(1, {6, 7});
  constexpr std::uint64_t kToken = kShape.layers * 2 * kTokenBytes;
  sequences.step({{0, 9}});
  CHECK(sequences.storage.traffic() == KvTraffic{.to_host = 9 * kToken, .to_device = 0});
  sequences.step({{0, 1}, {1, 6}});
  CHECK(sequences.storage.traffic() == KvTraffic{.to_host = 16 * kToken, .to_device = 9 * kToken});
  sequences.step({{1, 1}});
  CHECK(sequences.storage.traffic() == KvTraffic{.to_host = 17 * kToken, .to_device = 15 * kToken});
}

TEST_CASE("layers: what lies in the host's memory is not known to be read ahead") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 4, 2);
  CHECK(sequences.storage.prefetch(0, {}, {}).kv.keys.data == nullptr);
}

// A sequence of all blocks comes to all of the memory.
void use_all(LayerwiseCache& storage, Backend& backend, const std::vector<BlockId>& blocks) {
  const auto stream = backend.create_stream();
  const auto rows = static_cast<std::int64_t>(blocks.size()) * kShape.block_size;
  const std::vector<StepSequence> step = {{.slot = 0, .blocks = blocks, .first = 0, .rows = rows}};
  storage.begin_step({.number = 1, .sequences = step}, *stream);
  for (std::int64_t i = 0; i < kShape.layers; ++i) storage.store_view(i, *stream);
  storage.end_pass(*stream);
  stream->synchronize();
}

TEST_CASE("layers: prompts, steps and graphs over the boundaries of groups, a shared prefix too") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t group : kAllGroups) {
    for (const How how : {How::once, How::graph}) {
      for (const bool on_host : {false, true}) {
        CAPTURE(group);
        CAPTURE(static_cast<int>(how));
        CAPTURE(on_host);
        Sequences sequences(*backend, 12, 2, kLateCopies, 0, on_host, {.blocks = group});
        sequences.set_blocks(0, {3, 4, 5, 6});
        sequences.step({{0, 13}});
        sequences.share(1, 0, 12, {3, 4, 5, 7});
        sequences.set_blocks(2, {8, 9, 10, 11});
        sequences.step({{2, 3}, {1, 1}});
        for (int i = 0; i < 2; ++i) sequences.step({{0, 1}, {1, 1}, {2, 1}}, how);
        for (int i = 0; i < 4; ++i) sequences.step({{2, 1}}, how);
        for (int i = 0; i < 2; ++i) sequences.step({{2, 1}}, How::once);
        sequences.step({{1, 1}, {2, 4}});
        CHECK(sequences.first_wrong() == "");
      }
    }
  }
}

TEST_CASE("layers: who decodes the same prefix to another block is other work") {
  BACKEND_OR_SKIP(backend);
  for (const bool on_host : {false, true}) {
    CAPTURE(on_host);
    Sequences sequences(*backend, 12, 2, {}, 0, on_host, {.blocks = 2});
    sequences.set_blocks(0, {3, 4, 6});
    sequences.share(1, 0, 8, {3, 4, 9});
    sequences.step({{0, 8}});
    sequences.step({{0, 1}}, How::graph);
    const std::vector<BlockId> first = {3, 4, 6}, second = {3, 4, 9};
    const auto stream = backend->create_stream();
    const auto graph_key_of = [&](const std::vector<BlockId>& blocks) {
      const std::vector<StepSequence> step = {{.slot = 0, .blocks = blocks, .first = 8, .rows = 1}};
      return sequences.storage
          .begin_step({.number = 20, .sequences = step, .may_capture = true}, *stream)
          .graph_key;
    };
    const std::uint64_t before = graph_key_of(first);
    CHECK(graph_key_of(first) == before);
    CHECK(graph_key_of(second) != before);
    stream->synchronize();
  }
}

TEST_CASE("layers: a short sequence takes the memory of a group, and what runs ahead of it") {
  BACKEND_OR_SKIP(backend);
  const std::size_t block = 5 * 2 * 4 * kTokenBytes, group = 3 * block;
  // Each group is a piece, and one runs ahead.
  LayerwiseCache storage(*backend, kShape, 20, 2, 0, false,
                         {.blocks = 3, .piece_bytes = group, .ahead_bytes = group});
  const auto settles_at = [&](std::size_t bytes) {
    const auto pinned = [&] { return backend->ledger().total(MemoryKind::pinned); };
    for (int i = 0; i < 1000 && pinned() < bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // or the thread has gone on
    return pinned() == bytes;
  };
  CHECK(settles_at(group));
  use_all(storage, *backend, {7, 8});
  CHECK(settles_at(2 * group));
  use_all(storage, *backend, {6, 7, 8, 0, 2});
  CHECK(settles_at(3 * group));
  use_all(storage, *backend, {18});  // of the last one, which has two blocks
  CHECK(settles_at(3 * group + 2 * block));
}

TEST_CASE("layers: a group has 32 MiB of a layer, and no more blocks than there are") {
  BlockShape shape = {
      .layers = 36, .block_size = 256, .kv_heads = 8, .head_dim = 128, .dtype = DType::bf16};
  CHECK(LayerGroups::default_group(shape, 1000) == 32);
  CHECK(LayerGroups::default_group(shape, 20) == 20);
  shape.kv_heads = 3;
  CHECK(LayerGroups::default_group(shape, 1000) == 86);
  shape.block_size = 1 << 20;
  CHECK(LayerGroups::default_group(shape, 1000) == 1);
  shape.kv_heads = 0;
  CHECK(LayerGroups::default_group(shape, 1000) == 1000);
}

TEST_CASE("layers: a block that two sequences share is moved once") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 12, 2);
  sequences.set_blocks(0, {3, 4});
  sequences.step({{0, 5}});
  constexpr std::uint64_t kToken = kShape.layers * 2 * kTokenBytes;
  const std::uint64_t before = sequences.storage.traffic().to_device;
  const std::vector<BlockId> first = {3, 4}, second = {3, 8};
  const auto stream = backend->create_stream();
  std::vector<StepSequence> step;
  step.push_back({.slot = 0, .blocks = first, .first = 5, .rows = 1});
  step.push_back({.slot = 1, .blocks = second, .first = 4, .rows = 2});
  sequences.storage.begin_step({.number = 9, .sequences = step}, *stream);
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    sequences.storage.store_view(layer, *stream);
  }
  sequences.storage.end_pass(*stream);
  stream->synchronize();
  CHECK(sequences.storage.traffic().to_device - before == 5 * kToken);
}

TEST_CASE("layers: memory is what the arithmetic says, to the byte") {
  BACKEND_OR_SKIP(backend);
  const std::size_t layer = 2 * 4 * kTokenBytes;  // of a block
  CHECK(LayerwiseCache::device_bytes(kShape, 3) == 3 * layer + 4 * sizeof(std::int32_t));
  CHECK(LayerwiseCache::host_bytes(kShape) == 5 * layer);
  for (const bool on_host : {false, true}) {
    for (const std::int64_t group : kAllGroups) {
      CAPTURE(on_host);
      CAPTURE(group);
      const Ledger& ledger = backend->ledger();
      LayerwiseCache storage(*backend, kShape, 11, 3, 0, on_host, {.blocks = group});
      use_all(storage, *backend, {8, 9, 10, 4, 5, 3, 2, 1, 0, 6, 7});
      CHECK(ledger.total(MemoryKind::device) ==
            11 * LayerwiseCache::device_bytes(kShape, 3, on_host));
      const std::size_t tables = on_host ? HostTables::host_bytes(kShape.layers) : 0;
      CHECK(ledger.total(MemoryKind::pinned) == 11 * (LayerwiseCache::host_bytes(kShape) + tables));
      CHECK(storage.tokens().shape[0] == 11);
    }
  }
}

TEST_CASE("layers: a rank without KV heads has nothing to move") {
  BACKEND_OR_SKIP(backend);
  BlockShape shape = kShape;
  shape.kv_heads = 0;
  LayerwiseCache storage(*backend, shape, 4, 2);
  auto stream = backend->create_stream();
  const std::vector<BlockId> blocks = {1, 2};
  const std::vector<StepSequence> step = {{.slot = 0, .blocks = blocks, .first = 5, .rows = 1}};
  storage.begin_step({.number = 1, .sequences = step}, *stream);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) storage.store_view(layer, *stream);
  storage.end_pass(*stream);
  stream->synchronize();
  CHECK(storage.traffic() == KvTraffic{});
}

}  // namespace
}  // namespace nvllm::kvcache
