#include "runtime/engine/request_tracker.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nvllm::runtime {
namespace {

RequestTracker book_of(std::uint64_t seed = 0) {
  return RequestTracker({.vocabulary = 100, .eos_ids = {7, 8}, .seed = seed});
}

Request request_of(std::vector<std::int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  return request;
}

std::string refusal_of(const Request& request) {
  RequestTracker tracker = book_of();
  try {
    tracker.open(1, request, 0);
  } catch (const Error& error) {
    CHECK_FALSE(tracker.knows(1));
    return error.what();
  }
  return {};
}

SequenceOutput progress_of(SequenceId id, std::vector<std::int32_t> tokens,
                           FinishReason finish = FinishReason::none) {
  SequenceOutput progress;
  progress.id = id;
  progress.tokens = std::move(tokens);
  progress.finish = finish;
  return progress;
}

}  // namespace

TEST_CASE("a request becomes one sequence per answer, each with a seed of its own") {
  RequestTracker tracker = book_of();
  Request request = request_of({1, 2, 3});
  request.sampling.n = 3;
  request.sampling.seed = 40;
  request.sampling.prompt_logprobs = 2;
  const std::vector<Sequence> sequences = tracker.open(9, request, 0);
  REQUIRE(sequences.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(sequences[i].tokens == request.prompt);
    CHECK(sequences[i].rules.seed == 40 + i);
    CHECK(sequences[i].rules.prompt_length == 3);
    CHECK(sequences[i].prompt_logprobs == (i == 0 ? 2 : -1));
  }
  CHECK(sequences[0].id != sequences[1].id);
  CHECK(sequences[1].id != sequences[2].id);
}

TEST_CASE("seeds that are not given follow from the engine's and the request's number") {
  const auto seed_of = [](std::uint64_t engine, std::uint64_t id) {
    return book_of(engine).open(id, request_of({1}), 0)[0].rules.seed;
  };
  CHECK(seed_of(5, 1) == seed_of(5, 1));
  CHECK(seed_of(5, 1) != seed_of(5, 2));
  CHECK(seed_of(5, 1) != seed_of(6, 1));
}

TEST_CASE("an answer ends at an end or a stop id, unless ends are ignored") {
  Request request = request_of({1});
  request.sampling.stop_token_ids = {50};
  CHECK(book_of().open(1, request, 0)[0].stop_tokens == std::vector<std::int32_t>{50, 7, 8});
  request.sampling.ignore_eos = true;
  CHECK(book_of().open(1, request, 0)[0].stop_tokens == std::vector<std::int32_t>{50});
}

TEST_CASE("before min_tokens neither ends nor stop ids are sampled") {
  Request request = request_of({1, 2});
  request.sampling.stop_token_ids = {50};
  CHECK(book_of().open(1, request, 0)[0].rules.ends.empty());
  request.sampling.min_tokens = 5;
  const layers::SamplingRules rules = book_of().open(1, request, 0)[0].rules;
  CHECK(rules.min_length == 7);
  CHECK(rules.ends == std::vector<std::int32_t>{7, 8, 50});
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  request.sampling.max_tokens.reset();
  request.sampling.min_tokens = kMax;
  CHECK(book_of().open(1, request, 0)[0].rules.min_length == kMax);
}

TEST_CASE("what is wrong with a request is said with the value and the fix") {
  CHECK(refusal_of(request_of({1, 100})) ==
        "the prompt holds token id 100; the vocabulary's ids are 0 to 99");
  CHECK(refusal_of(request_of({-1})) ==
        "the prompt holds token id -1; the vocabulary's ids are 0 to 99");
  Request request = request_of({1});
  request.sampling.logit_bias = {{3, 1.0f}, {100, 1.0f}};
  CHECK(refusal_of(request) == "logit_bias holds token id 100; the vocabulary's ids are 0 to 99");
  request = request_of({1});
  request.sampling.allowed_token_ids = {200};
  CHECK(refusal_of(request).find("allowed_token_ids holds token id 200") == 0);
  request = request_of({1});
  request.sampling.bad_words = {{1}, {2, 300}};
  CHECK(refusal_of(request).find("bad_words holds token id 300") == 0);
  request = request_of({1});
  request.sampling.stop_token_ids = {400};
  CHECK(refusal_of(request).find("stop_token_ids holds token id 400") == 0);
  request = request_of({1});
  request.sampling.logprobs = 21;
  CHECK(refusal_of(request) ==
        "logprobs 21 is more than is reported; ask for 20 alternatives at most");
  request = request_of({1});
  request.sampling.temperature = -1;
  CHECK(refusal_of(request).find("temperature -1") == 0);
  request = request_of({1});
  request.sampling.bad_words.assign(3000, {1});
  CHECK(refusal_of(request).find("take 6000 words together; at most 4096") != std::string::npos);
}

TEST_CASE("a number that is taken is refused, and the first request goes on") {
  RequestTracker tracker = book_of();
  const SequenceId sequence = tracker.open(1, request_of({1}), 0)[0].id;
  CHECK_THROWS_AS(tracker.open(1, request_of({2}), 0), Error);
  std::vector<Update> updates;
  tracker.add_update(progress_of(sequence, {5}), 1, updates);
  CHECK(updates.size() == 1);
}

TEST_CASE(
    "of keys and values in chunks, kv_mode says how much of the answer's stayed on the device") {
  for (const auto& [residence, name] :
       {std::pair(Residence::all, "resident"), std::pair(Residence::some, "hybrid"),
        std::pair(Residence::none, "chunked")}) {
    RequestTracker tracker({.vocabulary = 100, .eos_ids = {}, .kv_mode = KvMode::chunked});
    const auto ended = tracker.open(1, request_of({1, 2}), 100);
    const auto aborted = tracker.open(2, request_of({1, 2}), 100);
    std::vector<Update> updates;
    SequenceOutput progress = progress_of(ended[0].id, {7}, FinishReason::length);
    progress.residence = residence;
    tracker.add_update(progress, 200, updates);
    progress = progress_of(aborted[0].id, {7});
    progress.residence = residence;
    tracker.add_update(progress, 200, updates);
    CHECK(updates[0].kv_mode == name);
    CHECK(tracker.close(2, 300).updates[0].kv_mode == name);
  }
}

TEST_CASE("progress becomes updates, the last of which tells the whole life") {
  RequestTracker tracker = book_of();
  Request request = request_of({1, 2});
  request.sampling.n = 2;
  const auto sequences = tracker.open(4, request, 100);
  tracker.note_scheduled(sequences[1].id, 150);
  std::vector<Update> updates;
  tracker.add_update(progress_of(sequences[1].id, {10}), 200, updates);
  tracker.add_update(progress_of(sequences[1].id, {7}, FinishReason::stop), 300, updates);
  REQUIRE(updates.size() == 2);
  CHECK(updates[0].request == 4);
  CHECK(updates[0].index == 1);
  CHECK(updates[0].finish == FinishReason::none);
  CHECK(updates[1].tokens == std::vector<std::int32_t>{7});
  CHECK(updates[1].finish == FinishReason::stop);
  CHECK(updates[1].kv_mode == "paged");
  CHECK(updates[1].times.arrived_ns == 100);
  CHECK(updates[1].times.scheduled_ns == 150);
  CHECK(updates[1].times.first_token_ns == 200);
  CHECK(updates[1].times.last_token_ns == 300);
  CHECK(tracker.knows(4));
  tracker.add_update(progress_of(sequences[0].id, {7}, FinishReason::stop), 300, updates);
  CHECK_FALSE(tracker.knows(4));
  CHECK(tracker.generated_tokens() == 3);
}

TEST_CASE("log-probabilities of a prompt that came over many steps go with its first token") {
  RequestTracker tracker = book_of();
  const SequenceId sequence = tracker.open(1, request_of({1, 2, 3}), 0)[0].id;
  std::vector<Update> updates;
  for (std::int32_t token : {2, 3}) {
    SequenceOutput progress = progress_of(sequence, {});
    progress.prompt_logprobs.push_back({.chosen = {.token = token}, .top = {}});
    tracker.add_update(progress, 1, updates);
  }
  CHECK(updates.empty());
  tracker.add_update(progress_of(sequence, {9}), 2, updates);
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].prompt_logprobs.size() == 2);
  CHECK(updates[0].prompt_logprobs[0].chosen.token == 2);
  CHECK(updates[0].prompt_logprobs[1].chosen.token == 3);
}

TEST_CASE("closing a request aborts those of its answers that are not over") {
  RequestTracker tracker = book_of();
  Request request = request_of({1});
  request.sampling.n = 3;
  const auto sequences = tracker.open(1, request, 0);
  std::vector<Update> updates;
  tracker.add_update(progress_of(sequences[1].id, {7}, FinishReason::stop), 1, updates);
  const RequestTracker::Closed closed = tracker.close(1, 2);
  CHECK(closed.sequences == std::vector<SequenceId>{sequences[0].id, sequences[2].id});
  REQUIRE(closed.updates.size() == 2);
  CHECK(closed.updates[0].finish == FinishReason::abort);
  CHECK(closed.updates[0].index == 0);
  CHECK(closed.updates[1].index == 2);
  CHECK_FALSE(tracker.knows(1));
  CHECK(tracker.close(1, 3).sequences.empty());
}

}  // namespace nvllm::runtime
