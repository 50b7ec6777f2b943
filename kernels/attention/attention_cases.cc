// Tests attention against its definition, on whichever backend is linked.
#include <cmath>
#include <cstring>

#include "kernels/attention/testing/attention_case.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "testing/skip.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("attention is what its definition says, for all head sizes and groups", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  const std::int64_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 33};
  const std::int64_t head_dims[] = {64, 128, 32, 80, 96, 256, 8, 200, 64};
  for (int i = 0; i < 9; ++i) {
    // Decoding, a few rows each, and more than a tile of rows.
    for (const int max_rows : {1, 5, static_cast<int>(10 + 130 / groups[i])}) {
      AttentionShape shape =
          whole_groups(some_sequences(random, 2, max_rows, 90),
                       groups[i] > 4 ? 1 : 1 + random() % 3, groups[i], head_dims[i], 16);
      CAPTURE(shape.group);
      CAPTURE(shape.head_dim);
      CAPTURE(max_rows);
      check_against_reference(*backend, AttentionCase<T>::random(shape, random()));
    }
  }
}

TEST_CASE_TEMPLATE("a rank's heads may begin and end inside groups", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  // 9 heads in groups of 3 over 2 ranks: heads 5 to 8; then 1 to 7 of groups of 4, and one alone.
  struct Split {
    std::int64_t heads, kv_heads, group, first_head;
  };
  for (const Split& split : {Split{4, 2, 3, 2}, {7, 2, 4, 1}, {1, 1, 8, 7}, {2, 3, 2, 1}}) {
    for (const std::int64_t rows : {1, 30}) {
      CAPTURE(split.heads);
      CAPTURE(rows);
      AttentionShape shape{{{rows, 40}, {1, 17}, {rows, rows}},
                           split.heads,
                           split.kv_heads,
                           64,
                           split.group,
                           split.first_head};
      check_against_reference(*backend, AttentionCase<T>::random(shape, 9));
    }
  }
}

TEST_CASE_TEMPLATE("sequences of one token, without rows, without tokens", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 20}) {
    CAPTURE(rows);
    const AttentionShape shape =
        whole_groups({{1, 1}, {0, 50}, {rows, 64}, {0, 0}, {0, 1}, {rows, rows}}, 2, 3, 64);
    AttentionCase<T> got = AttentionCase<T>::random(shape, 5);
    check_against_reference(*backend, got);
    got.run(*backend);
    // The first row sees one token: its value is the result.
    CHECK(same_bits(std::vector<T>(got.out.begin(), got.out.begin() + 64),
                    std::vector<T>(got.v.begin(), got.v.begin() + 64)));
  }
  AttentionCase<T> nothing(whole_groups({{0, 3}, {0, 0}}, 2, 2, 64));
  nothing.run(*backend);
  AttentionCase<T> nobody(whole_groups({}, 2, 2, 64));
  nobody.run(*backend);
}

TEST_CASE_TEMPLATE("rows without a token give 0 and an lse of -infinity", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {2, 40}) {
    AttentionCase<T> got = AttentionCase<T>::random(whole_groups({{rows, 1}}, 1, 2, 64), 5);
    got.run(*backend);
    const std::size_t without = (rows - 1) * 2;
    CHECK(std::count_if(got.out.begin(), got.out.end(), [](T x) { return to_float(x) == 0; }) ==
          static_cast<std::ptrdiff_t>(without * 64));
    CHECK(std::count(got.lse.begin(), got.lse.end(), -kInfinity) ==
          static_cast<std::ptrdiff_t>(without));
    CHECK(std::isfinite(got.lse.back()));
  }
}

TEST_CASE_TEMPLATE("long contexts, which several threads or blocks share", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const AttentionShape decode = whole_groups({{1, 2100}, {1, 3}, {2, 600}}, 2, 2, 64, 32);
  check_against_reference(*backend, AttentionCase<T>::random(decode, 1));
  const AttentionShape many = whole_groups(std::vector<Sequence>(70, {1, 70}), 2, 2, 64, 32);
  check_against_reference(*backend, AttentionCase<T>::random(many, 2));
  const AttentionShape chunk = whole_groups({{40, 700}}, 1, 2, 128, 32);
  check_against_reference(*backend, AttentionCase<T>::random(chunk, 3));
}

TEST_CASE_TEMPLATE("where blocks lie, and how large they are, changes no bit", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 50}) {
    CAPTURE(rows);
    AttentionCase<T> contiguous =
        AttentionCase<T>::random(whole_groups({{rows, 200}, {1, 90}, {0, 7}}, 2, 3, 64, 0), 4);
    contiguous.run(*backend);
    for (const std::int64_t block_size : {1, 16, 48, 64, 256}) {
      CAPTURE(block_size);
      AttentionCase<T> paged = contiguous;
      paged.shape.block_size = block_size;
      paged.layout = static_cast<unsigned>(block_size);
      paged.run(*backend);
      CHECK(same_bits(paged.out, contiguous.out));
      CHECK(same_bits(paged.lse, contiguous.lse));
    }
  }
}

TEST_CASE_TEMPLATE("blocks that follow one another, in whole or in part, change no bit", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t head_dim : {64, 128}) {
    CAPTURE(head_dim);
    AttentionCase<T> contiguous = AttentionCase<T>::random(
        whole_groups({{40, 700}, {70, 384}, {33, 33}}, 2, 4, head_dim, 0), 14);
    contiguous.run(*backend);
    for (const std::int64_t block_size : {8, 16, 32, 64, 128}) {
      for (const unsigned layout : {0, 1}) {
        CAPTURE(block_size);
        CAPTURE(layout);
        AttentionCase<T> paged = contiguous;
        paged.shape.block_size = block_size;
        paged.layout = layout;
        paged.run(*backend);
        CHECK(same_bits(paged.out, contiguous.out));
        CHECK(same_bits(paged.lse, contiguous.lse));
      }
    }
  }
}

TEST_CASE_TEMPLATE("rows of q that lie apart, and bounds that are too large, change nothing", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  AttentionCase<T> plain = AttentionCase<T>::random(whole_groups({{33, 70}, {1, 64}}, 2, 2, 64), 6);
  AttentionCase<T> apart = plain;
  plain.run(*backend);
  apart.q_gap = 2 * 2 * 64;
  apart.run(*backend);
  CHECK(same_bits(apart.out, plain.out));
  CHECK(same_bits(apart.lse, plain.lse));

  AttentionCase<T> bounded =
      AttentionCase<T>::random(whole_groups({{1, 70}, {1, 64}}, 2, 2, 64), 6);
  bounded.slack_rows = 100;
  bounded.slack_tokens = 5000;
  check_against_reference(*backend, bounded);
}

TEST_CASE_TEMPLATE("a prompt in chunks is the same as at once", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  AttentionCase<T> whole = AttentionCase<T>::random(whole_groups({{200, 200}}, 2, 3, 64), 8);
  whole.run(*backend);
  std::vector<float> expected;
  for (const T value : whole.out) expected.push_back(to_float(value));
  for (const auto& chunk_of :
       {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 131}, {131, 132}, {132, 200}}) {
    const std::int64_t begin = chunk_of.first;
    const std::int64_t end = chunk_of.second;
    CAPTURE(begin);
    AttentionCase<T> chunk(whole_groups({{end - begin, end}}, 2, 3, 64));
    const std::int64_t row = chunk.row_elements();
    chunk.q.assign(whole.q.begin() + begin * row, whole.q.begin() + end * row);
    chunk.k.assign(whole.k.begin(), whole.k.begin() + end * chunk.token_elements());
    chunk.v.assign(whole.v.begin(), whole.v.begin() + end * chunk.token_elements());
    chunk.run(*backend);
    const std::vector<float> out(expected.begin() + begin * row, expected.begin() + end * row);
    const std::vector<float> lse(whole.lse.begin() + begin * 6, whole.lse.begin() + end * 6);
    // Both are off by their weights.
    CHECK(count_wrong(chunk, out, lse, true) == 0);
  }
}

TEST_CASE_TEMPLATE("a NaN spoils what attends to it and nothing else", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    CAPTURE(rows);
    const AttentionCase<T> clean =
        AttentionCase<T>::random(whole_groups({{rows, 80}, {rows, 90}}, 2, 2, 64), 7);
    AttentionCase<T> bad_q = clean;
    bad_q.q[1 * 64 + 5] = from_float<T>(kNan);  // row 0, head 1
    bad_q.run(*backend);
    CHECK(std::count_if(bad_q.out.begin(), bad_q.out.end(),
                        [](T x) { return std::isnan(to_float(x)); }) == 64);
    CHECK(std::count_if(bad_q.out.begin() + 64, bad_q.out.begin() + 128,
                        [](T x) { return std::isnan(to_float(x)); }) == 64);
    AttentionCase<T> bad_k = clean;
    bad_k.k[(79 * 2 + 1) * 64] = from_float<T>(kNan);  // the last token of sequence 0, KV head 1
    check_against_reference(*backend, bad_k);
    bad_k.run(*backend);
    CHECK(std::count_if(bad_k.lse.begin(), bad_k.lse.end(),
                        [](float x) { return std::isnan(x); }) == 2);
    AttentionCase<T> bad_v = clean;
    bad_v.v[(80 - rows) * 2 * 64] = from_float<T>(kNan);  // seen by all of its rows
    check_against_reference(*backend, bad_v);
  }
}

TEST_CASE_TEMPLATE("infinite, huge and tiny scores do as the definition", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 30}) {
    for (const float factor : {0.0f, 1e-6f, 1e-3f, 30.0f, 3000.0f}) {
      CAPTURE(factor);
      AttentionCase<T> c = AttentionCase<T>::random(whole_groups({{rows, 77}}, 1, 2, 64), 12);
      for (T& value : c.q) value = from_float<T>(factor * to_float(value));
      check_against_reference(*backend, c);
    }
    // A key that is infinitely far from every row is attended to by none; q must not have zeros.
    AttentionCase<T> c = AttentionCase<T>::random(whole_groups({{rows, 77}}, 1, 2, 64), 13);
    for (T& value : c.q) value = from_float<T>(1 + std::fabs(to_float(value)));
    c.k[20 * 64 + 3] = from_float<T>(-kInfinity);
    check_against_reference(*backend, c);
  }
}

TEST_CASE_TEMPLATE("scores that rise with every 128 tokens back do as the definition", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t head_dim : {64, 128}) {
    for (const float growth : {2.0f, 8.0f}) {
      CAPTURE(growth);
      AttentionCase<T> c =
          AttentionCase<T>::random(whole_groups({{40, 600}, {300, 333}}, 2, 4, head_dim), 14);
      std::int64_t end = 0;
      for (const Sequence& sequence : c.shape.sequences) {
        end += sequence.tokens;
        for (std::int64_t i = 0; i < sequence.tokens * c.token_elements(); ++i) {
          T& key = c.k[end * c.token_elements() - 1 - i];
          const std::int64_t tiles = i / c.token_elements() / 128;
          key = from_float<T>(to_float(key) * std::pow(growth, static_cast<float>(tiles)));
        }
      }
      check_against_reference(*backend, c);
    }
  }
}

TEST_CASE("attention runs in graphs, with lengths that change") {
  BACKEND_OR_SKIP(backend);
  const std::int64_t tokens = 100;
  Buffer device = backend->allocate(MemoryKind::device, 1 << 16, "test");
  Buffer host = backend->allocate(MemoryKind::pinned, 1 << 16, "test");
  const auto stream = backend->create_stream();
  const auto at = [](const Buffer& buffer, std::int64_t offset) {
    return static_cast<char*>(buffer.data()) + offset;
  };
  // Token t's values are t, all keys are 0: the result is the mean, (length - 1) / 2.
  std::memset(host.data(), 0, host.bytes());
  for (std::int64_t i = 0; i < tokens * 8; ++i) {
    reinterpret_cast<Bf16*>(at(host, 4096))[i] =
        from_float<Bf16>(std::floor(static_cast<float>(i) / 8));
  }
  Attention args;
  args.q = TensorView(at(device, 0), DType::bf16, {1, 1, 8});
  args.out = TensorView(at(device, 1024), DType::bf16, {1, 1, 8});
  args.kv.values = TensorView(at(device, 4096), DType::bf16, {1, 128, 1, 8});
  args.kv.keys = TensorView(at(device, 8192), DType::bf16, {1, 128, 1, 8});
  args.query_start = TensorView(at(device, 2048), DType::i32, {2});
  args.kv_length = TensorView(at(device, 2056), DType::i32, {1});
  args.max_query_rows = 1;
  args.max_kv_length = tokens;
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(device.data(), host.data(), device.bytes(), *stream);
    attention(args, *stream);
    backend->copy(at(host, 1024), at(device, 1024), 16, *stream);
  });
  auto* numbers = reinterpret_cast<std::int32_t*>(at(host, 2048));
  for (const std::int32_t length : {1, 3, 65, 99}) {
    CAPTURE(length);
    numbers[0] = 0, numbers[1] = 1, numbers[2] = length;
    graph->launch(*stream);
    stream->synchronize();
    CHECK(to_float(*reinterpret_cast<Bf16*>(at(host, 1024))) == (length - 1) / 2.0f);
  }
}

TEST_CASE(
    "what was stored before the newest tokens may be read ahead of the kernel that stores them") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kSequences = 3, kHeads = 4, kKvHeads = 2, kHead = 128, kBlock = 16;
  constexpr std::int64_t kSteps = 40, kWidth = 8, kColumns = (kHeads + 2 * kKvHeads) * kHead;
  const auto stream = backend->create_stream();
  std::mt19937 bits(17);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t elements) {
    std::vector<Bf16> values(elements);
    for (Bf16& value : values) value = from_float<Bf16>(normal(bits));
    return values;
  };
  // Sequence s has blocks s * kWidth on. Tokens that no step has stored yet are NaN.
  const std::int64_t first[kSequences] = {1, 31, 80};
  constexpr std::int64_t kTokenElements = kKvHeads * kHead;
  std::vector<Bf16> cache(kSequences * kWidth * kBlock * kTokenElements, from_float<Bf16>(kNan));
  std::vector<std::int32_t> table(kSequences * kWidth), starts{0, 1, 2, 3}, lengths;
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::int64_t> slots;
  for (std::int64_t s = 0; s < kSequences; ++s) {
    const std::vector<Bf16> old = random(first[s] * kTokenElements);
    std::copy(old.begin(), old.end(), cache.begin() + s * kWidth * kBlock * kTokenElements);
  }
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (std::int64_t s = 0; s < kSequences; ++s) {
      slots.push_back(s * kWidth * kBlock + first[s] + step);
      lengths.push_back(static_cast<std::int32_t>(first[s] + step + 1));
    }
  }
  std::vector<float> angles(kHead, 0.0f);
  std::fill_n(angles.begin(), kHead / 2, 1.0f);
  const std::vector<Bf16> rows = random(kSteps * kSequences * kColumns);

  const auto run = [&](bool history_is_visible) {
    const Placed keys(*backend, *stream, cache), values(*backend, *stream, cache);
    const Placed table_there(*backend, *stream, table), starts_there(*backend, *stream, starts);
    const Placed lengths_there(*backend, *stream, lengths);
    const Placed slots_there(*backend, *stream, slots);
    const Placed positions(*backend, *stream, std::vector<std::int32_t>(kSequences, 0));
    const Placed angles_there(*backend, *stream, angles);
    const Placed qkv(*backend, *stream, rows);
    Placed out(*backend, *stream,
               std::vector<Bf16>(kSteps * kSequences * kHeads * kHead, from_float<Bf16>(kNan)));
    NormRopeStore store;
    Attention args;
    store.kv.keys = keys.view({kSequences * kWidth, kBlock, kKvHeads, kHead});
    store.kv.values = values.view({kSequences * kWidth, kBlock, kKvHeads, kHead});
    store.positions = positions.view({kSequences});
    store.cos_sin = angles_there.view({1, kHead});
    store.heads = kHeads;
    args.kv = store.kv;
    args.kv.block_table = table_there.view({kSequences, kWidth});
    args.query_start = starts_there.view({kSequences + 1});
    args.group = kHeads / kKvHeads;
    args.scale = 0.1f;
    args.max_query_rows = 1;
    args.max_kv_length = kWidth * kBlock;
    args.history_is_visible = store.history_is_visible = history_is_visible;
    const auto graph = backend->capture(*stream, [&] {
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const std::int64_t row = step * kSequences;
        store.qkv = qkv.view({kSequences, kColumns});
        store.qkv.data = qkv.data() + row * kColumns;
        store.slot_mapping = slots_there.view({kSequences});
        store.slot_mapping.data = slots_there.data() + row;
        args.q = TensorView(store.qkv.data, DType::bf16, {kSequences, kHeads, kHead});
        args.q.stride[0] = kColumns;
        args.out =
            TensorView(out.data() + row * kHeads * kHead, DType::bf16, {kSequences, kHeads, kHead});
        args.kv_length = TensorView(lengths_there.data() + row, DType::i32, {kSequences});
        norm_rope_store(store, *stream);
        attention(args, *stream);
      }
    });
    graph->launch(*stream);
    return out.fetch();
  };
  const std::vector<Bf16> expected = run(false);
  CHECK(std::none_of(expected.begin(), expected.end(),
                     [](Bf16 x) { return std::isnan(to_float(x)); }));
  CHECK(same_bits(run(true), expected));
}

TEST_CASE_TEMPLATE("the CPU's threads and other sequences change no bit", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cpu) SKIP_TEST("this is promised of the CPU only");
  for (const cpu::InstructionSet set : cpu::instruction_sets()) {
    const std::string name = name_of(set);
    CAPTURE(name);
    AttentionCase<T> alone = AttentionCase<T>::random(
        whole_groups({{1, 700}, {3, 300}, {50, 70}, {1, 257}}, 2, 2, 72, 32), 21);
    AttentionCase<T> shared = alone, expected = alone;
    alone.run(*backend, 1, set);
    expected.run_reference();
    CHECK(count_wrong(alone, expected) == 0);
    shared.run(*backend, 3, set);
    CHECK(same_bits(shared.out, alone.out));
    CHECK(same_bits(shared.lse, alone.lse));

    AttentionCase<T> first(whole_groups({{1, 700}}, 2, 2, 72, 64));
    const auto begin_of = [](const std::vector<T>& all, const std::vector<T>& some) {
      return std::vector<T>(all.begin(), all.begin() + some.size());
    };
    first.q = begin_of(alone.q, first.q);
    first.k = begin_of(alone.k, first.k);
    first.v = begin_of(alone.v, first.v);
    first.run(*backend, 2, set);
    CHECK(same_bits(first.out, begin_of(alone.out, first.out)));
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
