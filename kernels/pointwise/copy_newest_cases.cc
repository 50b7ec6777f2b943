// The newest tokens against the plain definition, on whichever backend is linked.
#include <algorithm>
#include <numeric>

#include "kernels/pointwise/copy_last_kv.h"
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
  Caches<T> c(block_size, heads, dim, paged);
  Placed<T> to(backend, stream, c.to), from(backend, stream, c.from);
  Placed<std::int32_t> lengths(backend, stream, c.kv_length), table(backend, stream, c.table);
  copy_last_kv(c.call(to.data(), from.data(), lengths.data(), table.data()), stream);
  const std::vector<T> before = c.to;
  copy_last_kv_reference(c.call(c.to.data(), c.from.data(), c.kv_length.data(), c.table.data()));
  CHECK(same_bits(to.fetch(), c.to));
  CHECK_FALSE(same_bits(before, c.to));
}

TEST_CASE("newest tokens: exactly those go, to their places") {
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

TEST_CASE("newest tokens: caches of two shapes are refused") {
  BACKEND_OR_SKIP(backend);
  Caches<float> c(4, 2, 8, true);
  CopyLastKv args = c.call(c.to.data(), c.from.data(), c.kv_length.data(), c.table.data());
  args.to.keys.shape[0] = args.to.values.shape[0] = 3;
  CHECK(refusal(*backend, [&](Stream& stream) {
          copy_last_kv(args, stream);
        }).find("copy_last_kv: `to` is of") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
