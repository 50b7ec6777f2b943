#include "launcher/chat/piped_input.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {
namespace {

// A pipe that contains the text and is closed for writing.
UniqueFd pipe_with(const std::string& text) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd writing(ends[1]);
  REQUIRE(::write(writing.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return UniqueFd(ends[0]);
}

std::string joined(const std::string& prompt, const std::string& text) {
  return with_standard_input(prompt, pipe_with(text).get(), [](const std::string&) {});
}

TEST_CASE("prompt input: standard input is joined to the prompt") {
  CHECK(joined("Summarise", "a\nb\n") == "Summarise\n\na\nb");
  CHECK(joined("Summarise", "") == "Summarise");
  CHECK(joined("-", "a\nb\n") == "a\nb");
}

TEST_CASE("prompt input: '-' needs something on standard input") {
  CHECK_THROWS_WITH_AS(joined("-", "\n"), "the prompt '-': standard input is empty", Error);
}

TEST_CASE("prompt input: what cannot be read is told") {
  const UniqueFd folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK_THROWS_WITH_AS(with_standard_input("-", folder.get(), [](const std::string&) {}),
                       "reading standard input: Is a directory (EISDIR)", Error);
}

TEST_CASE("prompt input: where nothing was put, nothing is read") {
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(with_standard_input("Hi", nothing.get(), [](const std::string&) {}) == "Hi");
  CHECK(with_standard_input("Hi", -1, [](const std::string&) {}) == "Hi");
}

TEST_CASE("prompt input: who waits for a pipe hears of it") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  std::string said;
  const std::string prompt = with_standard_input("Hi", reading.get(), [&](const std::string& text) {
    said = text;
    writing.reset();
  });
  CHECK(prompt == "Hi");
  CHECK(said.find("pass </dev/null") != said.npos);
}

}  // namespace
}  // namespace nvllm::launcher
