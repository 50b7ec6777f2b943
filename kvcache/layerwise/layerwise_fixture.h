// Sequences in layer-wise storage whose tokens are known by their bits, on a backend whose copies
// may be slow: what a pass reads is what it should have stored, or a wait is missing.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "device/testing/backend_under_test.h"
#include "device/testing/wrapped_backend.h"
#include "kvcache/layerwise/layerwise_cache.h"

namespace nvllm::kvcache {

// Which copies come late: those of the storage's own streams, which it makes in this order, and the
// pass's.
struct Late {
  bool load = false, write = false, pass = false;
  std::chrono::microseconds max{200};
};

// A backend on which some copies come late.
class SlowCopies : public WrappedBackend {
 public:
  SlowCopies(Backend& backend, const Late& late) : WrappedBackend(backend), late_(late) {}

  std::unique_ptr<Stream> create_stream(StreamPriority priority) override {
    auto stream = WrappedBackend::create_stream(priority);
    streams_.push_back(stream.get());
    return stream;
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    if (is_late(stream)) {
      const std::chrono::microseconds time(random_() % late_.max.count());
      stream.host_call([time] { std::this_thread::sleep_for(time); });
    }
    WrappedBackend::copy(to, from, bytes, stream);
  }

  const std::vector<Stream*>& streams() const { return streams_; }

 private:
  bool is_late(const Stream& stream) const {
    const bool late[] = {late_.load, late_.write, late_.pass};
    for (std::size_t i = 0; i < std::size(late); ++i) {
      if (i < streams_.size() && streams_[i] == &stream) return late[i];
    }
    return false;
  }

  const Late late_;
  std::vector<Stream*> streams_;
  std::mt19937 random_{5};
};

inline constexpr Late kLateCopies = {.load = true, .write = true};

inline constexpr BlockShape kShape = {
    .layers = 5, .block_size = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::f32};
inline constexpr std::int64_t kTokenFloats = 8;
inline constexpr std::size_t kTokenBytes = kTokenFloats * sizeof(float);

// How a step runs: its pass once, as a graph, or as a graph's first run, which is none.
enum class How { once, graph, like_graph };

// Sequences whose tokens' keys and values are told from all others by their bits.
class Sequences {
 public:
  Sequences(Backend& backend, std::int64_t blocks, std::int64_t buffers, const Late& late = {},
            std::uint32_t left_out = 0, bool decodes_on_host = false, const GroupSizes& sizes = {})
      : backend_(backend, late),
        group_blocks_(sizes.blocks > 0 ? sizes.blocks : blocks),
        storage(backend_, kShape, blocks, buffers, left_out, decodes_on_host, sizes),
        pass_(backend_.create_stream(StreamPriority::normal)),
        staging_(backend.allocate(MemoryKind::pinned, kRoom, "test")),
        device_(backend.allocate(MemoryKind::device, kDeviceRoom, "test")) {}
  ~Sequences() {
    go();
    pass_->synchronize();
  }

  struct Rows {
    std::uint32_t sequence;
    std::int64_t rows;
  };

  void set_blocks(std::uint32_t sequence, std::vector<BlockId> blocks) {
    blocks_[sequence] = std::move(blocks);
    lengths_[sequence] = 0;
  }

  // Its first tokens, in the same blocks, are another one's.
  void share(std::uint32_t sequence, std::uint32_t other, std::int64_t tokens,
             std::vector<BlockId> blocks) {
    set_blocks(sequence, std::move(blocks));
    lengths_[sequence] = tokens;
    shared_[sequence] = {other, tokens};
  }

  // Stores new tokens, and reads all tokens of these sequences as attention would.
  void step(const std::vector<Rows>& rows, How how = How::once) {
    const bool capturable = how != How::once;
    std::vector<StepSequence> step;
    for (const Rows& each : rows) {
      step.push_back({.slot = each.sequence,
                      .blocks = blocks_[each.sequence],
                      .first = lengths_[each.sequence],
                      .rows = each.rows});
    }
    storage.begin_step({.number = ++number_, .sequences = step, .may_capture = capturable}, *pass_);
    const bool staged = capturable || storage.on_host();
    const auto pass = [&] {
      storage.begin_pass(*pass_);
      for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
        const kernels::KvView view = storage.store_view(layer, *pass_);
        for (const StepSequence& each : step) store(layer, view, each);
        if (staged) run_attention(layer, static_cast<std::int64_t>(step.size()));
        for (const StepSequence& each : step) read(layer, view, each);
      }
      storage.end_pass(*pass_);
    };
    if (staged) stage(step);
    if (how == How::graph) {
      graphs_.push_back(backend_.capture(*pass_, pass));
      graphs_.back()->launch(*pass_);
    } else {
      pass();
    }
    storage.end_step(*pass_);
    for (const Rows& each : rows) lengths_[each.sequence] += each.rows;
  }

  // Nothing runs before go(), or first_wrong(): so no thread knows of another one's work but by the
  // streams' waits, where the caller would carry such knowledge from one to the other.
  void hold() {
    for (Stream* const stream : backend_.streams())
      gates_.push_back(std::make_unique<testing::Gate>(*stream));
  }
  void go() { gates_.clear(); }

  // The first token that was read and is not what was stored; empty: all were.
  std::string first_wrong() {
    go();
    pass_->synchronize();
    for (const Read& read : reads_) {
      if (std::memcmp(read.got, read.right.data(), kTokenBytes) != 0) return read.what;
    }
    return {};
  }

 private:
  static constexpr std::size_t kRoom = std::size_t{8} << 20, kDeviceRoom = 4096;
  static constexpr std::int64_t kMaxSequences =
      4;  // sequences of a captured step, and blocks of each
  struct Shared {
    std::uint32_t of;
    std::int64_t tokens;
  };
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

  // The lengths, tables and first rows of a captured step.
  void stage(const std::vector<StepSequence>& step) {
    auto* const words = static_cast<std::int32_t*>(take(kDeviceRoom));
    std::int32_t* word = words;
    for (std::size_t i = 0; i <= step.size(); ++i) *word++ = static_cast<std::int32_t>(i);
    for (const StepSequence& each : step) *word++ = static_cast<std::int32_t>(each.length());
    for (const StepSequence& each : step) {
      for (std::size_t i = 0; i < kMaxSequences; ++i) {
        *word++ = i < each.blocks.size() ? each.blocks[i] : 0;
      }
    }
    backend_.copy(device_.data(), words, static_cast<std::size_t>(word - words) * 4, *pass_);
  }

  // Attention with dummy queries, the first sequence's before all others': after it the newest
  // tokens are written to the host.
  void run_attention(std::int64_t layer, std::int64_t count) {
    run_attention(layer, count, 0, 1);
    if (count > 1) run_attention(layer, count, 1, count - 1);
  }
  void run_attention(std::int64_t layer, std::int64_t all, std::int64_t first, std::int64_t count) {
    auto* const words = static_cast<std::int32_t*>(device_.data());
    auto* const floats = reinterpret_cast<float*>(words + 64);
    kernels::Attention args;
    args.q = TensorView(floats, DType::f32, {count, 1, kTokenFloats});
    args.out =
        TensorView(floats + kMaxSequences * kTokenFloats, DType::f32, {count, 1, kTokenFloats});
    args.query_start = TensorView(words, DType::i32, {count + 1});
    args.kv_length = TensorView(words + all + 1, DType::i32, {all}).rows(first, count);
    args.kv.block_table =
        TensorView(words + 2 * all + 1, DType::i32, {all, kMaxSequences}).rows(first, count);
    args.max_query_rows = 1;
    args.max_kv_length = kMaxSequences * kShape.block_size;
    if (storage.on_host()) {
      storage.write_newest(layer, args.kv_length, *pass_);
    } else {
      storage.run_attention(layer, args, /*decode_sequences=*/0, *pass_);
    }
  }

  // Where the step finds it again.
  void* stored(std::int64_t layer, const kernels::KvView& view, int side,
               const StepSequence& sequence, std::int64_t token) {
    if (!storage.on_host()) return place(view, side, sequence, token);
    const auto block = sequence.blocks[static_cast<std::size_t>(token / kShape.block_size)];
    const kernels::KvView group = storage.group_of(block, layer);
    const TensorView& part = side == 0 ? group.keys : group.values;
    return part.as<float>() + block % group_blocks_ * part.stride[0] +
           token % kShape.block_size * part.stride[1];
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
        backend_.copy(got, stored(layer, view, side, sequence, token), kTokenBytes, *pass_);
        const auto shared = shared_.find(sequence.slot);
        const bool other = shared != shared_.end() && token < shared->second.tokens;
        const std::uint32_t whose = other ? shared->second.of : sequence.slot;
        reads_.push_back({got, value(whose, layer, side, token),
                          str("step ", number_, ", layer ", layer, ", sequence ", sequence.slot,
                              ", token ", token, side == 0 ? ", key" : ", value")});
      }
    }
  }

  SlowCopies backend_;
  const std::int64_t group_blocks_;

 public:
  LayerwiseCache storage;

 private:
  std::unique_ptr<Stream> pass_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  Buffer staging_, device_;
  std::size_t used_ = 0;
  std::uint64_t number_ = 0;
  std::map<std::uint32_t, std::vector<BlockId>> blocks_;
  std::map<std::uint32_t, std::int64_t> lengths_;
  std::map<std::uint32_t, Shared> shared_;
  std::vector<Read> reads_;
  std::vector<std::unique_ptr<testing::Gate>> gates_;
};

}  // namespace nvllm::kvcache
