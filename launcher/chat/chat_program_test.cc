// Chat as people and scripts meet it: in a real pseudo-terminal, and through pipes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/text.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {
namespace {

using testing::Program;
using testing::TextFolder;

constexpr Nanoseconds kLimit = std::chrono::seconds(60);

// A program in a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, const char* no_colour = nullptr)
      : opened_(open()), program_(arguments, [this, no_colour] {
          ::setsid();
          ::ioctl(program_side_, TIOCSCTTY, 0);
          for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
            ::dup2(program_side_, fd);
          }
          ::close(our_side_);
          ::setenv("TERM", "xterm", 1);
          ::unsetenv("NO_COLOR");
          if (no_colour != nullptr) ::setenv("NO_COLOR", no_colour, 1);
        }) {}
  ~Terminal() {
    ::close(our_side_);
    ::close(program_side_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    REQUIRE(::write(our_side_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  // Waits until it shows the text, after what was awaited before.
  bool await(const std::string& text) {
    const std::int64_t end = now_ns() + kLimit.count();
    while (true) {
      const std::size_t at = seen_.find(text, awaited_);
      if (at != std::string::npos) {
        awaited_ = at + text.size();
        return true;
      }
      if (now_ns() > end) {
        MESSAGE("it showed: ", seen_);
        return false;
      }
      read();
    }
  }
  void resize(unsigned short columns) const {
    winsize window{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(our_side_, TIOCSWINSZ, &window);
  }
  bool echoes() const {
    termios now{};
    ::tcgetattr(program_side_, &now);
    return (now.c_lflag & ECHO) != 0 && (now.c_lflag & ICANON) != 0;
  }
  int wait() {
    // Somebody has to take what it still shows.
    const std::int64_t end = now_ns() + kLimit.count();
    while (!testing::process_gone(program_.pid()) && now_ns() < end) read();
    return program_.wait();
  }
  const Program& program() const { return program_; }
  const std::string& seen() const { return seen_; }

 private:
  bool open() {
    winsize window{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::openpty(&our_side_, &program_side_, nullptr, nullptr, &window) == 0);
    return true;
  }
  void read() {
    pollfd polled = {our_side_, POLLIN, 0};
    if (::poll(&polled, 1, 20) <= 0) return;
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(our_side_, bytes.data(), bytes.size());
    if (got > 0) seen_.append(bytes.data(), static_cast<std::size_t>(got));
  }

  int our_side_ = -1, program_side_ = -1;
  bool opened_;
  Program program_;
  std::string seen_;
  std::size_t awaited_ = 0;
};

std::string saved_content(const std::string& path, std::size_t message) {
  std::ifstream file(path);
  return read_json(file)["messages"].at(message)["content"];
}

TEST_CASE("a chat answers, tells figures, and leaves the terminal as it was") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-tokens=8"}));
  REQUIRE(terminal.await("> "));
  CHECK_FALSE(terminal.echoes());
  terminal.type("hi\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/stats\r");
  REQUIRE(terminal.await("1 answer, "));
  terminal.type("/exit\r");
  CHECK(terminal.wait() == 0);
  CHECK(terminal.echoes());
}

TEST_CASE("Ctrl-C stops the answer and not the program") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--ignore-eos", "--max-tokens=90000"}));
  REQUIRE(terminal.await("> "));
  terminal.type("hi\r");
  REQUIRE(terminal.await("\n"));
  ::usleep(300'000);
  terminal.type("\003");
  REQUIRE(terminal.await("TTFT "));
  REQUIRE(terminal.await("> "));
  terminal.type("given up\003/stats\r");
  REQUIRE(terminal.await("1 answer, "));
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a line can be edited, and an old one asked again") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-tokens=2"}));
  REQUIRE(terminal.await("> "));
  terminal.type("/hlpx\177\033[D\033[De\r");
  REQUIRE(terminal.await("/reset"));
  terminal.type("wolrd\027the w\xC3\xB6\001ask \005rld!\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("\033[A\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/save " + model.path("saved") + "\r");
  REQUIRE(terminal.await("saved 4 messages"));
  CHECK(saved_content(model.path("saved"), 0) == "ask the w\xC3\xB6rld!");
  CHECK(saved_content(model.path("saved"), 2) == "ask the w\xC3\xB6rld!");
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("several lines are one question: pasted, typed, in a window that changes its size") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-tokens=2"}));
  REQUIRE(terminal.await("> "));
  terminal.type("\033[200~first\r\nsecond\n/exit\033[201~");
  terminal.resize(20);
  terminal.type(" and more than fits into one row\033\rthen\\\rlast\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/save " + model.path("saved") + "\r");
  REQUIRE(terminal.await("saved 2 messages"));
  CHECK(saved_content(model.path("saved"), 0) ==
        "first\nsecond\n/exit and more than fits into one row\nthen\nlast");
  terminal.type("/exit\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("commands set, reset, load; what is wrong is told and the chat goes on") {
  const TextFolder model;
  Terminal terminal(
      model.arguments("chat", {"--max-tokens=2", "--ignore-eos", "--system=be brief"}));
  REQUIRE(terminal.await("> "));
  terminal.type("/set temprature 1\r");
  REQUIRE(terminal.await("did you mean temperature?"));
  terminal.type("/set top_p 7\r");
  REQUIRE(terminal.await("--top-p 7: out of range"));
  terminal.type("/set max_tokens 3\r");
  REQUIRE(terminal.await("max-tokens is 3"));
  terminal.type("hi\r");
  REQUIRE(terminal.await("tokens in "));
  terminal.type("/save " + model.path("saved") + "\r");
  REQUIRE(terminal.await("saved 3 messages"));
  CHECK(saved_content(model.path("saved"), 0) == "be brief");
  terminal.type("/reset\r/save " + model.path("short") + "\r");
  REQUIRE(terminal.await("saved 1 messages"));
  terminal.type("/load " + model.path("saved") + "\r");
  REQUIRE(terminal.await("loaded 3 messages"));
  std::ofstream(model.path("parts"))
      << R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})";
  terminal.type("/load " + model.path("parts") + "\r");
  REQUIRE(terminal.await("loaded 1 messages"));
  terminal.type("/load " + model.path("chat_template.jinja") + "\r");
  REQUIRE(terminal.await("the file: not JSON"));
  terminal.type("/load /nowhere\r");
  REQUIRE(terminal.await("/load /nowhere: no such file"));
  terminal.type("/hepl\r");
  REQUIRE(terminal.await("did you mean /help?"));
  terminal.type("/exit\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a full context loses its oldest messages, and says so") {
  const TextFolder model;
  Terminal terminal(
      model.arguments("chat", {"--max-tokens=8", "--ignore-eos", "--max-model-len=128"}));
  REQUIRE(terminal.await("> "));
  for (int i = 0; i < 8; ++i) {
    terminal.type("a question of some length\r");
    REQUIRE(terminal.await("TTFT "));
  }
  CHECK(terminal.seen().find("the context of 128 tokens is full: the oldest 2 messages") !=
        std::string::npos);
  terminal.type(std::string(600, 'x') + "\r");
  REQUIRE(terminal.await("the limit is"));
  terminal.type("hi\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("thoughts are dimmed, unless NO_COLOR says otherwise") {
  const TextFolder model;
  model.set_template("{{ messages[-1].content }}<think>");
  for (const char* const no_colour : {static_cast<const char*>(nullptr), "", "1"}) {
    Terminal terminal(model.arguments("chat", {"--max-tokens=4", "--ignore-eos"}), no_colour);
    REQUIRE(terminal.await("> "));
    terminal.type("hi\r");
    REQUIRE(terminal.await("TTFT "));
    terminal.type("\004");
    CHECK(terminal.wait() == 0);
    const bool dimmed = terminal.seen().find("\033[2m") != std::string::npos;
    CHECK(dimmed == (no_colour == nullptr || *no_colour == '\0'));
  }
}

TEST_CASE("SIGTERM ends a chat that waits, and the terminal is as it was") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {}));
  REQUIRE(terminal.await("> "));
  terminal.program().signal(SIGTERM);
  CHECK(terminal.wait() == 143);
  CHECK(terminal.echoes());
}

// Runs to its end with the text as standard input.
void give_input(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  ::dup2(::open(path.c_str(), O_RDONLY), STDIN_FILENO);
}

TEST_CASE("a prompt without a command is answered, with figures at the end") {
  const TextFolder model;
  for (const char* const command : {"", "chat"}) {
    Program program(model.arguments(command, {"--tp=2", "--max-tokens=4", "--ignore-eos", "hi"}));
    CHECK(program.wait() == 0);
    CHECK(program.output().ends_with("\n"));
    CHECK(program.errors().find("4 tokens in ") != std::string::npos);
  }
}

TEST_CASE("lines of standard input are prompts of their own; for chat they are a conversation") {
  const TextFolder model;
  const auto outputs = [&](const char* command, const std::string& input) {
    Program program(model.arguments(command, {"--max-tokens=4", "--ignore-eos", "--temperature=0"}),
                    [&] { give_input(model.path("input"), input); });
    CHECK(program.wait() == 0);
    return program.output();
  };
  const std::string once = outputs("", "hi\n");
  CHECK(!once.empty());
  CHECK(outputs("", "hi\n\nhi") == once + once);
  CHECK(outputs("chat", "hi\n/reset\nhi\n") == once + once);
}

TEST_CASE("many lines are answered together, and written in their order") {
  const TextFolder model;
  std::string input, expected;
  const auto answers = [&](const std::string& lines) {
    Program program(model.arguments("", {"--max-tokens=6", "--ignore-eos", "--temperature=0",
                                         "--dtype=float32", "--max-num-seqs=3"}),
                    [&] { give_input(model.path("input"), lines); });
    CHECK(program.wait() == 0);
    CHECK(program.errors().find("answers, ") != std::string::npos);
    return program.output();
  };
  for (const char* const line : {"hi", "what", "a question of some length", "no"}) {
    const std::string twice = str(line, '\n', line, '\n');
    const std::string both = answers(twice);
    const std::string one = both.substr(0, both.size() / 2);
    REQUIRE(both == one + one);
    input += line + std::string("\n");
    expected += one;
  }
  CHECK(answers(input + input + input) == expected + expected + expected);
}

TEST_CASE("a line comes back before the next one is there") {
  const TextFolder model;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  Program program(model.arguments("", {"--max-tokens=2", "--ignore-eos", "--temperature=0"}),
                  [&] { ::dup2(ends[0], STDIN_FILENO); });
  ::close(ends[0]);
  std::size_t seen = 0;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(::write(ends[1], "hi\n", 3) == 3);
    const std::int64_t end = now_ns() + kLimit.count();
    while ((program.output().size() == seen || !program.output().ends_with('\n')) &&
           now_ns() < end) {
      ::usleep(2000);
    }
    REQUIRE(program.output().size() > seen);
    seen = program.output().size();
  }
  ::close(ends[1]);
  CHECK(program.wait() == 0);
}

TEST_CASE("a line that is too long for the context is told, and the others are answered") {
  const TextFolder model;
  Program program(
      model.arguments("",
                      {"--max-tokens=2", "--ignore-eos", "--temperature=0", "--max-model-len=128"}),
      [&] { give_input(model.path("input"), "hi\n" + std::string(900, 'x') + "\nhi\n"); });
  CHECK(program.wait() == 1);
  const std::string output = program.output();
  CHECK(output.substr(0, output.size() / 2) == output.substr(output.size() / 2));
  CHECK(program.errors().find("1 line failed: line 2: ") != std::string::npos);
  CHECK(program.errors().find("the limit is") != std::string::npos);
}

TEST_CASE("a reader who has gone ends the answers to lines without a word") {
  const TextFolder model;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  Program program(model.arguments("", {"--max-tokens=50", "--ignore-eos", "--log-level=warning"}),
                  [&] {
                    give_input(model.path("input"), "a\nb\nc\nd\n");
                    ::dup2(ends[1], STDOUT_FILENO);
                  });
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(program.wait() == 141);
  CHECK(program.errors() == "");
}

TEST_CASE("a model without a chat template is told, not guessed") {
  const TextFolder model;
  std::filesystem::remove(model.path("chat_template.jinja"));
  Program program(model.arguments("", {"hi"}));
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("has no chat template; pass one with --chat-template FILE") !=
        std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
