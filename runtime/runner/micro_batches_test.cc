#include <doctest/doctest.h>

#include <vector>

#include "runtime/runner/step_staging.h"

namespace nvllm::runtime {
namespace {

using Words = std::vector<std::int32_t>;

struct Cut {
  explicit Cut(std::int64_t max_rows, const std::vector<ScheduledRows>& sequences) {
    std::vector<const ScheduledRows*> order;
    std::int64_t rows = 0;
    for (const ScheduledRows& each : sequences) {
      order.push_back(&each);
      rows += each.rows;
    }
    cut.cut(order, max_rows);
    words.assign(cut.words().begin(), cut.words().end());
    parts = cut.at(words.data());
    CHECK(static_cast<std::int64_t>(words.size()) <=
          MicroBatches::max_words(static_cast<std::int64_t>(order.size()), rows, max_rows));
  }

  MicroBatches cut;
  Words words;
  std::span<const layers::MicroBatch> parts;
};

Words values(const TensorView& tensor) {
  const auto* const data = tensor.as<std::int32_t>();
  return {data, data + tensor.shape[0]};
}

TEST_CASE("parts: rows that fit in one are not cut") {
  CHECK(Cut(8, {{.first = 3, .rows = 5}, {.first = 0, .rows = 3}}).parts.empty());
}

TEST_CASE("parts: a prompt is cut, and each part ends where its rows do") {
  const Cut got(8, {{.first = 5, .rows = 20}});
  REQUIRE(got.parts.size() == 3);
  const std::int64_t first[] = {0, 8, 16}, rows[] = {8, 8, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    const layers::MicroBatch& part = got.parts[i];
    CHECK(part.first_row == first[i]);
    CHECK(part.rows == rows[i]);
    CHECK(part.first_sequence == 0);
    CHECK(part.sequences == 1);
    CHECK(part.max_query_rows == rows[i]);
    CHECK(part.max_kv_length == 5 + first[i] + rows[i]);
    CHECK(values(part.query_start) == Words{0, static_cast<std::int32_t>(rows[i])});
    CHECK(values(part.kv_length) == Words{static_cast<std::int32_t>(5 + first[i] + rows[i])});
  }
}

TEST_CASE("parts: several sequences, some in one part, some in several, some cut at a boundary") {
  const Cut got(4, {{.first = 9, .rows = 1},
                    {.first = 0, .rows = 7},
                    {.first = 2, .rows = 2},
                    {.first = 30, .rows = 1}});
  REQUIRE(got.parts.size() == 3);
  CHECK(values(got.parts[0].query_start) == Words{0, 1, 4});
  CHECK(values(got.parts[0].kv_length) == Words{10, 3});
  CHECK(got.parts[0].max_query_rows == 3);
  CHECK(got.parts[0].max_kv_length == 10);
  CHECK(got.parts[1].first_row == 4);
  CHECK(got.parts[1].first_sequence == 1);
  CHECK(values(got.parts[1].query_start) == Words{0, 4});
  CHECK(values(got.parts[1].kv_length) == Words{7});
  CHECK(got.parts[2].first_row == 8);
  CHECK(got.parts[2].first_sequence == 2);
  CHECK(values(got.parts[2].query_start) == Words{0, 2, 3});
  CHECK(values(got.parts[2].kv_length) == Words{4, 31});
}

TEST_CASE("parts: each has decode sequences of its own, also of single rows beside a cut") {
  const Cut got(2, {{.rows = 1}, {.rows = 1}, {.rows = 1}, {.rows = 4}, {.rows = 1}, {.rows = 1}});
  std::vector<std::int64_t> decode_sequences;
  for (const layers::MicroBatch& part : got.parts)
    decode_sequences.push_back(part.decode_sequences);
  CHECK(decode_sequences == std::vector<std::int64_t>{2, 2, 0, 2, 1});
  CHECK(Cut(4, {{.rows = 1}, {.rows = 2}, {.rows = 2}}).parts[0].decode_sequences == 1);
}

TEST_CASE("decode sequences of a step are the first ones of its batch, as those that sample") {
  const ScheduledRows prompt{.rows = 5}, row{.rows = 1}, whole_prompt{.rows = 5, .samples = true},
      decode{.rows = 1, .samples = true};
  const auto decode_sequences = [](const std::vector<ScheduledRows>& parts) {
    return shape_of(parts).decode_sequences;
  };
  CHECK(decode_sequences({decode, decode}) == 2);
  CHECK(decode_sequences({prompt, decode, row, decode}) == 2);
  CHECK(decode_sequences({row, decode, prompt}) == 2);
  CHECK(decode_sequences({decode, whole_prompt, decode}) == 1);
  CHECK(decode_sequences({whole_prompt, decode}) == 0);
}

TEST_CASE("parts: what was cut before is forgotten") {
  MicroBatches cut;
  const ScheduledRows prompt{.first = 0, .rows = 9}, row{.first = 9, .rows = 1};
  cut.cut(std::vector<const ScheduledRows*>{&prompt}, 4);
  Words words(cut.words().begin(), cut.words().end());
  CHECK(cut.at(words.data()).size() == 3);
  cut.cut(std::vector<const ScheduledRows*>{&row}, 4);
  CHECK(cut.words().empty());
  CHECK(cut.at(words.data()).empty());
}

}  // namespace
}  // namespace nvllm::runtime
