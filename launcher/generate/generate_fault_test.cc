// nvllm-launch generate with faults: finished answers are in the output, the exit code tells what
// happened, and --resume completes the output.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/unique_fd.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "testing/pipe.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::file_text;
using testing::generate;
using testing::Json;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

constexpr int kRequests = 20;
constexpr int kBefore = 12;  // number of answers written before the fault

// The first answers finish soon.
std::string input_lines(int requests) {
  std::string input;
  for (int i = 0; i < requests; ++i) {
    input +=
        str("{\"id\": \"r", i, "\", \"prompt_token_ids\": [", i + 1,
            ", 7], \"max_tokens\": ", i < 4 ? 4 : 40 + 4 * (i % 5), ", \"n\": ", 1 + i % 2, "}\n");
  }
  return input;
}

// Standard input that provides a part of the input, and then blocks.
class HalfAnInput {
 public:
  HalfAnInput() {
    const std::string text = input_lines(kBefore);
    if (::write(pipe_.writing.get(), text.data(), text.size()) !=
        static_cast<ssize_t>(text.size())) {
      fail_errno("writing to a pipe");
    }
  }
  void become_stdin() const { ::dup2(pipe_.reading.get(), STDIN_FILENO); }

 private:
  testing::Pipe pipe_;
};

// The files of a run, and its command lines.
struct Work {
  TemporaryFolder folder;
  std::string input = folder.file("in.jsonl", input_lines(kRequests));
  std::string output = folder.path("out.jsonl");

  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--max-num-seqs=4", "--ignore-eos", "--dtype=float32"});
    return generate("llama-tied", more);
  }
  std::vector<std::string> whole(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--input", input});
    return words(std::move(more));
  }
  // Starts a run to be disturbed.
  std::vector<std::string> started(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--input=-", "--output", output});
    return words(std::move(more));
  }
  // Waits until some answers are written.
  void await_some(const Program& program) const {
    const bool some = testing::await_until([&] { return file_text(output).size() > 1000; });
    REQUIRE_MESSAGE(some, program.errors());
  }
  // The part of the output that must be the same in every run.
  static std::vector<std::string> essence(const std::string& text) {
    std::vector<std::string> lines;
    for (const Json& line : json_lines(text)) {
      lines.push_back(str(json_text(line.at("id")), ' ', json_text(line.at("index")), ' ',
                          json_text(line.at("token_ids"))));
    }
    return lines;
  }
  // The output of an undisturbed run; computed once.
  static const std::vector<std::string>& right() {
    static const std::vector<std::string> lines = [] {
      const Work work;
      Program program(work.whole());
      REQUIRE_MESSAGE(program.wait() == 0, program.errors());
      return essence(program.output());
    }();
    return lines;
  }
};

// Checks for complete lines in ascending order.
void check_lines(const std::string& text) {
  std::pair<std::int64_t, std::int64_t> last = {0, 0};
  for (const Json& line : json_lines(text)) {
    const std::pair<std::int64_t, std::int64_t> here = {line.at("line"), line.at("index")};
    CHECK(last < here);
    CHECK(line.at("finish_reason") == "length");
    last = here;
  }
}

void check_resumed(const Work& work) {
  Program program(work.whole({"--resume", "--output", work.output}));
  const int exit_code = program.wait();
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  CHECK(program.errors().find(" answered already; ") != std::string::npos);
  CHECK(Work::essence(file_text(work.output)) == Work::right());
}

}  // namespace

TEST_CASE("after a kill -9 of the launcher a run is resumed, and gives what one run gives") {
  const Work work;
  {
    const HalfAnInput half;
    Program program(work.started(), [&] { half.become_stdin(); });
    const std::vector<pid_t> workers = program.workers(1);
    work.await_some(program);
    program.signal(SIGKILL);
    CHECK(program.wait() == 1000 + SIGKILL);
    CHECK(
        testing::await_until([&] { return std::ranges::all_of(workers, testing::process_gone); }));
  }
  // Simulates a line that the kill has truncated.
  const std::string text = file_text(work.output);
  work.folder.file("out.jsonl", text + "{\"id\": \"r");
  check_resumed(work);
}

// Prompts that take several steps with few rows per step, mixed with short ones.
std::string long_lines(int requests) {
  std::string input;
  for (int i = 0; i < requests; ++i) {
    std::string ids = str(i + 1);
    for (int token = 1; token < 3 + i % 4 * 20; ++token)
      ids += str(", ", (i * 31 + token * 7) % 90);
    input += str("{\"id\": \"r", i, "\", \"prompt_token_ids\": [", ids,
                 "], \"max_tokens\": ", 8 + 4 * (i % 5), "}\n");
  }
  return input;
}

TEST_CASE(
    "a run that is resumed with other batches gives every bit of one that was not disturbed") {
  Work work;
  work.folder.file("in.jsonl", long_lines(kRequests));
  const auto words = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), {"--input", work.input, "--output", output, "--ignore-eos",
                             "--dtype=bfloat16", "--temperature=0.8", "--logprobs=2"});
    return generate("llama-tied", more);
  };
  const std::string whole = work.folder.path("whole.jsonl");
  Program undisturbed(words(whole, {"--max-num-seqs=16", "--max-num-batched-tokens=256"}));
  REQUIRE_MESSAGE(undisturbed.wait() == 0, undisturbed.errors());
  {
    const testing::Pipe held;  // a prompt that never arrives keeps the run from ending
    const std::string text = long_lines(kBefore);
    REQUIRE(::write(held.writing.get(), text.data(), text.size()) ==
            static_cast<ssize_t>(text.size()));
    std::vector<std::string> some = words(work.output, {"--max-num-seqs=1"});
    std::ranges::replace(some, work.input, std::string("-"));
    Program program(some, [&] { ::dup2(held.reading.get(), STDIN_FILENO); });
    work.await_some(program);
    program.signal(SIGKILL);
    CHECK(program.wait() == 1000 + SIGKILL);
  }
  Program resumed(words(work.output, {"--resume", "--max-num-seqs=5", "--max-num-batched-tokens=24",
                                      "--block-size=8"}));
  REQUIRE_MESSAGE(resumed.wait() == 0, resumed.errors());
  CHECK(resumed.errors().find(" answered already; ") != std::string::npos);
  const auto bits = [](const std::string& path) {
    std::vector<std::string> lines;
    for (const Json& line : json_lines(file_text(path))) {
      lines.push_back(str(json_text(line.at("id")), json_text(line.at("token_ids")),
                          json_text(line.at("logprobs"))));
    }
    return lines;
  };
  CHECK(bits(work.output).size() == kRequests);
  CHECK(bits(work.output) == bits(whole));
}

TEST_CASE("Ctrl-C writes what is finished, also behind what is not, and a run is resumed") {
  const Work work;
  const HalfAnInput half;
  Program program(work.started(), [&] { half.become_stdin(); });
  const std::vector<pid_t> workers = program.workers(1);
  work.await_some(program);
  program.signal(SIGINT);
  CHECK(program.wait() == 128 + SIGINT);
  for (const pid_t worker : workers) CHECK(testing::process_gone(worker));
  check_lines(file_text(work.output));
  check_resumed(work);
}

TEST_CASE("a worker's death ends the run with 3; finished answers are written") {
  const Work work;
  const HalfAnInput half;
  Program program(work.started({"--tp=2"}), [&] { half.become_stdin(); });
  const std::vector<pid_t> workers = program.workers(2);
  work.await_some(program);
  ::kill(workers[1], SIGKILL);
  CHECK(program.wait() == 3);
  CHECK(program.errors().find(str("rank 1 (pid ", workers[1], ") died: killed by SIGKILL")) !=
        std::string::npos);
  const std::string text = file_text(work.output);
  CHECK(text.size() > 1000);
  check_lines(text);
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("a run that has nothing left to do changes nothing") {
  const Work work;
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2]}\n{\"prompt_token_ids\": [3]}\n");
  REQUIRE(Program(work.whole({"--output", work.output})).wait() == 0);
  const std::string text = file_text(work.output);
  Program program(work.whole({"--resume", "--output", work.output}));
  CHECK(program.wait() == 0);
  CHECK(file_text(work.output) == text);
}

TEST_CASE("a full disk is one clear line and exit code 1") {
  const Work work;
  Program program(work.whole({"--output=/dev/full", "--log-level=error"}));
  CHECK(program.wait() == 1);
  CHECK(program.errors() == "nvllm-launch: --output /dev/full: No space left on device (ENOSPC)\n");
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("a pipe whose reader has gone ends the run quietly") {
  const Work work;
  std::array<int, 2> fds{};
  REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0);
  UniqueFd reading(fds[0]), writing(fds[1]);
  Program program(work.whole({"--tp=2", "--log-level=error"}),
                  [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  writing.reset();
  std::array<char, 10> some{};
  REQUIRE(::read(reading.get(), some.data(), some.size()) > 0);
  reading.reset();
  CHECK(program.wait() == 128 + SIGPIPE);
  CHECK(program.errors() == "");
}

TEST_CASE("Ctrl-C ends a run whose reader takes nothing") {
  const Work work;
  std::array<int, 2> fds{};
  REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0);
  const UniqueFd reading(fds[0]), writing(fds[1]);
  ::fcntl(writing.get(), F_SETPIPE_SZ, 4096);
  Program program(work.whole({"--tp=2", "--logprobs=5"}),
                  [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  program.workers(2);
  std::array<char, 1> one{};
  REQUIRE(::read(reading.get(), one.data(), one.size()) == 1);
  program.signal(SIGINT);
  CHECK(program.wait(std::chrono::seconds(30)) == 128 + SIGINT);
}

TEST_CASE("who waits for input notices a worker's death, and Ctrl-C") {
  std::array<int, 2> fds{};
  REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0);
  const UniqueFd reading(fds[0]), writing(fds[1]);
  for (const bool death : {true, false}) {
    Program program(generate("llama-tied", {"--input=-", "--tp=2", "--max-tokens=1"}),
                    [&] { ::dup2(reading.get(), STDIN_FILENO); });
    const std::string line = "{\"prompt_token_ids\": [1]}\n";
    REQUIRE(::write(writing.get(), line.data(), line.size()) > 0);
    REQUIRE(testing::await_until([&] { return !program.output().empty(); }));
    if (death) {
      ::kill(program.workers(2)[0], SIGKILL);
      CHECK(program.wait(std::chrono::seconds(30)) == 3);
    } else {
      program.signal(SIGINT);
      CHECK(program.wait(std::chrono::seconds(30)) == 128 + SIGINT);
    }
  }
}

TEST_CASE("answers that are there are not overwritten unless that is asked for") {
  const Work work;
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2]}\n");
  const std::string mine = work.folder.file("out.jsonl", "my notes\n");
  Program refused(work.whole({"--output", mine}));
  CHECK(refused.wait() == 2);
  CHECK(refused.errors() == "nvllm-launch: --output " + mine +
                                ": is there already; pass --resume to continue it, --overwrite to "
                                "begin it anew, or another file\n");
  CHECK(file_text(mine) == "my notes\n");
  CHECK(Program(work.whole({"--output", mine, "--overwrite"})).wait() == 0);
  CHECK(json_lines(file_text(mine)).size() == 1);
  // Overwriting an empty file, or something that is not a file, loses nothing.
  CHECK(Program(work.whole({"--output", work.folder.file("empty", "")})).wait() == 0);
  Program to_stdout(work.whole({"--output=/dev/stdout"}));
  CHECK(to_stdout.wait() == 0);
  CHECK(json_lines(to_stdout.output()).size() == 1);
  CHECK(Program(work.whole({"--output=/dev/null"})).wait() == 0);
}

TEST_CASE("what the run reads is not overwritten, even if that is asked for") {
  const Work work;
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2]}\n");
  const std::string model = work.folder.path("model");
  std::filesystem::copy(testing::golden_model("llama-tied"), model);
  for (const char* const name : {"config.json", "model.safetensors"}) {
    const std::string file = model + '/' + name, text = file_text(file);
    Program program(work.whole({"--model=" + model, "--output", file, "--overwrite"}));
    CHECK(program.wait() == 2);
    CHECK(program.errors() ==
          "nvllm-launch: --output " + file + ": is a file of the model; pass another file\n");
    CHECK(file_text(file) == text);
  }
  const std::string config = work.folder.file("run.yaml", "max-tokens: 2\n");
  Program program(work.whole({"--config", config, "--output", config, "--overwrite"}));
  CHECK(program.wait() == 2);
  CHECK(program.errors() ==
        "nvllm-launch: --output " + config + ": is the --config file; pass another file\n");
  CHECK(file_text(config) == "max-tokens: 2\n");
}

TEST_CASE("a run that is refused leaves no empty output") {
  const Work work;
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2]}\n");
  CHECK(Program(work.words({"--output", work.output, "--input=/nowhere"})).wait() == 1);
  CHECK_FALSE(std::filesystem::exists(work.output));
  CHECK(Program(work.whole({"--output", work.output, "--max-model-len=1M"})).wait() == 1);
  CHECK_FALSE(std::filesystem::exists(work.output));
  const std::string empty = work.folder.file("empty", "");
  CHECK(Program(work.words({"--output", empty, "--input=/nowhere"})).wait() == 1);
  CHECK(std::filesystem::exists(empty));
}

TEST_CASE("a profile overwrites neither the input nor the output, only an older profile") {
  const Work work;
  const std::string input = "{\"prompt_token_ids\": [1, 2]}\n";
  work.folder.file("in.jsonl", input);
  Program over_input(work.whole({"--output", work.output, "--profile", work.input}));
  CHECK(over_input.wait() == 1);
  CHECK(over_input.errors() == "nvllm-launch: --profile " + work.input +
                                   ": is there already, and is no trace; pass another file\n");
  CHECK(file_text(work.input) == input);
  Program over_output(work.whole({"--output", work.output, "--profile", work.output}));
  CHECK(over_output.wait() == 2);
  const std::string profile = work.folder.path("trace.json");
  for (int i = 0; i < 2; ++i) CHECK(Program(work.whole({"--profile", profile})).wait() == 0);
}

TEST_CASE("a run is resumed with its model and options alone, and says which differs") {
  const Work work;
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2]}\n{\"prompt_token_ids\": [3]}\n");
  REQUIRE(Program(work.whole({"--output", work.output})).wait() == 0);
  const std::string text = file_text(work.output);
  const std::string first = text.substr(0, text.find('\n') + 1);
  work.folder.file("out.jsonl", first);
  const std::vector<std::string> resume = {"--resume", "--output", work.output};
  const auto resumed_with = [&](std::vector<std::string> more) {
    more.insert(more.end(), resume.begin(), resume.end());
    Program program(work.whole(more));
    CHECK(program.wait() == 1);
    CHECK(file_text(work.output) == first);
    return program.errors();
  };
  CHECK(resumed_with({"--temperature=0.25"}) ==
        "nvllm-launch: --resume: " + work.output +
            " was started with another --temperature (1.0, now 0.25); pass the same, or another "
            "--output\n");
  CHECK(resumed_with({"--model=tests/data/golden-models/qwen3-uneven"})
            .find("has answers of another model") != std::string::npos);
  // Without the record the run continues, with a warning.
  std::filesystem::remove(work.output + ".run");
  Program unknown(work.whole(resume));
  CHECK(unknown.wait() == 0);
  CHECK(unknown.errors().find(work.output + ".run is not there") != std::string::npos);
  CHECK(json_lines(file_text(work.output)).size() == 2);
}

TEST_CASE("a run is resumed with the lines that were answered, and names one that has changed") {
  const Work work;
  const std::string first = "{\"prompt_token_ids\": [1, 2], \"max_tokens\": 2}\n";
  work.folder.file("in.jsonl", first + "{\"prompt_token_ids\": [3], \"max_tokens\": 0}\n");
  REQUIRE(Program(work.whole({"--output", work.output})).wait() == 1);  // max_tokens 0 is an error
  const std::string output = file_text(work.output);
  work.folder.file("in.jsonl", "{\"prompt_token_ids\": [1, 2], \"max_tokens\": 3}\n");
  Program changed(work.whole({"--resume", "--output", work.output}));
  CHECK(changed.wait() == 1);
  CHECK(changed.errors().starts_with(
      str("nvllm-launch: --resume: ", work.output,
          " answers line 1 of the input with other fields than it has now (request_hash ")));
  CHECK(file_text(work.output) == output);
  work.folder.file("in.jsonl", first + "{\"prompt_token_ids\": [3], \"max_tokens\": 1}\n");
  Program corrected(work.whole({"--resume", "--output", work.output}));
  CHECK_MESSAGE(corrected.wait() == 0, corrected.errors());
  const std::vector<Json> lines = json_lines(file_text(work.output));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == json_lines(output)[0]);
  CHECK(lines[1].at("token_ids").size() == 1);
}

TEST_CASE("memory that the system refuses is told as that, and not as a worker's death") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more address space than any limit leaves");
  for (const char* const ranks : {"--tp=1", "--tp=2"}) {
    Program program(generate("llama-tied", {"--prompt-ids=1", ranks, "--kv-cache-memory-bytes=3G",
                                            "--max-num-seqs=2", "--swap-space=0"}),
                    [] {
                      const rlimit small{std::uint64_t{1500} << 20, std::uint64_t{1500} << 20};
                      ::setrlimit(RLIMIT_AS, &small);
                    });
    CHECK(program.wait() == 1);
    const std::string errors = program.errors();
    CAPTURE(errors);
    CHECK(errors.starts_with("nvllm-launch: rank "));
    CHECK(errors.find("for 'kv cache', which the system refuses") != std::string::npos);
    CHECK(errors.find("died") == std::string::npos);
    CHECK(errors.find('\n') == errors.size() - 1);
  }
}

TEST_CASE("an output of another input is refused before anything is started") {
  const Work work;
  const std::string foreign =
      "{\"line\": 1, \"index\": 0, \"prompt_token_ids\": [5], \"token_ids\": [1]}\n";
  work.folder.file("out.jsonl", foreign);
  Program program(work.whole({"--resume", "--output", work.output}));
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("nvllm-launch: --resume: ") != std::string::npos);
  CHECK(file_text(work.output) == foreign);
}

}  // namespace nvllm::launcher
