// The public interface, as a program uses it.
#include <doctest/doctest.h>
#include <nvllm/nvllm.h>

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/testing/text_folder.h"

namespace {

using nvllm::testing::TextFolder;

nvllm::Options options_of(const TextFolder& model, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--device=cpu", "--load-format=dummy", "--kv-cache-memory-bytes=16M",
                           R"(--hf-overrides={"vocab_size": 705})"});
  return {.model = model.path(), .max_model_len = 300, .dtype = "float32", .arguments = more};
}

// The error of a session that cannot be created, and its exit code.
std::pair<std::string, int> refusal(const nvllm::Options& options) {
  try {
    const nvllm::Session session(options);
  } catch (const nvllm::SessionError& error) {
    return {error.what(), error.exit_code()};
  }
  return {"", 0};
}

}  // namespace

TEST_CASE("texts become ids, ids answers, and answers texts") {
  const TextFolder model;
  nvllm::Session session(options_of(model));
  CHECK(session.max_model_len() == 300);
  const std::vector<std::int32_t> prompt = session.encode("the lighthouse");
  CHECK(session.decode(prompt) == "the lighthouse");
  const nvllm::Request request = {
      .prompt = prompt,
      .sampling = {.n = 2, .seed = 5, .max_tokens = 6, .ignore_eos = true, .logprobs = 1}};
  const auto answers = session.generate({request, request});
  REQUIRE(answers.size() == 2);
  REQUIRE(answers[0].size() == 2);
  CHECK(answers[0][0].tokens.size() == 6);
  CHECK(answers[0][0].logprobs.size() == 6);
  CHECK(answers[0][0].logprobs[0].top.size() == 1);
  CHECK(answers[0][0].finish == nvllm::FinishReason::length);
  CHECK(answers[0][0].tokens == answers[1][0].tokens);
  CHECK(answers[0][0].tokens != answers[0][1].tokens);
  // An answer that may only be EOS ends immediately, unless EOS is ignored.
  nvllm::Request ends = {.prompt = prompt, .sampling = {.max_tokens = 3}};
  ends.sampling.allowed_token_ids = {2};
  CHECK(session.generate({ends})[0][0].tokens.size() == 1);
  ends.sampling.ignore_eos = true;
  CHECK(session.generate({ends})[0][0].tokens.size() == 3);
  CHECK(session.finish() == 0);
}

TEST_CASE("answers come piece by piece, are aborted, and what is wrong with one is its own") {
  const TextFolder model;
  nvllm::Session made(options_of(model));
  nvllm::Session session = std::move(made);
  const nvllm::SamplingParams sampling = {.temperature = 0, .max_tokens = 200, .ignore_eos = true};
  session.submit(1, {.prompt = {1, 2}, .sampling = {.temperature = 0, .max_tokens = 7}});
  session.submit(2, {.prompt = {99999}});
  session.submit(3, {.prompt = {3}, .sampling = sampling});
  session.abort(3);
  CHECK(session.unfinished() == 3);
  std::map<std::uint64_t, nvllm::Update> last;
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens;
  while (session.unfinished() > 0) {
    for (nvllm::Update& update : session.poll(1)) {
      auto& all = tokens[update.request];
      all.insert(all.end(), update.tokens.begin(), update.tokens.end());
      last[update.request] = std::move(update);
    }
  }
  CHECK(last[1].finish != nvllm::FinishReason::none);
  CHECK(last[2].error.find("99999") != std::string::npos);
  CHECK(last[3].finish == nvllm::FinishReason::abort);
  const auto again =
      session.generate({{.prompt = {1, 2}, .sampling = {.temperature = 0, .max_tokens = 7}}});
  CHECK(again[0][0].tokens == tokens[1]);
}

TEST_CASE("calls that come at a wrong time, or with odd times, are SessionErrors or do nothing") {
  const TextFolder model;
  nvllm::Session session(options_of(model));
  session.submit(1, {.prompt = {1, 2}, .sampling = {.max_tokens = 100, .ignore_eos = true}});
  CHECK_THROWS_AS(session.generate({{.prompt = {1}}}), nvllm::SessionError);
  session.poll(std::numeric_limits<double>::quiet_NaN());
  session.poll(-1);
  while (session.unfinished() > 0) session.poll(1e10);
  CHECK(session.generate({{.prompt = {1}}}).size() == 1);
  CHECK(session.finish() == 0);
  CHECK(session.finish() == 0);
  CHECK(session.unfinished() == 0);
  CHECK_THROWS_AS(session.generate({{.prompt = {1}}}), nvllm::SessionError);
  CHECK_THROWS_AS(session.submit(2, {.prompt = {1}}), nvllm::SessionError);
  CHECK_THROWS_AS(session.poll(0), nvllm::SessionError);
}

TEST_CASE("options that would do nothing are refused by name") {
  const TextFolder model;
  for (const std::string option : {"--temperature=0.5", "--stop=x", "--output=/tmp/x",
                                   "--profile=x", "--config=x", "--n=2", "--resume", "--model=x"}) {
    const auto [text, exit_code] = refusal(options_of(model, {option}));
    CHECK(text.find("arguments: " + option.substr(0, option.find('=')) + ": ") == 0);
    CHECK(exit_code == 2);
  }
}

TEST_CASE("what cannot be is a SessionError in one line, with the program's exit code") {
  const TextFolder model;
  CHECK(refusal({.model = "/nowhere"}).first.find("--model /nowhere: no such folder") == 0);
  const auto unknown = refusal(options_of(model, {"--frobnicate"}));
  CHECK(unknown.first.find("--frobnicate") != std::string::npos);
  CHECK(unknown.second == 2);
  CHECK(refusal(options_of(model, {"--help"})).first ==
        "arguments: ask for help, which the program has; leave it out");
  const auto length = refusal(options_of(model, {"--max-model-len=100000000"}));
  CHECK(length.second != 0);
  nvllm::Session session(options_of(model));
  CHECK_THROWS_AS(session.generate({{.prompt = {99999}}}), nvllm::SessionError);
  CHECK(session.default_sampling().temperature == 1.0);
}
