// Ctrl-C in a chat: the time until the prompt returns, or the program ends.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "launcher/chat/testing/program_terminal.h"
#include "launcher/testing/text_folder.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

using testing::Terminal;
using testing::TextFolder;

constexpr Nanoseconds kReach = std::chrono::milliseconds(300);
// Sanitized programs take several times as long for everything.
constexpr Nanoseconds kLimit = testing::kSanitized ? 10 * kReach : kReach;

// The shape of SmolLM2-135M, or of a model with other layers.
std::string shape_with(int layers, int intermediate_size) {
  return str(
      R"(--hf-overrides={"vocab_size": 705, "max_position_embeddings": 8192, "hidden_size": 576,)",
      R"( "num_hidden_layers": )", layers, R"(, "num_attention_heads": 9, "head_dim": 64,)",
      R"( "num_key_value_heads": 3, "intermediate_size": )", intermediate_size, "}");
}
// A CPU takes half a minute to prefill 5,000 tokens, sanitized with a fifth of the layers.
const std::string kLargeShape = shape_with(testing::kSanitized ? 6 : 30, 1536);

int tries() {
  const char* const given = std::getenv("NVLLM_CHAT_TRIES");
  return given == nullptr ? 4 : std::max(1, std::atoi(given));
}

// A prompt of at least 5,000 tokens; the number keeps it out of any cache.
std::string long_prompt(int number) {
  std::string text = str(number, ' ');
  while (text.size() < 5000) text += static_cast<char>('a' + text.size() * 7 % 26);
  return "\033[200~" + text + "\033[201~\r";
}

TEST_CASE("Ctrl-C while a prompt of 5,000 tokens is read: the prompt is back in 0.3 s") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {kLargeShape, "--kv-cache-memory-bytes=512M"}));
  REQUIRE(terminal.await("> "));
  std::mt19937 random(11);
  Nanoseconds longest{0};
  for (int i = 0; i < tries(); ++i) {
    terminal.type(long_prompt(i));
    // At a random moment of the first seconds; every other time in the first third of a second,
    // while the engine still measures how long its steps take.
    terminal.watch(std::chrono::milliseconds(50 + random() % (i % 2 == 0 ? 300 : 4000)));
    terminal.skip();
    const std::int64_t typed = now_ns();
    terminal.type("\003");
    REQUIRE(terminal.await("> "));
    longest = std::max(longest, Nanoseconds(now_ns() - typed));
  }
  MESSAGE("the longest of ", tries(), " took ",
          format_duration(static_cast<double>(longest.count()) * 1e-9));
  CHECK(longest <= kLimit);
  CHECK(terminal.shows("stopped before the first token"));
  // The engine is free as well: a short question does not wait for the long one.
  const std::int64_t wanted = now_ns();
  terminal.type("/set max-tokens 1\rhi\r");
  REQUIRE(terminal.await("TTFT "));
  CHECK(Nanoseconds(now_ns() - wanted) < 10 * kLimit);
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("Ctrl-C while a text is made into tokens: the prompt is back in 0.3 s") {
  const TextFolder model;
  // Tokenizing this takes seconds.
  const std::string text((testing::kSanitized ? std::size_t{4} : std::size_t{24}) << 20, 'a');
  std::ofstream(model.path("long.json"))
      << R"({"messages": [{"role": "user", "content": ")" << text << R"("}]})";
  Terminal terminal(model.arguments("chat", {}));
  REQUIRE(terminal.await("> "));
  terminal.type("/load " + model.path("long.json") + "\r");
  REQUIRE(terminal.await("loaded 1 messages"));
  for (const int wait_ms : {50, 500}) {
    terminal.type("hi\r");
    terminal.watch(std::chrono::milliseconds(wait_ms));
    terminal.skip();
    const std::int64_t typed = now_ns();
    terminal.type("\003");
    REQUIRE(terminal.await("stopped before the first token"));
    REQUIRE(terminal.await("> "));
    CHECK(Nanoseconds(now_ns() - typed) <= kLimit);
  }
  // The questions are not part of the conversation, and their threads are not waited for.
  terminal.type("/save " + model.path("saved") + "\r");
  REQUIRE(terminal.await("saved 1 messages"));
  const std::int64_t typed = now_ns();
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
  CHECK(Nanoseconds(now_ns() - typed) <= 4 * kLimit);
  CHECK(terminal.echoes());
}

TEST_CASE("a prompt that takes longer than a second shows how far it is") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {kLargeShape, "--kv-cache-memory-bytes=512M"}));
  REQUIRE(terminal.await("> "));
  terminal.type(long_prompt(0));
  REQUIRE(terminal.await("reading the prompt: "));
  REQUIRE(terminal.await(" left"));
  terminal.type("\003");
  REQUIRE(terminal.await("stopped before the first token"));
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("Ctrl-C while a model loads ends the program in 0.3 s") {
  const TextFolder model;
  for (const int wait_ms : {50, 200, 400}) {
    // 0.9 billion parameters
    Terminal terminal(
        model.arguments("chat", {shape_with(30, 16384), "--kv-cache-memory-bytes=64M"}));
    terminal.watch(std::chrono::milliseconds(wait_ms));
    const std::int64_t typed = now_ns();
    terminal.type("\003");
    // Killed by the signal itself, if it came before the program handled signals.
    const int ended = terminal.wait();
    CHECK((ended == 130 || ended == 1000 + SIGINT));
    CHECK(Nanoseconds(now_ns() - typed) <= kLimit);
    CHECK(terminal.echoes());
  }
}

}  // namespace
}  // namespace nvllm::launcher
