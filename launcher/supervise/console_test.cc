#include "launcher/supervise/console.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/logging.h"

namespace nvllm::launcher {
namespace {

struct Pipe {
  UniqueFd reader, writer;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  void write(const std::string& text) const {
    REQUIRE(::write(writer.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  std::string read_all() {
    writer.reset();
    std::string text;
    std::array<char, 4096> chunk;
    for (ssize_t n; (n = ::read(reader.get(), chunk.data(), chunk.size())) > 0;) {
      text.append(chunk.data(), static_cast<std::size_t>(n));
    }
    return text;
  }
};

// What is written there next, within ten seconds.
void await(const UniqueFd& from, const std::string& text) {
  std::string got(text.size(), '\0');
  for (std::size_t at = 0; at < got.size();) {
    pollfd polled{from.get(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, 10'000) == 1);
    const ssize_t n = ::read(from.get(), got.data() + at, got.size() - at);
    REQUIRE(n > 0);
    at += static_cast<std::size_t>(n);
  }
  CHECK(got == text);
}

std::string tagged(const std::string& input) {
  LineTagger tagger("rank 1");
  std::string out;
  tagger.feed(input, out);
  tagger.finish(out);
  return out;
}

}  // namespace

TEST_CASE("foreign lines get the rank, the worker's own log lines pass unchanged") {
  const std::string own = format_log_line("rank 1", LogLevel::info, "ready");
  CHECK(tagged("NCCL version 2.28\n" + own + "half a line") ==
        "rank 1: NCCL version 2.28\n" + own + "rank 1: half a line\n");
  const std::string others = format_log_line("rank 11", LogLevel::info, "ready");
  CHECK(tagged(others) == "rank 1: " + others);
  CHECK(tagged("a\r\nb\n\n") == "rank 1: a\nrank 1: b\nrank 1: \n");
}

TEST_CASE("a line comes out the same however it is cut into pieces") {
  const std::string own = format_log_line("rank 1", LogLevel::warning, "slow");
  const std::string input = "one\n" + own + "two\n";
  LineTagger tagger("rank 1");
  std::string out;
  for (const char c : input) tagger.feed({&c, 1}, out);
  CHECK(out == tagged(input));
}

TEST_CASE("a line without end is cut, and nothing of it is lost") {
  const std::string out = tagged(std::string(10 * LineTagger::kMaxLine + 5, 'x'));
  std::size_t letters = 0, lines = 0, longest = 0, length = 0;
  for (const char c : out) {
    letters += c == 'x';
    ++length;
    if (c == '\n') ++lines, longest = std::max(longest, length), length = 0;
  }
  CHECK(letters == 10 * LineTagger::kMaxLine + 5);
  CHECK(lines == 11);
  CHECK(longest < LineTagger::kMaxLine + 16);
}

TEST_CASE(
    "what workers wrote before they ended reaches the output, before what is printed after "
    "collect()") {
  Pipe worker, output;
  Console console(output.writer.get());
  console.add_worker(3, std::move(worker.reader));
  console.start();
  worker.write("last words, no newline");
  worker.writer.reset();
  console.collect();
  console.print("the end\n");
  CHECK(console.flush(std::chrono::seconds(20)));
  CHECK(output.read_all() == "rank 3: last words, no newline\nthe end\n");
}

TEST_CASE("an output that takes nothing blocks neither the workers nor the launcher") {
  Pipe worker, output;
  REQUIRE(::fcntl(output.writer.get(), F_SETPIPE_SZ, 4096) == 4096);
  {
    Console console(output.writer.get());
    console.add_worker(0, std::move(worker.reader));
    console.start();
    const std::string line = std::string(1023, 'y') + '\n';
    for (int i = 0; i < 4096; ++i)
      worker.write(line);  // 4 MiB: far more than all pipes and the queue hold
    const std::int64_t start = now_ns();
    CHECK_FALSE(console.flush(std::chrono::milliseconds(20)));
    CHECK(seconds_since(start) < 10);
  }
  CHECK(output.read_all().starts_with("rank 0: yyy"));
}

TEST_CASE("when the output takes lines again, it says how many are missing") {
  Pipe worker, output;
  REQUIRE(::fcntl(output.writer.get(), F_SETPIPE_SZ, 4096) == 4096);
  Console console(output.writer.get());
  console.add_worker(0, std::move(worker.reader));
  console.start();
  const std::string line = std::string(1023, 'y') + '\n';
  for (int i = 0; i < 4096; ++i) worker.write(line);
  std::string text;
  std::array<char, 4096> chunk;
  bool more_written = false;
  while (text.find("were dropped") == std::string::npos) {
    const ssize_t n = ::read(output.reader.get(), chunk.data(), chunk.size());
    REQUIRE(n > 0);
    text.append(chunk.data(), static_cast<std::size_t>(n));
    if (!more_written && text.size() > (std::size_t{1} << 19))
      worker.write("room again\n"), more_written = true;
  }
  CHECK(text.find("lines of workers were dropped") != std::string::npos);
}

TEST_CASE("a terminal gets control characters made visible, but for what is drawn on purpose") {
  int master = -1, slave = -1;
  REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  const UniqueFd outside(master), terminal(slave);
  Pipe worker;
  {
    Console console(terminal.get());
    console.add_worker(0, std::move(worker.reader));
    console.start();
    worker.write("a\033[31mb\n");
    worker.writer.reset();
    console.collect();
    console.print("c\033]0;d\007\u009b\n");
    console.draw("\r\033[K");
    CHECK(console.flush(std::chrono::seconds(10)));
  }
  std::array<char, 4096> bytes;
  const ssize_t got = ::read(outside.get(), bytes.data(), bytes.size());
  REQUIRE(got > 0);
  CHECK(std::string(bytes.data(), static_cast<std::size_t>(got)) ==
        "rank 0: a\\x1b[31mb\r\nc\\x1b]0;d\\x07\\u009b\r\n\r\033[K");
}

TEST_CASE("a worker's last line without a newline is relayed when its pipe ends, however late") {
  int master = -1, slave = -1;
  REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  const UniqueFd outside(master), terminal(slave);
  Pipe worker;
  Console console(terminal.get());
  console.add_worker(3, std::move(worker.reader));
  console.start();
  worker.write("a line\nlast words");
  await(outside, "rank 3: a line\r\n");
  ::usleep(50'000);  // the relay has found the pipe empty, and waits
  worker.writer.reset();
  await(outside, "rank 3: last words\r\n");
}

TEST_CASE("an output that nobody reads any more is no reason to fail") {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe worker, output;
  output.reader.reset();
  Console console(output.writer.get());
  console.add_worker(0, std::move(worker.reader));
  console.start();
  worker.write("to nobody\n");
  console.print("to nobody\n");
  CHECK(console.flush(std::chrono::seconds(20)));
}

}  // namespace nvllm::launcher
