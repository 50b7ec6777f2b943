#include "launcher/session/text_io.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/testing/test_file.h"
#include "testing/error_of.h"
#include "testing/pipe.h"

namespace nvllm::launcher {
namespace {

using Found = LineReader::Found;

constexpr Nanoseconds kNone{0};

std::vector<std::string> all_lines(LineReader& reader) {
  std::vector<std::string> lines;
  while (reader.next(std::chrono::seconds(10)) == Found::line) lines.emplace_back(reader.line());
  return lines;
}

std::string refusal(const std::string& path) {
  return testing::error_of([&] { LineReader reader(path); });
}

// A pipe whose reading end is a path that LineReader can open.
struct Pipe : testing::Pipe {
  std::string reading_path() const { return str("/proc/self/fd/", reading.get()); }
  std::string writing_path() const { return str("/proc/self/fd/", writing.get()); }
  void say(const std::string& text) const {
    REQUIRE(::write(writing.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
};

}  // namespace

TEST_CASE("lines are numbered from 1, with how far the input has been read") {
  const TestFile file("one\n\nthree");
  LineReader reader(file.path());
  CHECK(reader.total_bytes() == 10);
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "one");
  CHECK(reader.number() == 1);
  CHECK(reader.read_bytes() == 4);
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "");
  CHECK_FALSE(reader.torn());
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "three");
  CHECK(reader.number() == 3);
  CHECK(reader.read_bytes() == 10);
  CHECK(reader.torn());
  CHECK(reader.next(kNone) == Found::end);
  CHECK(reader.next(kNone) == Found::end);
}

TEST_CASE("lines longer than what the system gives at once are whole") {
  const std::string longer(1 << 20, 'x');
  const TestFile file(longer + "\nb\n" + longer + "y\n");
  LineReader reader(file.path());
  CHECK(all_lines(reader) == std::vector<std::string>{longer, "b", longer + "y"});
}

TEST_CASE("a line that is too long is told, not held, and the next ones come") {
  const TestFile file("a\n" + std::string(3 << 20, 'x') + "\nb\n");
  LineReader reader(file.path(), 1000);
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK_FALSE(reader.too_long());
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.too_long());
  CHECK(reader.line() == "");
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "b");
  CHECK(reader.number() == 3);
  CHECK(reader.read_bytes() == (3 << 20) + 5);
  CHECK(reader.next(kNone) == Found::end);
}

TEST_CASE("a line of a pipe is there as soon as it is whole") {
  Pipe pipe;
  LineReader reader(pipe.reading_path());
  CHECK(reader.total_bytes() == 0);
  CHECK(reader.next(kNone) == Found::nothing_yet);
  pipe.say("fir");
  CHECK(reader.next(kNone) == Found::nothing_yet);
  pipe.say("st\nsec");
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "first");
  CHECK(reader.next(kNone) == Found::nothing_yet);
  pipe.writing.reset();
  REQUIRE(reader.next(kNone) == Found::line);
  CHECK(reader.line() == "sec");
  CHECK(reader.next(kNone) == Found::end);
}

TEST_CASE("an input that cannot be read is refused by its name") {
  CHECK(refusal("/nowhere/in.jsonl") ==
        "--input /nowhere/in.jsonl: No such file or directory (ENOENT)");
  CHECK(refusal("/") == "--input /: is a folder; pass a file of JSON lines");
}

TEST_CASE("a file keeps what it had until lines begin, and then only what is before them") {
  const TestFile file("old one\nold two\n");
  LineWriter writer(file.path());
  CHECK(file.text() == "old one\nold two\n");
  writer.truncate_at(8);
  writer.write("new\n");
  CHECK(file.text() == "old one\nnew\n");
}

TEST_CASE("a full device is one clear error") {
  LineWriter writer("/dev/full");
  writer.truncate_at(0);
  try {
    writer.write("a\n");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "--output /dev/full: No space left on device (ENOSPC)");
  }
}

TEST_CASE("a file that can grow no more ends with a whole line") {
  const TestFile file("");
  LineWriter writer(file.path());
  writer.truncate_at(0);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  bool refused = false;
  try {
    writer.write("12345\n7890abc\n");
  } catch (const Error&) {
    refused = true;
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  CHECK(refused);
  CHECK(file.text() == "12345\n");
}

TEST_CASE("a file that another run writes is refused") {
  const TestFile file("");
  const LineWriter first(file.path());
  try {
    const LineWriter second(file.path());
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("another run writes it") != std::string::npos);
  }
}

TEST_CASE("a reader who has gone is told apart from a failure") {
  const auto handler = ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  LineWriter writer(pipe.writing_path());
  pipe.reading.reset();
  CHECK_THROWS_AS(writer.write("a\n"), OutputClosed);
  ::signal(SIGPIPE, handler);
}

TEST_CASE("a reader who takes nothing is waited for until the run is over") {
  Pipe pipe;
  LineWriter writer(pipe.writing_path());
  int calls = 0;
  writer.set_give_up([&] { return ++calls == 2; });
  CHECK_THROWS_AS(writer.write(std::string(1 << 20, 'x') + "\n"), OutputStuck);
  CHECK(calls == 2);
}

}  // namespace nvllm::launcher
