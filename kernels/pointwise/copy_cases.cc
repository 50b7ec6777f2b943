// Copies against their plain definitions, on whichever backend is linked.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "kernels/pointwise/copy.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::normal_values;
using testing::Placed;
using testing::refusal;
using testing::same_bits;
using Ints = std::vector<std::int32_t>;

constexpr std::int64_t kBlocks = 11, kSequences = 5, kTableBlocks = 2;

template <typename T>
struct Caches {
  // [block][keys, values][token][head][dim], as a layer's blocks lie
  Caches(std::int64_t block_size, std::int64_t heads, std::int64_t dim, bool paged)
      : block_size(block_size),
        heads(heads),
        dim(dim),
        paged(paged),
        to(normal_values<T>(elements(), 1)),
        from(normal_values<T>(elements(), 2)),
        kv_length{static_cast<std::int32_t>(block_size), 0, 1,
                  static_cast<std::int32_t>(block_size), static_cast<std::int32_t>(block_size - 1)},
        table{7, 3, 0, 0, 5, 1, 10, 2, 4, 9} {
    if (paged) kv_length[3] = static_cast<std::int32_t>(block_size + 1);
  }

  std::int64_t elements() const { return kBlocks * 2 * block_size * heads * dim; }
  KvView view(T* data, const std::int32_t* blocks) const {
    const auto part = [&](T* begin) {
      TensorView view(begin, dtype_of<T>, {kBlocks, block_size, heads, dim});
      view.stride[0] = 2 * block_size * heads * dim;
      return view;
    };
    KvView kv;
    kv.keys = part(data);
    kv.values = part(data + block_size * heads * dim);
    if (blocks != nullptr) {
      kv.block_table =
          TensorView(const_cast<std::int32_t*>(blocks), DType::i32, {kSequences, kTableBlocks});
    }
    return kv;
  }
  // What `to` is afterwards.
  std::vector<T> expected() const {
    std::vector<T> result = to;
    for (std::int64_t s = 0; s < kSequences; ++s) {
      const std::int64_t last = kv_length[s] - 1;
      if (last < 0) continue;
      const std::int64_t block = paged ? table[s * kTableBlocks + last / block_size] : s;
      for (const std::int64_t part : {2 * block, 2 * block + 1}) {  // keys, values
        const std::int64_t at = (part * block_size + last % block_size) * heads * dim;
        std::copy_n(from.begin() + at, heads * dim, result.begin() + at);
      }
    }
    return result;
  }
  CopyLastKv call(T* into, T* out_of, const std::int32_t* lengths,
                  const std::int32_t* blocks) const {
    CopyLastKv args;
    args.to = view(into, nullptr);
    args.from = view(out_of, paged ? blocks : nullptr);
    args.kv_length = TensorView(const_cast<std::int32_t*>(lengths), DType::i32, {kSequences});
    return args;
  }

  std::int64_t block_size, heads, dim;
  bool paged;
  std::vector<T> to, from;
  Ints kv_length, table;
};

template <typename T>
void compare(Backend& backend, Stream& stream, std::int64_t block_size, std::int64_t heads,
             std::int64_t dim, bool paged) {
  CAPTURE(block_size);
  CAPTURE(heads);
  CAPTURE(dim);
  CAPTURE(paged);
  const Caches<T> c(block_size, heads, dim, paged);
  Placed<T> to(backend, stream, c.to), from(backend, stream, c.from);
  Placed<std::int32_t> lengths(backend, stream, c.kv_length), table(backend, stream, c.table);
  copy_last_kv(c.call(to.data(), from.data(), lengths.data(), table.data()), stream);
  CHECK(same_bits(to.fetch(), c.expected()));
  CHECK_FALSE(same_bits(c.to, c.expected()));
}

TEST_CASE("last tokens: exactly those go, to their positions") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const bool paged : {true, false}) {
    for (const std::int64_t block_size : {3, 16}) {
      compare<float>(*backend, *stream, block_size, 2, 8, paged);
      compare<Bf16>(*backend, *stream, block_size, 8, 128, paged);
      compare<Bf16>(*backend, *stream, block_size, 3, 5, paged);
      compare<F16>(*backend, *stream, block_size, 1, 64, paged);
      compare<float>(*backend, *stream, block_size, 3, 5, paged);
    }
  }
}

TEST_CASE("last tokens: caches of two shapes are refused") {
  BACKEND_OR_SKIP(backend);
  Caches<float> c(4, 2, 8, true);
  CopyLastKv args = c.call(c.to.data(), c.from.data(), c.kv_length.data(), c.table.data());
  args.to.keys.shape[0] = args.to.values.shape[0] = 3;
  CHECK(refusal(*backend, [&](Stream& stream) {
          copy_last_kv(args, stream);
        }).find("copy_last_kv: `to` is of") == 0);
}

TEST_CASE("words go to the index with the number, and nowhere else") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  constexpr std::int64_t kEntries = 3, kEntryWords = 600;
  for (const std::int64_t count : {0, 1, 255, 257, 600}) {
    for (std::int32_t number = 0; number < kEntries; ++number) {
      CAPTURE(count);
      CAPTURE(number);
      Ints values(static_cast<std::size_t>(count));
      std::iota(values.begin(), values.end(), 5);
      const Placed<std::int32_t> words(*backend, *stream, values);
      const Placed<std::int32_t> index(*backend, *stream, {number});
      Placed<std::int32_t> ring(*backend, *stream, Ints(kEntries * kEntryWords, -7));
      copy_to_ring({.words = words.view({count}),
                    .index = index.view({1}),
                    .ring = ring.view({kEntries, kEntryWords})},
                   *stream);
      Ints expected(kEntries * kEntryWords, -7);
      std::ranges::copy(values, expected.begin() + number * kEntryWords);
      CHECK(ring.fetch() == expected);
    }
  }
}

TEST_CASE("a graph copies to the index that holds when it runs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<std::int32_t> words(*backend, *stream, {1, 2, 3});
  const Placed<std::int32_t> index(*backend, *stream, {0});
  Placed<std::int32_t> ring(*backend, *stream, Ints(9, -7));
  stream->synchronize();
  const auto graph = backend->capture(*stream, [&] {
    copy_to_ring({.words = words.view({3}), .index = index.view({1}), .ring = ring.view({3, 3})},
                 *stream);
  });
  const Buffer number = backend->allocate(MemoryKind::pinned, sizeof(std::int32_t), "test");
  *static_cast<std::int32_t*>(number.data()) = 2;
  graph->launch(*stream);
  backend->copy(index.data(), number.data(), sizeof(std::int32_t), *stream);
  graph->launch(*stream);
  CHECK(ring.fetch() == Ints{1, 2, 3, -7, -7, -7, 1, 2, 3});
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Ints memory(64);
  const auto ints = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), DType::i32, shape);
  };
  const auto why = [&](const TensorView& words, const TensorView& index, const TensorView& ring) {
    return refusal(*backend, [&](Stream& stream) {
      copy_to_ring({.words = words, .index = index, .ring = ring}, stream);
    });
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(why(ints({2, 2}), ints({1}), ints({3, 4})), "words is"));
  CHECK(says(why(ints({4}), ints({2}), ints({3, 4})), "index is"));
  CHECK(says(why(ints({4}), ints({1}), ints({4})), "ring is"));
  CHECK(says(why(ints({5}), ints({1}), ints({3, 4})), "for 5 words or more"));
}

TEST_CASE("words are written where they belong, however many, also when the caller's are gone") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const std::int64_t count : {0, 1, 18, 4096, 16384, 16385, 40000}) {
    CAPTURE(count);
    Placed<std::int32_t> there(*backend, *stream, std::vector<std::int32_t>(count, -1));
    std::vector<std::uint32_t> words(count);
    for (std::int64_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(i * 77 + 1);
    // What is written later than the call would be the zeros.
    stream->host_call([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    write_words(reinterpret_cast<std::uint32_t*>(there.data()), words.data(), count, *stream);
    std::fill(words.begin(), words.end(), 0u);
    const std::vector<std::int32_t> got = there.fetch();
    int wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) wrong += got[i] != i * 77 + 1;
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace nvllm::kernels
