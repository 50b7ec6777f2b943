// Step input against its plain definition, on whichever backend is linked.
#include <algorithm>
#include <deque>
#include <numeric>

#include "kernels/pointwise/step_input.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using testing::same_bits;
using Ints = std::vector<std::int32_t>;

// A step of random sequences: some are new, some go on, some are padding.
struct StepInputCase {
  std::int64_t slots, table_blocks, block_size, blocks;
  std::int64_t max_query_rows = 1;
  Ints slot, query_start{0}, first_position, first_token, first_block, block_start{0};
  Ints new_tokens, new_blocks, last_tokens, table, history;
  Ints block_map;  // empty: there are none

  StepInputCase(std::int64_t sequences, std::int64_t slots, std::int64_t table_blocks,
                std::int64_t block_size, std::int64_t max_rows, unsigned seed)
      : slots(slots),
        table_blocks(table_blocks),
        block_size(block_size),
        blocks(slots * table_blocks),
        last_tokens(slots),
        table(blocks, -1),
        history(blocks * block_size, -5) {
    std::mt19937 random(seed);
    for (auto& token : last_tokens) token = static_cast<std::int32_t>(random() % 1000);
    Ints free(blocks), all_slots(slots);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    std::iota(all_slots.begin(), all_slots.end(), 0);
    std::shuffle(all_slots.begin(), all_slots.end(), random);
    for (std::int64_t s = 0; s < sequences; ++s) {
      const bool padding = random() % 8 == 0;
      const auto longest = std::min<std::int64_t>(max_rows, table_blocks * block_size);
      const auto rows = static_cast<std::int32_t>(random() % (longest + 1));
      const auto room = static_cast<std::int32_t>(table_blocks * block_size - rows);
      const auto first = static_cast<std::int32_t>(random() % (room + 1));
      const auto needed = static_cast<std::int32_t>((first + rows + block_size - 1) / block_size);
      const auto known = static_cast<std::int32_t>(random() % (needed + 1));
      const bool sampled = rows == 1 && random() % 2 == 0;
      max_query_rows = std::max<std::int64_t>(max_query_rows, rows);
      slot.push_back(padding ? -1 : all_slots[s]);
      first_position.push_back(first);
      first_token.push_back(sampled ? -1 : static_cast<std::int32_t>(new_tokens.size()));
      first_block.push_back(known);
      query_start.push_back(query_start.back() + rows);
      for (std::int32_t i = 0; i < rows && !sampled; ++i) {
        new_tokens.push_back(static_cast<std::int32_t>(random() % 1000));
      }
      for (std::int32_t i = 0; i < needed && !padding; ++i) {
        if (i < known) {
          table[all_slots[s] * table_blocks + i] = free.back();
        } else {
          new_blocks.push_back(free.back());
        }
        free.pop_back();
      }
      block_start.push_back(static_cast<std::int32_t>(new_blocks.size()));
    }
    if (seed % 2 == 0) return;
    block_map.resize(blocks);
    std::iota(block_map.begin(), block_map.end(), 7);
    std::shuffle(block_map.begin(), block_map.end(), random);
    for (std::int64_t block = 0; block < blocks; block += 5) block_map[block] = -1;
  }

  std::int64_t sequences() const { return static_cast<std::int64_t>(slot.size()); }
  std::int64_t rows() const { return query_start.back(); }
};

// The tensors of a call; `place` puts values somewhere.
template <typename Place>
StepInput call_of(const StepInputCase& c, const Place& place) {
  StepInput call;
  const auto vector = [&](const Ints& values) {
    return TensorView(place(values), DType::i32, {static_cast<std::int64_t>(values.size())});
  };
  call.slots = vector(c.slot);
  call.query_start = vector(c.query_start);
  call.first_position = vector(c.first_position);
  call.first_token = vector(c.first_token);
  call.first_block = vector(c.first_block);
  call.block_start = vector(c.block_start);
  call.new_tokens = vector(c.new_tokens);
  call.new_blocks = vector(c.new_blocks);
  call.last_tokens = vector(c.last_tokens);
  if (!c.block_map.empty()) call.block_map = vector(c.block_map);
  call.max_query_rows = c.max_query_rows;
  return call;
}

// What a step writes.
struct Results {
  Ints table, history, tokens, positions, kv_length, block_table;
  std::vector<std::int64_t> slot_mapping;

  explicit Results(const StepInputCase& c)
      : table(c.table),
        history(c.history),
        tokens(c.rows(), -7),
        positions(c.rows(), -7),
        kv_length(c.sequences(), -7),
        block_table(c.sequences() * c.table_blocks, -7),
        slot_mapping(c.rows(), -7) {}
};

void set_results(StepInput& call, const StepInputCase& c, std::int32_t* table,
                 std::int32_t* history, std::int32_t* tokens, std::int32_t* positions,
                 std::int64_t* slot_mapping, std::int32_t* kv_length, std::int32_t* block_table) {
  call.table = TensorView(table, DType::i32, {c.slots, c.table_blocks});
  call.history = TensorView(history, DType::i32, {c.blocks, c.block_size});
  call.tokens = TensorView(tokens, DType::i32, {c.rows()});
  call.positions = TensorView(positions, DType::i32, {c.rows()});
  call.slot_mapping = TensorView(slot_mapping, DType::i64, {c.rows()});
  call.kv_length = TensorView(kv_length, DType::i32, {c.sequences()});
  call.block_table = TensorView(block_table, DType::i32, {c.sequences(), c.table_blocks});
}

void check_against_reference(Backend& backend, const StepInputCase& c) {
  Results right(c);
  StepInput plain = call_of(c, [](const Ints& values) {
    return const_cast<std::int32_t*>(values.data());  // they are only read
  });
  set_results(plain, c, right.table.data(), right.history.data(), right.tokens.data(),
              right.positions.data(), right.slot_mapping.data(), right.kv_length.data(),
              right.block_table.data());
  step_input_reference(plain);

  const auto stream = backend.create_stream();
  std::deque<Placed<std::int32_t>> inputs;
  StepInput call = call_of(
      c, [&](const Ints& values) { return inputs.emplace_back(backend, *stream, values).data(); });
  const Results before(c);
  Placed<std::int32_t> table(backend, *stream, before.table),
      history(backend, *stream, before.history), tokens(backend, *stream, before.tokens),
      positions(backend, *stream, before.positions), kv_length(backend, *stream, before.kv_length),
      block_table(backend, *stream, before.block_table);
  Placed<std::int64_t> slot_mapping(backend, *stream, before.slot_mapping);
  set_results(call, c, table.data(), history.data(), tokens.data(), positions.data(),
              slot_mapping.data(), kv_length.data(), block_table.data());
  step_input(call, *stream);
  CHECK(same_bits(table.fetch(), right.table));
  CHECK(same_bits(history.fetch(), right.history));
  CHECK(same_bits(tokens.fetch(), right.tokens));
  CHECK(same_bits(positions.fetch(), right.positions));
  CHECK(same_bits(slot_mapping.fetch(), right.slot_mapping));
  CHECK(same_bits(kv_length.fetch(), right.kv_length));
  CHECK(same_bits(block_table.fetch(), right.block_table));
}

TEST_CASE("step input is made as its plain definition says") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][5] = {
      // sequences, slots, blocks of a sequence, block size, rows of a sequence at most
      {0, 1, 1, 1, 1},  {1, 1, 1, 1, 1},      {1, 3, 4, 16, 1},      {7, 9, 5, 3, 1},
      {7, 9, 5, 3, 15}, {256, 256, 9, 16, 1}, {3, 4, 400, 16, 6400}, {33, 40, 150, 2, 300}};
  for (const auto& shape : kShapes) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      CAPTURE(shape[0]);
      CAPTURE(shape[4]);
      CAPTURE(seed);
      check_against_reference(
          *backend, StepInputCase(shape[0], shape[1], shape[2], shape[3], shape[4], seed));
    }
  }
}

// One sequence in slot 1 of 2, with blocks of 2 tokens, goes on from token 3.
TEST_CASE("in a graph, step after step takes the last token and one block after the other") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  // slots, query_start, first_position, first_token, first_block, block_start, new_blocks
  const auto numbers = backend->allocate(MemoryKind::pinned, 9 * sizeof(std::int32_t), "test");
  auto* const step = static_cast<std::int32_t*>(numbers.data());
  Placed<std::int32_t> staged(*backend, *stream, Ints(9));
  Placed<std::int32_t> last(*backend, *stream, {70, 71}),
      table(*backend, *stream, {-1, -1, -1, -1, 6, -1, -1, -1}),
      history(*backend, *stream, Ints(20, -1)), out(*backend, *stream, Ints(3)),
      block_table(*backend, *stream, Ints(4, -1)), no_tokens(*backend, *stream, {});
  Placed<std::int64_t> place(*backend, *stream, {0});
  StepInput call;
  std::int32_t* at = staged.data();
  const auto next = [&](std::int64_t count) {
    at += count;
    return TensorView(at - count, DType::i32, {count});
  };
  call.slots = next(1);
  call.query_start = next(2);
  call.first_position = next(1);
  call.first_token = next(1);
  call.first_block = next(1);
  call.block_start = next(2);
  call.new_blocks = next(1);
  call.new_tokens = no_tokens.view({0});
  call.max_query_rows = 1;
  call.last_tokens = last.view({2});
  call.table = table.view({2, 4});
  call.history = history.view({10, 2});
  call.tokens = TensorView(out.data(), DType::i32, {1});
  call.positions = TensorView(out.data() + 1, DType::i32, {1});
  call.kv_length = TensorView(out.data() + 2, DType::i32, {1});
  call.slot_mapping = place.view({1});
  call.block_table = block_table.view({1, 4});
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(staged.data(), step, 9 * sizeof(std::int32_t), *stream);
    step_input(call, *stream);
  });
  const auto run = [&](Ints values) {
    stream->synchronize();
    std::copy(values.begin(), values.end(), step);
    graph->launch(*stream);
    return out.fetch();
  };
  CHECK(run({1, 0, 1, 2, -1, 1, 0, 1, 9}) == Ints{71, 2, 3});
  CHECK(place.fetch()[0] == 18);
  CHECK(run({1, 0, 1, 3, -1, 2, 0, 0, 0}) == Ints{71, 3, 4});
  CHECK(place.fetch()[0] == 19);
  CHECK(run({1, 0, 1, 4, -1, 2, 0, 1, 4}) == Ints{71, 4, 5});
  CHECK(place.fetch()[0] == 8);
  CHECK(run({-1, 0, 1, 4, -1, 2, 0, 0, 0}) == Ints{0, 0, 0});
  CHECK(place.fetch()[0] == -1);
}

TEST_CASE("step input refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  StepInput good;
  good.slots = good.first_position = good.first_token = good.first_block = good.kv_length =
      tensor(DType::i32, {0});
  good.query_start = good.block_start = tensor(DType::i32, {1});
  good.new_tokens = good.new_blocks = good.tokens = good.positions = tensor(DType::i32, {0});
  good.slot_mapping = tensor(DType::i64, {0});
  good.last_tokens = tensor(DType::i32, {3});
  good.table = tensor(DType::i32, {3, 4});
  good.history = tensor(DType::i32, {9, 2});
  good.block_table = tensor(DType::i32, {0, 4});
  const auto why = [&](const auto& spoil) {
    StepInput bad = good;
    spoil(bad);
    return refusal(*backend, [&](Stream& stream) { step_input(bad, stream); });
  };
  CHECK(why([](StepInput&) {}) == "");
  CHECK(why([&](StepInput& bad) { bad.slots = tensor(DType::i64, {0}); }) ==
        "step_input: slots is int64 [0]; it must be int32 [0]");
  CHECK(why([&](StepInput& bad) { bad.query_start = tensor(DType::i32, {2}); }) ==
        "step_input: query_start is int32 [2]; it must be int32 [1]");
  CHECK(why([&](StepInput& bad) {
          bad.table = tensor(DType::i32, {2, 4});
        }) == "step_input: table is int32 [2, 4]; it must be int32 [3, 4]");
  CHECK(why([&](StepInput& bad) { bad.slot_mapping = tensor(DType::i32, {0}); }) ==
        "step_input: slot_mapping is int32 [0]; it must be int64 [0]");
  CHECK(why([&](StepInput& bad) {
          bad.block_table = tensor(DType::i32, {0, 5});
        }) == "step_input: block_table is int32 [0, 5]; it must be int32 [0, 4]");
  CHECK(why([](StepInput& bad) { bad.history.stride[0] = 3; }).find("step_input: history is ") ==
        0);
}

}  // namespace
}  // namespace nvllm::kernels
