// Layers that visit the device, on whichever backend is linked: what was stored is there again, however slow
// the copies are; what a step moves; what the memory is.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "device/backend_under_test.h"
#include "kvcache/layerwise_storage.h"

namespace nvllm::kvcache {
namespace {

// A backend on whose streams, but one, every copy comes late.
class SlowCopies : public Backend {
 public:
  SlowCopies(Backend& backend, bool slow) : backend_(backend), slow_(slow) {}

  void set_pass(const Stream& stream) { fast_ = &stream; }

  DeviceKind kind() const override { return backend_.kind(); }
  std::string description() const override { return backend_.description(); }
  DeviceMemory memory() const override { return backend_.memory(); }
  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    return backend_.allocate(kind, bytes, purpose);
  }
  std::unique_ptr<Stream> create_stream(StreamPriority priority) override {
    return backend_.create_stream(priority);
  }
  std::unique_ptr<Event> create_event(bool timing) override {
    return backend_.create_event(timing);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    if (slow_ && &stream != fast_) {
      const std::chrono::microseconds time(random_() % 200);
      stream.host_call([time] { std::this_thread::sleep_for(time); });
    }
    backend_.copy(to, from, bytes, stream);
  }
  void fill(void* to, unsigned char value, std::size_t bytes, Stream& stream) override {
    backend_.fill(to, value, bytes, stream);
  }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    return backend_.capture(stream, work);
  }

 private:
  Backend& backend_;
  const bool slow_;
  const Stream* fast_ = nullptr;
  std::mt19937 random_{5};
};

constexpr BlockShape kShape = {
    .layers = 5, .block_size = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::f32};
constexpr std::int64_t kTokenFloats = 8;
constexpr std::size_t kTokenBytes = kTokenFloats * sizeof(float);

// Sequences whose tokens' keys and values are told from all others by their bits.
class Sequences {
 public:
  Sequences(Backend& backend, std::int64_t blocks, std::int64_t buffers, bool slow)
      : backend_(backend, slow),
        storage(backend_, kShape, blocks, buffers),
        pass_(backend.create_stream()),
        staging_(backend.allocate(MemoryKind::pinned, kRoom, "test")) {
    backend_.set_pass(*pass_);
  }
  ~Sequences() { pass_->synchronize(); }

  struct Rows {
    std::uint32_t sequence;
    std::int64_t rows;
  };

  void set_blocks(std::uint32_t sequence, std::vector<BlockId> blocks) {
    blocks_[sequence] = std::move(blocks);
    lengths_[sequence] = 0;
  }

  // Stores new tokens, and reads all tokens of these sequences as attention would.
  void step(const std::vector<Rows>& rows) {
    std::vector<StepSequence> step;
    for (const Rows& each : rows) {
      step.push_back({.slot = each.sequence,
                      .blocks = blocks_[each.sequence],
                      .first = lengths_[each.sequence],
                      .rows = each.rows});
    }
    storage.begin_step({.number = ++number_, .sequences = step}, *pass_);
    storage.begin_pass(*pass_);
    for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
      const kernels::KvView view = storage.store_view(layer, *pass_);
      for (const StepSequence& each : step) store(layer, view, each);
      for (const StepSequence& each : step) read(layer, view, each);
    }
    storage.end_pass(*pass_);
    storage.end_step(*pass_);
    for (const Rows& each : rows) lengths_[each.sequence] += each.rows;
  }

  // The first token that was read and is not what was stored; empty: all were.
  std::string first_wrong() {
    pass_->synchronize();
    for (const Read& read : reads_) {
      if (std::memcmp(read.got, read.right.data(), kTokenBytes) != 0) return read.what;
    }
    return {};
  }

 private:
  static constexpr std::size_t kRoom = std::size_t{8} << 20;
  struct Read {
    const void* got;
    std::vector<float> right;
    std::string what;
  };

  static std::vector<float> value(std::uint32_t sequence, std::int64_t layer, int side,
                                  std::int64_t token) {
    std::vector<float> value(kTokenFloats);
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] = static_cast<float>((((sequence * 10 + layer) * 2 + side) * 1000 + token) * 8) +
                 static_cast<float>(i);
    }
    return value;
  }

  void* place(const kernels::KvView& view, int side, const StepSequence& sequence,
              std::int64_t token) {
    const TensorView& part = side == 0 ? view.keys : view.values;
    const auto block = sequence.blocks[static_cast<std::size_t>(token / kShape.block_size)];
    return part.as<float>() + block * part.stride[0] + token % kShape.block_size * part.stride[1];
  }

  void* take() {
    void* const here = static_cast<unsigned char*>(staging_.data()) + used_;
    used_ += kTokenBytes;
    REQUIRE(used_ <= kRoom);
    return here;
  }

  void store(std::int64_t layer, const kernels::KvView& view, const StepSequence& sequence) {
    for (std::int64_t token = sequence.first; token < sequence.length(); ++token) {
      for (const int side : {0, 1}) {
        void* const staged = take();
        const std::vector<float> right = value(sequence.slot, layer, side, token);
        std::memcpy(staged, right.data(), kTokenBytes);
        backend_.copy(place(view, side, sequence, token), staged, kTokenBytes, *pass_);
      }
    }
  }

  void read(std::int64_t layer, const kernels::KvView& view, const StepSequence& sequence) {
    for (std::int64_t token = 0; token < sequence.length(); ++token) {
      for (const int side : {0, 1}) {
        void* const got = take();
        backend_.copy(got, place(view, side, sequence, token), kTokenBytes, *pass_);
        reads_.push_back({got, value(sequence.slot, layer, side, token),
                          str("step ", number_, ", layer ", layer, ", sequence ", sequence.slot,
                              ", token ", token, side == 0 ? ", key" : ", value")});
      }
    }
  }

  SlowCopies backend_;

 public:
  LayerwiseStorage storage;

 private:
  std::unique_ptr<Stream> pass_;
  Buffer staging_;
  std::size_t used_ = 0;
  std::uint64_t number_ = 0;
  std::map<std::uint32_t, std::vector<BlockId>> blocks_;
  std::map<std::uint32_t, std::int64_t> lengths_;
  std::vector<Read> reads_;
};

TEST_CASE("layers: any number of buffers, slow copies or not: what was stored is there again") {
  BACKEND_OR_SKIP(backend);
  for (const bool slow : {false, true}) {
    for (const std::int64_t buffers : {2, 3, 4, 8}) {
      CAPTURE(slow);
      CAPTURE(buffers);
      Sequences sequences(*backend, 12, buffers, slow);
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

TEST_CASE("layers: blocks that another sequence had a step before are this one's") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 4, 2, true);
  for (std::uint32_t i = 0; i < 4; ++i) {
    sequences.set_blocks(i, {static_cast<BlockId>(i % 2), 2, 3});
    sequences.step({{i, 9}});
    sequences.step({{i, 1}});
  }
  CHECK(sequences.first_wrong() == "");
}

TEST_CASE("layers: a step moves what its sequences have and what is new, and nothing else") {
  BACKEND_OR_SKIP(backend);
  Sequences sequences(*backend, 12, 3, false);
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
  Sequences sequences(*backend, 12, 2, false);
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
  const LayerwiseStorage storage(*backend, kShape, 10, 3);
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
