// What a rank derives about its slots from messages alone.
#include "runtime/runner/slot_table.h"

#include <doctest/doctest.h>

#include <vector>

#include "runtime/runner/decode_graphs.h"

namespace nvllm::runtime {
namespace {

SlotStart start_of(std::uint32_t slot, std::int64_t tokens, std::int64_t computed = 0) {
  SlotStart start;
  start.slot = slot;
  start.tokens.resize(static_cast<std::size_t>(tokens), 5);
  start.computed = static_cast<std::int32_t>(computed);
  start.rules.prompt_length = static_cast<std::int32_t>(tokens);
  return start;
}

void add_blocks(StepMessage& message, std::uint32_t slot, int count) {
  for (int i = 0; i < count; ++i) message.blocks.push_back({slot, 10 * i});
}

std::vector<std::uint32_t> slots_of(const SlotTable& table) {
  std::vector<std::uint32_t> slots;
  for (const ScheduledRows& part : table.parts()) slots.push_back(part.slot);
  return slots;
}

TEST_CASE("a prompt in chunks samples with its last row, and then every row does") {
  SlotTable table(2, 64, 16);
  StepMessage message;
  message.started = {start_of(1, 20)};
  add_blocks(message, 1, 2);
  message.rows = {{1, 16}};
  table.apply(message);
  CHECK(table.parts()[0].first == 0);
  CHECK(table.parts()[0].known);
  CHECK(table.parts()[0].later_rows == 4);
  CHECK(!table.parts()[0].samples);
  message = {};
  message.rows = {{1, 4}};
  table.apply(message);
  CHECK(table.parts()[0].first == 16);
  CHECK(table.parts()[0].known);
  CHECK(table.parts()[0].samples);
  message = {};
  message.same_rows = true;
  table.apply(message);
  CHECK(table.parts()[0].first == 20);
  CHECK(table.parts()[0].rows == 1);
  CHECK(table.parts()[0].later_rows == 0);
  CHECK(!table.parts()[0].known);
  CHECK(table.parts()[0].samples);
}

TEST_CASE("a token that a message brings is one that the host knows") {
  SlotTable table(2, 64, 16);
  StepMessage message;
  message.started = {start_of(1, 5)};
  add_blocks(message, 1, 1);
  message.rows = {{1, 5}};
  table.apply(message);
  message = {};
  message.tokens = {{1, 77}};
  message.same_rows = true;
  table.apply(message);
  CHECK(table[1].tokens.back() == 77);
  CHECK(table.parts()[0].first == 5);
  CHECK(table.parts()[0].known);
  CHECK(table.parts()[0].samples);
}

TEST_CASE("the same rows again are those that have not ended, in their order, whoever is new") {
  SlotTable table(4, 64, 16);
  StepMessage message;
  for (const std::uint32_t slot : {0, 1, 2, 3}) {
    message.started.push_back(start_of(slot, 3));
    add_blocks(message, slot, 1);
  }
  message.rows = {{3, 3}, {0, 3}, {2, 3}, {1, 3}};
  table.apply(message);
  CHECK(slots_of(table) == std::vector<std::uint32_t>{3, 0, 2, 1});
  message = {};
  message.ended = {0};
  message.started = {start_of(0, 3)};
  add_blocks(message, 0, 1);
  message.same_rows = true;
  table.apply(message);
  CHECK(slots_of(table) == std::vector<std::uint32_t>{3, 2, 1});
  CHECK(table[0].computed == 0);
  CHECK(table[3].computed == 4);
}

TEST_CASE(
    "what is sampled comes first among the logits, then log-probabilities, each in the message's "
    "order") {
  SlotTable table(3, 64, 16);
  StepMessage message;
  for (const std::uint32_t slot : {0, 1, 2}) {
    message.started.push_back(start_of(slot, 8, slot == 2 ? 4 : 0));
    message.started.back().prompt_logprobs = slot == 1 ? -1 : 0;
    add_blocks(message, slot, 1);
  }
  message.rows = {{0, 5}, {1, 8}, {2, 4}};
  table.apply(message);
  const auto parts = table.parts();
  CHECK(!parts[0].samples);
  CHECK(parts[0].prompt_logprobs == 5);
  CHECK(parts[0].prompt_logits == 2);
  CHECK(parts[1].sample_logits == 0);
  CHECK(parts[1].prompt_logprobs == 0);
  CHECK(parts[2].sample_logits == 1);
  CHECK(parts[2].prompt_logprobs == 3);  // its last row samples
  CHECK(parts[2].prompt_logits == 7);
}

TEST_CASE("tokens that were generated before are computed again, without log-probabilities") {
  SlotTable table(1, 64, 16);
  StepMessage message;
  message.started = {start_of(0, 10)};
  message.started[0].rules.prompt_length = 4;
  message.started[0].prompt_logprobs = 2;
  add_blocks(message, 0, 1);
  message.rows = {{0, 10}};
  table.apply(message);
  CHECK(table.parts()[0].prompt_logprobs == 3);
  CHECK(table.parts()[0].samples);
}

TEST_CASE("decode steps are padded to few sizes, which always hold them") {
  CHECK(padded_sequences(1, 256) == 1);
  CHECK(padded_sequences(3, 256) == 4);
  CHECK(padded_sequences(5, 256) == 8);
  CHECK(padded_sequences(9, 256) == 16);
  CHECK(padded_sequences(57, 256) == 64);
  CHECK(padded_sequences(65, 256) == 80);
  CHECK(padded_sequences(256, 256) == 256);
  CHECK(padded_sequences(3, 3) == 3);
  CHECK(padded_sequences(99, 100) == 100);
  for (std::int64_t max_sequences = 1; max_sequences <= 300; ++max_sequences) {
    for (std::int64_t sequences = 1; sequences <= max_sequences; ++sequences) {
      CHECK(padded_sequences(sequences, max_sequences) >= sequences);
      CHECK(padded_sequences(sequences, max_sequences) <= max_sequences);
      CHECK(padded_sequences(sequences, max_sequences) >=
            padded_sequences(std::max<std::int64_t>(sequences - 1, 1), max_sequences));
    }
  }
  CHECK(DecodeGraphs::max_graphs(8, 100) == 2 * 4);
  CHECK(DecodeGraphs::max_graphs(80, 100) == 2 * 12);
  CHECK(DecodeGraphs::max_graphs(80, 40960) == 2 * 23);
}

TEST_CASE("a size runs once as it is, then as a graph") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  DecodeGraphs graphs(*backend, 8, 4096);
  int enqueued = 0, ran = 0;
  const auto work = [&] {
    ++enqueued;
    stream->host_call([&ran] { ++ran; });
  };
  const auto run = [&](std::int64_t sequences, std::int64_t longest) {
    graphs.run(graphs.kind_of(sequences, longest), *stream, work);
    stream->synchronize();
  };
  for (int i = 0; i < 5; ++i) run(3, 500);
  CHECK(enqueued == 2);
  CHECK(ran == 5);
  CHECK(graphs.captured() == 1);
  run(4, 1024);  // of the same kind
  CHECK(enqueued == 2);
  run(4, 1025);  // may be longer than the short kind
  CHECK(enqueued == 3);
  CHECK(ran == 7);
}

TEST_CASE("there are never more graphs than memory was set aside for, and steps run all the same") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  DecodeGraphs graphs(*backend, 2, 100);
  int ran = 0;
  for (int again = 0; again < 3; ++again) {
    for (const std::int64_t sequences : {1, 2}) {
      for (int way = 0; way < 4; ++way) {
        DecodeGraphs::Kind kind = graphs.kind_of(sequences, 50);
        kind.penalties = way % 2 == 1;
        kind.top_k_top_p = way / 2 == 1;
        graphs.run(kind, *stream, [&] { stream->host_call([&ran] { ++ran; }); });
      }
    }
  }
  stream->synchronize();
  CHECK(ran == 24);
  CHECK(graphs.captured() == DecodeGraphs::max_graphs(2, 100));
}

}  // namespace
}  // namespace nvllm::runtime
