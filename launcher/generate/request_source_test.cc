// The tasks of an input, and which of them an earlier run has done.
#include "launcher/generate/request_source.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/generate/batch.h"
#include "launcher/testing/test_file.h"

namespace nvllm::launcher {
namespace {

using Found = RequestSource::Found;

std::string asks(int prompt, const std::string& more = "") {
  return str(R"({"prompt_token_ids": [)", prompt, "]", more, "}\n");
}

std::string answer(int line, int prompt, int index = 0, const std::string& id = "") {
  return str("{", id.empty() ? "" : "\"id\": " + id + ", ", "\"line\": ", line,
             ", \"index\": ", index, ", \"prompt_token_ids\": [", prompt,
             "], \"token_ids\": [1]}\n");
}

std::string failure(int line) {
  return str("{\"line\": ", line, ", \"error\": \"bad\"}\n");
}

// An output line with the hash of what it answers.
std::string hashed(const std::string& line, const std::string& hash) {
  return str(line.substr(0, line.rfind('}')), ", \"request_hash\": \"", hash, "\"}\n");
}

// The remaining input for a given output: "3" to be computed, "3=" known, "3!" invalid.
struct Resumed {
  Resumed(const std::string& input, const std::string& output) {
    const TestFile in(input), out(output);
    RequestSource source(LineReader(in.path()), {});
    try {
      source.resume(out.path());
      Task task;
      while (source.next(std::chrono::seconds(1), task) == Found::task) {
        left += str(left.empty() ? "" : " ", task.line);
        if (!task.answers.empty()) left += '=';
        if (!task.parsed.error.empty()) left += '!';
        known += task.answers;
        task = {};
      }
      kept_bytes = source.kept_bytes();
      kept_lines = source.kept_lines();
      kept_failures = source.kept_failures();
    } catch (const Error& error) {
      refusal = error.what();
      const std::size_t at = refusal.find(out.path());
      if (at != std::string::npos) refusal.replace(at, out.path().size(), "OUT");
    }
  }
  std::string left, known, refusal;
  std::uint64_t kept_bytes = 0, kept_lines = 0, kept_failures = 0;
};

}  // namespace

TEST_CASE("prompts of the command line are tasks like lines") {
  RequestSource source(RequestSource::Prompts{{1, 2}, {3}}, {.max_tokens = 5});
  Task task;
  REQUIRE(source.next(std::chrono::seconds(0), task) == Found::task);
  CHECK(task.line == 1);
  CHECK(task.parsed.request->prompt == std::vector<std::int32_t>{1, 2});
  CHECK(task.parsed.request->sampling.max_tokens == 5);
  REQUIRE(source.next(std::chrono::seconds(0), task) == Found::task);
  CHECK(task.line == 2);
  CHECK(source.next(std::chrono::seconds(0), task) == Found::end);
}

TEST_CASE("blank lines are no tasks, but they count") {
  const TestFile in("\n" + asks(1) + "  \r\n" + asks(2) + "x\n");
  RequestSource source(LineReader(in.path()), {});
  Task task;
  REQUIRE(source.next(std::chrono::seconds(0), task) == Found::task);
  CHECK(task.line == 2);
  REQUIRE(source.next(std::chrono::seconds(0), task) == Found::task);
  CHECK(task.line == 4);
  REQUIRE(source.next(std::chrono::seconds(0), task) == Found::task);
  CHECK(task.line == 5);
  CHECK_FALSE(task.parsed.request.has_value());
  CHECK(task.parsed.error == "no valid JSON at column 1");
  CHECK(source.next(std::chrono::seconds(0), task) == Found::end);
}

TEST_CASE("a run goes on behind the last whole answer; a torn one is cut off") {
  const std::string input = asks(1) + asks(2) + asks(3);
  const std::string whole = answer(1, 1) + answer(2, 2);
  for (const std::string& torn : {std::string(), answer(3, 3).substr(0, 20), std::string("{")}) {
    const Resumed run(input, whole + torn);
    CHECK(run.refusal == "");
    CHECK(run.left == "3");
    CHECK(run.kept_bytes == whole.size());
    CHECK(run.kept_lines == 2);
  }
}

TEST_CASE("without an output everything is left, with a whole one nothing") {
  const std::string input = asks(1) + asks(2);
  CHECK(Resumed(input, "").left == "1 2");
  const std::string whole = answer(1, 1) + answer(2, 2);
  const Resumed run(input, whole);
  CHECK(run.left == "");
  CHECK(run.kept_bytes == whole.size());
}

TEST_CASE("answers behind a gap are known, and come again in their place") {
  const std::string input = asks(1) + asks(2) + asks(3) + asks(4);
  const Resumed run(input, answer(1, 1) + answer(3, 3));
  CHECK(run.left == "2 3= 4");
  CHECK(run.known == answer(3, 3));
  CHECK(run.kept_bytes == answer(1, 1).size());
  CHECK(run.kept_lines == 2);
}

TEST_CASE("some answers of a request are not all: it is parsed again") {
  const std::string input = asks(1, R"(, "n": 2)") + asks(2) + asks(3);
  const Resumed half(input, answer(1, 1, 0) + answer(2, 2));
  CHECK(half.left == "1 2= 3");
  CHECK(half.kept_bytes == 0);
  CHECK(Resumed(input, answer(1, 1, 1) + answer(2, 2)).left == "1 2= 3");
  CHECK(Resumed(input, answer(1, 1, 0) + answer(1, 1, 1)).left == "2 3");
}

TEST_CASE("error lines are answers, too") {
  const Resumed run(asks(1) + "x\n" + asks(3), answer(1, 1) + failure(2));
  CHECK(run.left == "3");
  CHECK(run.kept_failures == 1);
}

TEST_CASE("an answer is kept only if its line is what it was then") {
  const std::string eight = asks(1, R"(, "max_tokens": 8)");
  const std::string hash = parse_request_line(eight, {}).hash;
  const std::string more = asks(1, R"(, "max_tokens": 64)");
  const std::string output = hashed(answer(1, 1), hash) + answer(2, 2);
  CHECK(Resumed(eight + asks(2), output).left == "");
  CHECK(Resumed("{\"max_tokens\":8,\"prompt_token_ids\":[1]}\n" + asks(2), output).left == "");
  CHECK(Resumed(more + asks(2), output).refusal ==
        "--resume: OUT answers line 1 of the input with other fields than it has now "
        "(request_hash " +
            hash + ", now " + parse_request_line(more, {}).hash +
            "); remove the answer to have a new one, or pass the input that it was written for");
  CHECK(Resumed(more + asks(2), answer(2, 2)).left == "1 2=");  // the answer was removed
  CHECK(Resumed(more, answer(1, 1)).left == "");                // an earlier version's
}

TEST_CASE("a line that was an error and has been corrected is run") {
  const std::string hash = parse_request_line("x", {}).hash;
  const std::string output = answer(1, 1) + hashed(failure(2), hash) + answer(3, 3);
  const Resumed same(asks(1) + "x\n" + asks(3), output);
  CHECK(same.left == "");
  CHECK(same.kept_failures == 1);
  const Resumed corrected(asks(1) + asks(2, R"(, "id": "b")") + asks(3), output);
  CHECK(corrected.refusal == "");
  CHECK(corrected.left == "2 3=");
  CHECK(corrected.kept_failures == 0);
}

TEST_CASE("a line of a batch that has changed since it was answered is refused") {
  const auto line = [](const char* body) {
    return str(R"({"custom_id": "a", "url": "/v1/completions", "body": )", body, "}\n");
  };
  const std::string input = line(R"({"prompt": "a"})");
  std::string output;
  append_batch_line(output, 1, "\"a\"", parse_request_line(input, {}).hash, 200, "{}");
  CHECK(Resumed(input, output).left == "");
  CHECK(Resumed(line(R"({"prompt": "b"})"), output)
            .refusal.starts_with("--resume: OUT answers line 1 of the input with other fields"));
}

TEST_CASE("an output of another input is refused") {
  const std::string fix = "; pass the input that it was written for, or another --output";
  CHECK(Resumed(asks(1), answer(1, 2)).refusal ==
        "--resume: OUT has another prompt for line 1 of the input" + fix);
  CHECK(Resumed(asks(1, R"(, "id": "a")"), answer(1, 1)).refusal ==
        "--resume: OUT has no id for line 1 of the input, which has id \"a\"" + fix);
  CHECK(Resumed(asks(1, R"(, "id": "a")"), answer(1, 1, 0, "\"b\"")).refusal ==
        "--resume: OUT has id \"b\" for line 1 of the input, which has id \"a\"" + fix);
  CHECK(Resumed("x\n", answer(1, 1)).refusal ==
        "--resume: OUT answers line 1 of the input, which is no request" + fix);
  CHECK(Resumed(asks(1), answer(1, 1) + answer(2, 2)).refusal ==
        "--resume: OUT answers line 2 of the input, which has 1 lines" + fix);
  CHECK(Resumed(asks(1), "{\"a\": 1}\n").refusal ==
        "--resume: line 1 of OUT is no answer of generate; pass another --output");
  CHECK(Resumed(asks(1), answer(1, 1) + "what is this\n").refusal ==
        "--resume: line 2 of OUT is no answer of generate; pass another --output");
}

}  // namespace nvllm::launcher
