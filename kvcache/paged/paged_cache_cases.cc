// The cache's memory, on whichever backend is linked.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/host_memory.h"
#include "device/testing/backend_under_test.h"
#include "kernels/attention/attention.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/testing/cases.h"
#include "kvcache/paged/paged_cache.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::normal_values;
using kernels::testing::Placed;
using kernels::testing::refusal;
using kernels::testing::same_bits;

using Bytes = std::vector<unsigned char>;

constexpr BlockShape kShape = {
    .layers = 3, .block_size = 4, .kv_heads = 2, .head_dim = 8, .dtype = DType::bf16};

// A storage with a stream, whose blocks the host can read and write.
class Desk {
 public:
  Desk(Backend& backend, const BlockShape& shape, std::int64_t blocks, std::int64_t host_blocks)
      : storage(backend, shape, blocks, host_blocks),
        stream(backend.create_stream()),
        backend_(backend),
        staging_(backend.allocate(MemoryKind::pinned, shape.bytes(), "test")) {}

  // Keys and values of all layers, then the token ids.
  void write(BlockId block, const Bytes& bytes) {
    std::memcpy(staging_.data(), bytes.data(), bytes.size());
    transfer(block, true);
  }
  Bytes read(BlockId block) {
    transfer(block, false);
    const auto* begin = static_cast<const unsigned char*>(staging_.data());
    return {begin, begin + staging_.bytes()};
  }

  PagedCache storage;
  std::unique_ptr<Stream> stream;

 private:
  void transfer(BlockId block, bool to_device) {
    const BlockShape& shape = storage.shape();
    auto* const host = static_cast<unsigned char*>(staging_.data());
    const auto move = [&](void* base, std::size_t offset, std::size_t size) {
      auto* const device =
          static_cast<unsigned char*>(base) + static_cast<std::size_t>(block) * size;
      if (to_device)
        backend_.copy(device, host + offset, size, *stream);
      else
        backend_.copy(host + offset, device, size, *stream);
    };
    if (shape.kv_bytes() > 0) move(storage.views()[0].keys.data, 0, shape.kv_bytes());
    move(storage.tokens().data, shape.kv_bytes(), shape.token_bytes());
    stream->synchronize();
  }

  Backend& backend_;
  Buffer staging_;
};

// A multiple of 8 of them.
Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[i], &word, 8);
  }
  return bytes;
}

TEST_CASE("storage: takes what its blocks take, to the byte, and says for what") {
  BACKEND_OR_SKIP(backend);
  // 3 layers of keys and values of 4 tokens of 2 heads of 8 elements; 4 token ids.
  CHECK(kShape.bytes() == 3 * 2 * 4 * 2 * 8 * 2 + 4 * 4);
  Desk desk(*backend, kShape, 5, 7);
  const auto taken = [&](MemoryKind kind, const std::string& purpose) {
    std::size_t bytes = 0;
    for (const Ledger::Entry& entry : backend->ledger().entries()) {
      if (entry.kind == kind && entry.purpose == purpose) bytes += entry.bytes;
    }
    return bytes;
  };
  CHECK(taken(MemoryKind::device, "kv cache") == 5 * kShape.bytes());
  CHECK(taken(MemoryKind::pinned, "swapped kv cache") == 0);  // nothing was swapped yet
  const std::vector<BlockCopy> copies = {{0, 3}};
  desk.storage.swap_out(copies, *desk.stream);
  CHECK(taken(MemoryKind::pinned, "swapped kv cache") == 7 * kShape.bytes());
  desk.stream->synchronize();
}

TEST_CASE("storage: committed memory is there at once, and holds what it held") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cpu) SKIP_TEST("a GPU's memory always is");
  // 96 MiB, three pieces.
  constexpr BlockShape kWide = {
      .layers = 48, .block_size = 16, .kv_heads = 64, .head_dim = 128, .dtype = DType::bf16};
  PagedCache storage(*backend, kWide, 4, 0);
  auto* const data = storage.views()[0].keys.as<unsigned char>();
  const std::size_t bytes = 4 * kWide.kv_bytes();
  const auto resident = [&] {
    constexpr std::size_t kPage = 4096;
    std::vector<unsigned char> pages(bytes / kPage);
    REQUIRE(::mincore(data, pages.size() * kPage, pages.data()) == 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  };
  data[bytes / 2] = 7;
  CHECK(resident() < static_cast<std::ptrdiff_t>(bytes / 4096 / 2));
  int progress = 0;
  storage.commit([&] { ++progress; });
  CHECK(resident() == static_cast<std::ptrdiff_t>(bytes / 4096));
  CHECK(data[bytes / 2] == 7);
  CHECK(progress > 0);
}

TEST_CASE("storage: every element of a block has a place of its own, and the block is one piece") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kBlocks = 3;
  const PagedCache storage(*backend, kShape, kBlocks, 0);
  auto* const begin = storage.views()[0].keys.as<unsigned char>();
  REQUIRE(storage.views().size() == 3);
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    std::set<std::ptrdiff_t> places;
    for (const kernels::KvView& view : storage.views()) {
      CHECK_NOTHROW(kernels::check_kv_view(view, "test"));
      CHECK(view.keys.shape == std::array<std::int64_t, 4>{kBlocks, 4, 2, 8});
      for (const TensorView& part : {view.keys, view.values}) {
        for (std::int64_t token = 0; token < 4; ++token) {
          for (std::int64_t head = 0; head < 2; ++head) {
            places.insert(
                part.as<unsigned char>() - begin +
                2 * (block * part.stride[0] + token * part.stride[1] + head * part.stride[2]));
          }
        }
      }
    }
    const auto size = static_cast<std::ptrdiff_t>(kShape.kv_bytes());
    CHECK(places.size() == 3 * 2 * 4 * 2);
    CHECK(*places.begin() == block * size);
    CHECK(*places.rbegin() == (block + 1) * size - 8 * 2);
  }
  CHECK(storage.tokens().as<unsigned char>() == begin + kBlocks * kShape.kv_bytes());
}

TEST_CASE("storage: what attention will read of a layer is known ahead, by the batch's tables") {
  BACKEND_OR_SKIP(backend);
  const BlockShape shape{.layers = 2, .block_size = 16, .kv_heads = 2, .head_dim = 64};
  PagedCache storage(*backend, shape, 3, 0);
  std::int32_t numbers[3] = {2, 0, 20};
  const TensorView table(numbers, DType::i32, {1, 2}), lengths(numbers + 2, DType::i32, {1});
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const kernels::KvPrefetch prefetch = storage.prefetch(layer, table, lengths);
    CHECK(prefetch.kv.keys.data == storage.views()[static_cast<std::size_t>(layer)].keys.data);
    CHECK(prefetch.kv.values.data == storage.views()[static_cast<std::size_t>(layer)].values.data);
    CHECK(prefetch.kv.block_table.data == table.data);
    CHECK(prefetch.kv_length.data == lengths.data);
  }
}

TEST_CASE("swap: what was swapped out and in again is the same bits") {
  BACKEND_OR_SKIP(backend);
  constexpr BlockId kBlocks = 12;
  for (const std::int64_t kv_heads : {2, 1, 0}) {
    BlockShape shape = kShape;
    shape.kv_heads = kv_heads;
    CAPTURE(kv_heads);
    Desk desk(*backend, shape, kBlocks, 10);
    std::vector<Bytes> values;
    for (BlockId block = 0; block < kBlocks; ++block) {
      values.push_back(random_bytes(shape.bytes(), static_cast<unsigned>(block)));
      desk.write(block, values.back());
    }
    // Neighbours on both sides, on one side only, backwards, and alone.
    const std::vector<BlockCopy> out = {{2, 0}, {3, 1}, {4, 2}, {5, 9}, {8, 4}, {7, 3}, {11, 5}};
    std::vector<BlockCopy> in;
    for (const BlockCopy& each : out) in.push_back({each.to, 11 - each.from});
    desk.storage.swap_out(out, *desk.stream);
    // What is swapped out is free for others.
    for (BlockId block = 0; block < kBlocks; ++block) {
      desk.write(block, Bytes(shape.bytes(), 0xee));
    }
    desk.storage.swap_in(in, *desk.stream);
    for (const BlockCopy& each : out) CHECK(desk.read(11 - each.from) == values[each.from]);
  }
}

TEST_CASE("swap: neighbours in two pieces of host memory") {
  BACKEND_OR_SKIP(backend);
  // Blocks of 24 MiB, two to a piece.
  constexpr BlockShape kWide = {
      .layers = 48, .block_size = 16, .kv_heads = 64, .head_dim = 128, .dtype = DType::bf16};
  static_assert(kWide.layers * 2 * 16 * 64 * 128 * 2 == 24 << 20);
  Desk desk(*backend, kWide, 4, 3);
  std::vector<Bytes> values;
  for (BlockId block = 0; block < 3; ++block) {
    values.push_back(random_bytes(kWide.bytes(), static_cast<unsigned>(block)));
    desk.write(block, values.back());
  }
  const std::vector<BlockCopy> out = {{0, 0}, {1, 1}, {2, 2}}, in = {{0, 1}, {1, 2}, {2, 3}};
  desk.storage.swap_out(out, *desk.stream);
  desk.storage.swap_in(in, *desk.stream);
  for (BlockId block = 0; block < 3; ++block) CHECK(desk.read(block + 1) == values[block]);
}

TEST_CASE("swap: a block that does not exist is an Error, and nothing is copied") {
  BACKEND_OR_SKIP(backend);
  Desk desk(*backend, kShape, 4, 2);
  const Bytes before = random_bytes(kShape.bytes(), 1);
  desk.write(0, before);
  const std::vector<BlockCopy> there = {{3, 0}};
  desk.storage.swap_out(there, *desk.stream);
  const auto in = [&](std::vector<BlockCopy> copies) {
    return refusal(*backend, [&](Stream& stream) { desk.storage.swap_in(copies, stream); });
  };
  CHECK(in({{0, 0}, {2, 1}}) ==
        "swapping blocks of the KV cache: there is no host block 2, they are 2");
  CHECK(in({{0, 0}, {1, 4}}) ==
        "swapping blocks of the KV cache: there is no device block 4, they are 4");
  CHECK(in({{-1, 0}}) == "swapping blocks of the KV cache: there is no host block -1, they are 2");
  CHECK(desk.read(0) == before);
}

// Stores the keys and values of some tokens in these blocks, as a prompt and then one token more,
// and attends to them; what both gave.
template <typename T>
std::vector<T> run_attention(Backend& backend, const PagedCache& storage,
                             const std::vector<BlockId>& blocks) {
  constexpr std::int64_t kHeads = 4;
  const BlockShape& shape = storage.shape();
  const std::int64_t tokens = std::ssize(blocks) * shape.block_size - 1;
  const std::int64_t width = (kHeads + 2 * shape.kv_heads) * shape.head_dim;
  const auto stream = backend.create_stream();

  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < tokens; ++token) {
    positions.push_back(static_cast<std::int32_t>(token));
    slots.push_back(std::int64_t{blocks[token / shape.block_size]} * shape.block_size +
                    token % shape.block_size);
  }
  std::vector<float> cos_sin;
  for (std::int64_t i = 0; i < tokens * shape.head_dim; ++i) {
    cos_sin.push_back(static_cast<float>(i % 7) / 7);
  }
  const Placed<std::int32_t> table(backend, *stream, blocks);
  const Placed<std::int32_t> all_positions(backend, *stream, positions);
  const Placed<std::int64_t> all_slots(backend, *stream, slots);
  const Placed<float> angles(backend, *stream, cos_sin);
  Placed<T> qkv(backend, *stream, normal_values<T>(tokens * width, 7));
  Placed<T> out(backend, *stream, normal_values<T>(tokens * kHeads * shape.head_dim, 8));

  kernels::KvView kv = storage.views().back();
  kv.block_table = table.view({1, std::ssize(blocks)});
  const auto step = [&](std::int64_t first, std::int64_t rows) {
    TensorView part(qkv.data() + first * width, dtype_of<T>, {rows, width});
    kernels::norm_rope_store({.qkv = part,
                              .q_norm = {},
                              .k_norm = {},
                              .cos_sin = angles.view({tokens, shape.head_dim}),
                              .positions = {all_positions.data() + first, DType::i32, {rows}},
                              .slot_mapping = {all_slots.data() + first, DType::i64, {rows}},
                              .kv = kv,
                              .heads = kHeads},
                             *stream);
    const Placed<std::int32_t> query_start(backend, *stream, {0, static_cast<std::int32_t>(rows)});
    const Placed<std::int32_t> kv_length(backend, *stream,
                                         {static_cast<std::int32_t>(first + rows)});
    TensorView q(part.data, dtype_of<T>, {rows, kHeads, shape.head_dim});
    q.stride[0] = width;
    kernels::attention({.out = TensorView(out.data() + first * kHeads * shape.head_dim, dtype_of<T>,
                                          {rows, kHeads, shape.head_dim}),
                        .q = q,
                        .kv = kv,
                        .query_start = query_start.view({2}),
                        .kv_length = kv_length.view({1}),
                        .lse = {},
                        .group = kHeads / shape.kv_heads,
                        .scale = 0.2f,
                        .max_query_rows = rows,
                        .max_kv_length = first + rows},
                       *stream);
    stream->synchronize();
  };
  step(0, tokens - 1);
  step(tokens - 1, 1);
  return out.fetch();
}

// In a cache of one layer, then in the last layer of a larger one.
template <typename T>
void check_attention_in(Backend& backend, const BlockShape& large, std::int64_t blocks) {
  BlockShape small = large;
  small.layers = 1;
  const PagedCache near(backend, small, 5, 0);
  const PagedCache far(backend, large, blocks, 0);
  const auto last = static_cast<BlockId>(blocks - 1);
  CHECK(same_bits(run_attention<T>(backend, near, {0, 4, 2}),
                  run_attention<T>(backend, far, {last, 1, last - 1})));
}

TEST_CASE("views: keys and values are stored and attended to across blocks of several layers") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t block_size : {1, 5, 16}) {
    for (const std::int64_t head_dim : {32, 128}) {
      CAPTURE(block_size);
      CAPTURE(head_dim);
      BlockShape shape = {
          .layers = 3, .block_size = block_size, .kv_heads = 2, .head_dim = head_dim};
      shape.dtype = DType::bf16;
      check_attention_in<Bf16>(*backend, shape, 20);
      shape.dtype = DType::f16;
      check_attention_in<F16>(*backend, shape, 20);
      shape.dtype = DType::f32;
      check_attention_in<float>(*backend, shape, 20);
    }
  }
}

TEST_CASE("views: so do they in a cache of more than 2^31 elements") {
  BACKEND_OR_SKIP(backend);
  // The cache is large, but hardly any of it is touched.
  constexpr BlockShape kLarge = {
      .layers = 1024, .block_size = 16, .kv_heads = 2, .head_dim = 64, .dtype = DType::bf16};
  constexpr std::int64_t kBlocks = 520;
  static_assert(kLarge.layers * 2 * 16 * 2 * 64 * (kBlocks - 1) > std::int64_t{1} << 31);
  const std::size_t bytes = kBlocks * kLarge.bytes();
  const std::size_t available = backend->memory().available;
  if (available < bytes + (bytes >> 2)) {
    SKIP_TEST("needs " + std::to_string(bytes >> 20) + " MiB of memory, " +
              std::to_string(available >> 20) + " are available");
  }
  check_attention_in<Bf16>(*backend, kLarge, kBlocks);
}

}  // namespace
}  // namespace nvllm::kvcache
