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
#include <utility>
#include <vector>

#include "base/text.h"
#include "device/backend_under_test.h"
#include "kvcache/layerwise_storage.h"
#include "testing/sanitizers.h"

namespace nvllm::kvcache {
namespace {

// Which copies come late: those of the storage's own streams, which it makes in this order, and the pass's.
struct Late {
  bool load = false, write = false, pass = false;
  std::chrono::microseconds most{200};
};

// A backend on which some copies come late.
class SlowCopies : public Backend {
 public:
  SlowCopies(Backend& backend, const Late& late) : backend_(backend), late_(late) {}

  DeviceKind kind() const override { return backend_.kind(); }
  std::string description() const override { return backend_.description(); }
  DeviceMemory memory() const override { return backend_.memory(); }
  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    return backend_.allocate(kind, bytes, purpose);
  }
  std::unique_ptr<Stream> create_stream(StreamPriority priority) override {
    auto stream = backend_.create_stream(priority);
    streams_.push_back(stream.get());
    return stream;
  }
  std::unique_ptr<Event> create_event(bool timing) override {
    return backend_.create_event(timing);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    if (is_late(stream)) {
      const std::chrono::microseconds time(random_() % late_.most.count());
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
  bool is_late(const Stream& stream) const {
    const bool late[] = {late_.load, late_.write, late_.pass};
    for (std::size_t i = 0; i < std::size(late); ++i) {
      if (i < streams_.size() && streams_[i] == &stream) return late[i];
    }
    return false;
  }

  Backend& backend_;
  const Late late_;
  std::vector<const Stream*> streams_;
  std::mt19937 random_{5};
};

constexpr Late kLateCopies = {.load = true, .write = true};

constexpr BlockShape kShape = {
    .layers = 5, .block_size = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::f32};
constexpr std::int64_t kTokenFloats = 8;
constexpr std::size_t kTokenBytes = kTokenFloats * sizeof(float);

// Sequences whose tokens' keys and values are told from all others by their bits.
class Sequences {
 public:
  Sequences(Backend& backend, std::int64_t blocks, std::int64_t buffers, const Late& late = {},
            std::uint32_t left_out = 0, bool decodes_on_host = false)
      : backend_(backend, late),
        storage(backend_, kShape, blocks, buffers, left_out, decodes_on_host),
        pass_(backend_.create_stream(StreamPriority::normal)),
        staging_(backend.allocate(MemoryKind::pinned, kRoom, "test")),
        device_(backend.allocate(MemoryKind::device, kDeviceRoom, "test")) {}
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
  // repeats: as a captured decode step.
  void step(const std::vector<Rows>& rows, bool repeats = false) {
    std::vector<StepSequence> step;
    for (const Rows& each : rows) {
      step.push_back({.slot = each.sequence,
                      .blocks = blocks_[each.sequence],
                      .first = lengths_[each.sequence],
                      .rows = each.rows});
    }
    storage.begin_step({.number = ++number_, .sequences = step, .may_repeat = repeats}, *pass_);
    const auto pass = [&] {
      storage.begin_pass(*pass_);
      for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
        const kernels::KvView view = storage.store_view(layer, *pass_);
        for (const StepSequence& each : step) store(layer, view, each);
        if (repeats) attend(layer, static_cast<std::int64_t>(step.size()));
        for (const StepSequence& each : step) read(layer, view, each);
      }
      storage.end_pass(*pass_);
    };
    if (repeats) {
      stage(step);
      graphs_.push_back(backend_.capture(*pass_, pass));
      graphs_.back()->launch(*pass_);
    } else {
      pass();
    }
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
  static constexpr std::size_t kRoom = std::size_t{8} << 20, kDeviceRoom = 4096;
  static constexpr std::int64_t kMost = 4;  // sequences of a step that repeats, and blocks of each
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

  // The lengths, tables and first rows of a step that repeats.
  void stage(const std::vector<StepSequence>& step) {
    auto* const words = static_cast<std::int32_t*>(take(kDeviceRoom));
    std::int32_t* word = words;
    for (std::size_t i = 0; i <= step.size(); ++i) *word++ = static_cast<std::int32_t>(i);
    for (const StepSequence& each : step) *word++ = static_cast<std::int32_t>(each.length());
    for (const StepSequence& each : step) {
      for (std::size_t i = 0; i < kMost; ++i) {
        *word++ = i < each.blocks.size() ? each.blocks[i] : 0;
      }
    }
    backend_.copy(device_.data(), words, static_cast<std::size_t>(word - words) * 4, *pass_);
  }

  // Of queries that nobody looks at: behind it the newest tokens go to the host.
  void attend(std::int64_t layer, std::int64_t count) {
    auto* const words = static_cast<std::int32_t*>(device_.data());
    auto* const floats = reinterpret_cast<float*>(words + 64);
    kernels::Attention args;
    args.q = TensorView(floats, DType::f32, {count, 1, kTokenFloats});
    args.out = TensorView(floats + kMost * kTokenFloats, DType::f32, {count, 1, kTokenFloats});
    args.query_start = TensorView(words, DType::i32, {count + 1});
    args.kv_length = TensorView(words + count + 1, DType::i32, {count});
    args.kv.block_table = TensorView(words + 2 * count + 1, DType::i32, {count, kMost});
    args.max_query_rows = 1;
    args.max_kv_length = kMost * kShape.block_size;
    storage.attend(layer, args, *pass_);
  }

  void* place(const kernels::KvView& view, int side, const StepSequence& sequence,
              std::int64_t token) {
    const TensorView& part = side == 0 ? view.keys : view.values;
    const auto block = sequence.blocks[static_cast<std::size_t>(token / kShape.block_size)];
    return part.as<float>() + block * part.stride[0] + token % kShape.block_size * part.stride[1];
  }

  void* take(std::size_t bytes = kTokenBytes) {
    void* const here = static_cast<unsigned char*>(staging_.data()) + used_;
    used_ += bytes;
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
  std::vector<std::unique_ptr<Graph>> graphs_;
  Buffer staging_, device_;
  std::size_t used_ = 0;
  std::uint64_t number_ = 0;
  std::map<std::uint32_t, std::vector<BlockId>> blocks_;
  std::map<std::uint32_t, std::int64_t> lengths_;
  std::vector<Read> reads_;
};

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
      for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, true);
      sequences.step({{0, 1}}, true);
      sequences.step({{0, 2}, {1, 1}});
      for (int i = 0; i < 3; ++i) sequences.step({{0, 1}, {1, 1}}, true);
      CHECK(sequences.first_wrong() == "");
    }
  }
}

TEST_CASE("layers: so do steps of one row on the host, captured or not, among others") {
  BACKEND_OR_SKIP(backend);
  for (const Late& late : {Late{}, kLateCopies, Late{.pass = true}}) {
    for (const bool repeats : {false, true}) {
      CAPTURE(late.load);
      CAPTURE(late.pass);
      CAPTURE(repeats);
      Sequences sequences(*backend, 12, 2, late, 0, true);
      sequences.set_blocks(0, {3, 4, 5, 1});
      sequences.set_blocks(1, {9, 2, 0, 11});
      sequences.step({{0, 3}, {1, 5}});
      for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, repeats);
      sequences.step({{0, 2}, {1, 1}});  // reads what those have stored
      for (int i = 0; i < 3; ++i) sequences.step({{1, 1}}, repeats);
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
  for (int i = 0; i < 4; ++i) sequences.step({{0, 1}, {1, 1}}, true);
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

// A wait, where nothing else waits for as much: the buffers, and whether the steps before the last repeat, or are on the
// host.
struct Missing {
  LayerwiseWait wait;
  Late late;  // what it is for comes late, so who does not wait is early
  std::int64_t buffers = 2;
  bool repeat = false;
  bool on_host = false;
};

// sequence: another one each time, as memory may still have what the time before left there.
std::string wrong_without(Backend& backend, const Missing& missing, std::uint32_t sequence) {
  Sequences sequences(backend, 12, missing.buffers, missing.late,
                      1u << static_cast<unsigned>(missing.wait), missing.on_host);
  sequences.set_blocks(sequence, {3, 4, 5, 1});
  sequences.step({{sequence, 7}});
  for (int i = 0; i < 4; ++i) sequences.step({{sequence, 1}}, missing.repeat);
  sequences.step({{sequence, 2}});
  return sequences.first_wrong();
}

TEST_CASE("layers: each wait is missed when it is left out") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cuda)
    SKIP_TEST("host calls of all streams wait for each other");
  if (testing::kSanitized) SKIP_TEST("a race, which sanitizers find");
  constexpr std::chrono::milliseconds kMost(2);
  const Late load{.load = true, .most = kMost}, write{.write = true, .most = kMost},
      pass{.pass = true, .most = kMost};
  const std::vector<Missing> all = {
      // A captured pass has nothing on the write stream, which would wait for as much.
      {.wait = LayerwiseWait::load_of_reading, .late = pass, .repeat = true},
      {.wait = LayerwiseWait::load_of_writing, .late = write},
      // With fewer buffers than layers, what was in the buffer was written later than the layer.
      {.wait = LayerwiseWait::load_of_layer, .late = write, .buffers = 8},
      {.wait = LayerwiseWait::pass_of_load, .late = load},
      {.wait = LayerwiseWait::writing_of_pass, .late = pass},
      {.wait = LayerwiseWait::pass_of_writings, .late = write, .on_host = true},
      {.wait = LayerwiseWait::load_of_reading, .late = pass, .on_host = true},
  };
  std::uint32_t sequence = 0;
  for (const Missing& missing : all) {
    CAPTURE(static_cast<int>(missing.wait));
    CAPTURE(missing.on_host);
    std::string wrong;
    for (int i = 0; i < 5 && wrong.empty(); ++i) {
      wrong = wrong_without(*backend, missing, sequence++);
    }
    CHECK(wrong != "");
  }
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
