// The launcher ends in time whatever its main thread is doing: tokenizing a long prompt, or writing
// to a reader that does not read. The exit code and the culprit are correct, and finished answers
// are written.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"
#include "testing/pipe.h"

namespace nvllm::launcher {
namespace {

using testing::await_until;
using testing::Pipe;
using testing::Program;
using testing::TextFolder;

// A second after the workers, which have 1.2 s after a signal; plus the delay of a loaded machine.
constexpr Nanoseconds kEnd = std::chrono::milliseconds(4500);

// A prompt whose tokenization takes many seconds.
constexpr std::size_t kLongPrompt = std::size_t{24} << 20;

// generate, whose main thread is busy with a line while the answers to two others are in flight.
class Busy {
 public:
  Busy()
      : program_(words(), [this] { ::dup2(input_.reading.get(), STDIN_FILENO); }),
        writer_([this] { write_lines(); }) {
    // The second answer has arrived after the first.
    REQUIRE(
        await_until([&] { return program_.output().find("\"line\": 2") != std::string::npos; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    go_on_.store(true);
    writer_.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  }
  Program& program() { return program_; }

 private:
  std::vector<std::string> words() const {
    return model_.arguments("generate", {"--input=-", "--stream", "--log-level=warning", "--tp=2"});
  }
  void write(const std::string& text) const {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t written = ::write(input_.writing.get(), text.data() + at, text.size() - at);
      if (written <= 0) return;
      at += static_cast<std::size_t>(written);
    }
  }
  void write_lines() const {
    write(
        "{\"prompt_token_ids\": [1], \"max_tokens\": 90000, \"ignore_eos\": true}\n"
        "{\"prompt_token_ids\": [2], \"max_tokens\": 1}\n");
    while (!go_on_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    write("{\"prompt\": \"" + std::string(kLongPrompt, 'a') + "\"}\n");
  }

  TextFolder model_;
  Pipe input_;
  Program program_;
  std::atomic<bool> go_on_ = false;
  std::thread writer_;
};

void check_second_answer(const Program& program) {
  const std::string output = program.output();
  CHECK(output.find("\"line\": 2, \"index\": 0, \"prompt_token_ids\": [2]") != std::string::npos);
}

}  // namespace

TEST_CASE("a dead worker ends generate while it is busy with a line, and is named") {
  Busy busy;
  Program& program = busy.program();
  ::kill(program.workers(2)[1], SIGKILL);
  CHECK(program.wait(kEnd) == 3);
  CHECK(program.errors().find("rank 1 (pid ") != std::string::npos);
  CHECK(program.errors().find("died: killed by SIGKILL") != std::string::npos);
  check_second_answer(program);
}

TEST_CASE("a signal ends generate while it is busy with a line") {
  for (const int signal : {SIGTERM, SIGINT}) {
    Busy busy;
    Program& program = busy.program();
    const std::vector<pid_t> workers = program.workers(2);
    program.signal(signal);
    CHECK(program.wait(kEnd) == 128 + signal);
    for (const pid_t pid : workers) CHECK(testing::process_gone(pid));
    check_second_answer(program);
  }
}

TEST_CASE("a second signal ends it at once") {
  Busy busy;
  Program& program = busy.program();
  program.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.signal(SIGTERM);
  CHECK(program.wait(kEnd) == 128 + SIGTERM);
}

TEST_CASE("a signal ends the answer to a prompt whose reader reads nothing") {
  const TextFolder model;
  const Pipe output;
  // The pipe is full, so that the first piece blocks.
  REQUIRE(::fcntl(output.writing.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string full(4096, 'x');
  while (::write(output.writing.get(), full.data(), full.size()) > 0) continue;
  REQUIRE(::fcntl(output.writing.get(), F_SETFL, 0) == 0);
  Program program(
      model.arguments("", {"--max-tokens=1000", "--ignore-eos", "--log-level=warning", "hi!"}),
      [&] { ::dup2(output.writing.get(), STDOUT_FILENO); });
  const std::vector<pid_t> workers = program.workers(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  program.signal(SIGTERM);
  CHECK(program.wait(kEnd) == 128 + SIGTERM);
  CHECK(testing::process_gone(workers[0]));
}

}  // namespace nvllm::launcher
