// Layers that visit the device, on whichever backend is linked: what was stored is there again, however slow
// the copies are; what a step moves; what the memory is.
#include <cstdint>
#include <vector>

#include "device/backend_under_test.h"
#include "kvcache/layerwise_sequences.h"

namespace nvllm::kvcache {
namespace {

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

TEST_CASE("layers: steps on the host load nothing, and all are the same work") {
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
  const auto work_of = [&](const std::vector<StepSequence>& step) {
    const StepPlan plan = sequences.storage.begin_step(
        {.number = 20, .sequences = step, .may_repeat = true}, *stream);
    CHECK(plan.repeats);
    return plan.work;
  };
  const std::uint64_t before = work_of({{.slot = 0, .blocks = blocks, .first = 10, .rows = 1}});
  CHECK(work_of({{.slot = 2, .blocks = others, .first = 0, .rows = 1}}) == before);
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
  LayerwiseStorage storage(*backend, kShape, 10, 3);
  const auto stream = backend->create_stream();
  storage.begin_step({}, *stream);  // a pass comes to all of the memory
  for (std::int64_t i = 0; i < kShape.layers; ++i) storage.store_view(i, *stream);
  storage.end_pass(*stream);
  const std::size_t layer = 2 * 4 * kTokenBytes;  // of a block
  CHECK(LayerwiseStorage::device_bytes(kShape, 3) == 3 * layer + 4 * sizeof(std::int32_t));
  CHECK(LayerwiseStorage::host_bytes(kShape) == 5 * layer);
  CHECK(backend->ledger().total(MemoryKind::device) == 10 * (3 * layer + 16));
  CHECK(backend->ledger().total(MemoryKind::pinned) == 10 * 5 * layer);
  CHECK(storage.tokens().shape[0] == 10);
}

TEST_CASE("layers: a rank without KV heads has nothing to move") {
  BACKEND_OR_SKIP(backend);
  BlockShape shape = kShape;
  shape.kv_heads = 0;
  LayerwiseStorage storage(*backend, shape, 4, 2);
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
