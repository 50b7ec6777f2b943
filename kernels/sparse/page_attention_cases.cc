// Tests attention to pages against its definition, on whichever backend is linked.
#include "kernels/attention/testing/attention_case.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/testing/references.h"

namespace nvllm::kernels::testing {
namespace {

// Kv: the cache's type.
template <typename T, typename Kv = T>
struct PageCase {
  AttentionCase<T, Kv> dense;  // of one row per sequence
  std::int64_t page_tokens;
  std::vector<std::vector<std::int32_t>> pages;  // [sequence * KV heads]

  static PageCase random(AttentionShape shape, std::int64_t page_tokens, unsigned seed) {
    std::mt19937 bits(seed);
    PageCase c{AttentionCase<T, Kv>::random(std::move(shape), bits()), page_tokens, {}};
    for (const Sequence& sequence : c.dense.shape.sequences) {
      for (std::int64_t g = 0; g < c.kv_heads(); ++g) {
        auto& list = c.pages.emplace_back();
        const unsigned one_in = 1 + bits() % 4;
        // Also beyond the sequence's tokens.
        for (std::int32_t page = 0; page < sequence.tokens / page_tokens + 2; ++page) {
          if (bits() % one_in == 0) list.push_back(page);
        }
      }
    }
    return c;
  }

  std::int64_t kv_heads() const {
    return (dense.shape.first_head + dense.shape.heads - 1) / dense.shape.group + 1;
  }

  void run(Backend& backend, bool reference = false) {
    const auto stream = backend.create_stream();
    dense.run(backend, *stream,
              [&](const Attention& args) { call(args, backend, *stream, reference); });
    dense.weights_rounded = !reference && backend.kind() == DeviceKind::cuda && sizeof(T) == 2;
  }

 private:
  void call(const Attention& dense_args, Backend& backend, Stream& stream, bool reference) {
    std::size_t capacity = 1;
    for (const auto& list : pages) capacity = std::max(capacity, list.size());
    std::vector<std::int32_t> packed(pages.size() * capacity, -1000000), counts;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::copy(pages[i].begin(), pages[i].end(), packed.begin() + i * capacity);
      counts.push_back(static_cast<std::int32_t>(pages[i].size()));
    }
    const Placed counts_there(backend, stream, counts), pages_there(backend, stream, packed);
    const auto sequences = static_cast<std::int64_t>(dense.shape.sequences.size());
    PageAttention args;
    args.out = dense_args.out;
    args.q = dense_args.q;
    args.kv = dense_args.kv;
    args.kv_scales = dense_args.kv_scales;
    args.kv_length = dense_args.kv_length;
    args.lse = dense_args.lse;
    args.group = dense_args.group;
    args.first_head = dense_args.first_head;
    args.scale = dense_args.scale;
    args.page_tokens = page_tokens;
    args.page_counts = counts_there.view({sequences, kv_heads()});
    args.pages = pages_there.view({sequences, kv_heads(), static_cast<std::int64_t>(capacity)});
    stream.synchronize();
    if (reference) {
      page_attention_reference(args);
    } else {
      page_attention(args, stream);
    }
    stream.synchronize();
  }
};

template <typename T, typename Kv>
void check_pages(Backend& backend, const PageCase<T, Kv>& input) {
  PageCase<T, Kv> got = input, expected = input;
  got.run(backend);
  expected.run(*create_backend(DeviceKind::cpu), true);
  CHECK(count_wrong(got.dense, expected.dense) == 0);
}

TEST_CASE_TEMPLATE("rows attend to the chosen pages only", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(31);
  struct Form {
    std::int64_t head_dim, group, block_size, page_tokens;
  };
  for (const Form& form : {Form{64, 1, 16, 16},
                           {128, 4, 256, 64},
                           {64, 3, 0, 32},
                           {80, 7, 48, 16},
                           {256, 2, 16, 8},
                           {128, 33, 128, 128}}) {
    std::vector<Sequence> sequences;
    for (int s = 0; s < 4; ++s) {
      sequences.push_back({1, 1 + static_cast<std::int64_t>(random() % 700)});
    }
    PageCase<T> c =
        PageCase<T>::random(whole_groups(sequences, 2, form.group, form.head_dim, form.block_size),
                            form.page_tokens, random());
    c.dense.as_float = random() % 2 == 0;
    CAPTURE(form.head_dim);
    CAPTURE(form.page_tokens);
    check_pages(*backend, c);
  }
}

TEST_CASE_TEMPLATE("pages may be in E4m3, with and without scales", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(34);
  for (const std::int64_t head_dim : {64, 128, 80, 256}) {
    std::vector<Sequence> sequences;
    for (int s = 0; s < 3; ++s) {
      sequences.push_back({1, 1 + static_cast<std::int64_t>(random() % 700)});
    }
    PageCase<T, E4m3> c =
        PageCase<T, E4m3>::random(whole_groups(sequences, 2, 3, head_dim, 32), 16, random());
    CAPTURE(head_dim);
    check_pages(*backend, c);
    for (int i = 0; i < 4; ++i) c.dense.kv_scales.push_back(0.25f + 0.3f * static_cast<float>(i));
    check_pages(*backend, c);
  }
}

TEST_CASE_TEMPLATE("a rank's heads may begin inside a group; padding gives 0", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const AttentionShape shape{{{1, 300}, {1, 0}, {1, 65}}, 4, 2, 64, 3, 2, 32};
  PageCase<T> c = PageCase<T>::random(shape, 32, 32);
  check_pages(*backend, c);
  c.run(*backend);
  CHECK(std::count(c.dense.lse.begin() + 4, c.dense.lse.begin() + 8, -kInfinity) == 4);
  CHECK(std::count_if(c.dense.out.begin() + 4 * 64, c.dense.out.begin() + 8 * 64,
                      [](T x) { return to_float(x) == 0; }) == 4 * 64);
}

TEST_CASE_TEMPLATE("all pages are attention itself, also of long contexts", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  AttentionCase<T> whole =
      AttentionCase<T>::random(whole_groups({{1, 2100}, {1, 70}}, 2, 2, 64, 64), 33);
  whole.run(*backend);
  std::vector<float> out;
  for (const T value : whole.out) out.push_back(to_float(value));
  PageCase<T> c{whole, 64, {}};
  c.pages.assign(4, std::vector<std::int32_t>(33));
  for (auto& list : c.pages) std::iota(list.begin(), list.end(), 0);
  c.run(*backend);
  CHECK(count_wrong(c.dense, out, whole.lse, true) == 0);
}

TEST_CASE("page_attention refuses what does not fit by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::i32) {
    return TensorView(memory.data(), type, shape);
  };
  const auto check = [&](const std::string& expected, auto&& spoil) {
    PageAttention args;
    args.out = args.q = tensor({2, 4, 64}, DType::bf16);
    args.kv.keys = args.kv.values = tensor({5, 32, 2, 64}, DType::bf16);
    args.kv.block_table = tensor({2, 2});
    args.kv_length = tensor({2});
    args.group = 2;
    args.page_tokens = 16;
    args.page_counts = tensor({2, 2});
    args.pages = tensor({2, 2, 3});
    spoil(args);
    const std::string got =
        refusal(*backend, [&](Stream& stream) { page_attention(args, stream); });
    CAPTURE(got);
    CHECK(got.find("page_attention: " + expected) == 0);
  };
  check("page_tokens is 24", [](PageAttention& a) { a.page_tokens = 24; });
  check("page_tokens is 4", [](PageAttention& a) { a.page_tokens = 4; });
  check("kv_length is int32 [3]", [&](PageAttention& a) { a.kv_length = tensor({3}); });
  check("page_counts is int32 [2, 4]", [&](PageAttention& a) { a.page_counts = tensor({2, 4}); });
  check("pages is int32 [2, 6]; it must have 3", [&](PageAttention& a) {
    a.pages = tensor({2, 6});
  });
  check("q is bfloat16 [2, 4, 64], but the cache is of 1 sequences", [&](PageAttention& a) {
    a.kv.block_table = tensor({1, 2});
  });
}

}  // namespace
}  // namespace nvllm::kernels::testing
