// Chat as users see it: in a real pseudo-terminal.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/text.h"
#include "launcher/chat/testing/program_terminal.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {
namespace {

using testing::Terminal;
using testing::TextFolder;

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

TEST_CASE("a chat that is killed leaves the terminal as it was, too") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-tokens=8"}));
  REQUIRE(terminal.await("> "));
  CHECK_FALSE(terminal.echoes());
  terminal.program().signal(SIGKILL);
  CHECK(terminal.wait() == 1000 + SIGKILL);
  const std::int64_t start = now_ns();
  while (!terminal.echoes() && seconds_since(start) < 10) ::usleep(1000);
  CHECK(terminal.echoes());
  CHECK(terminal.await("\033[?2004l"));  // pasted text without marks
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
  REQUIRE(terminal.await("/clear, /reset"));
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
  terminal.type("/load " + model.path() + "\r");
  REQUIRE(terminal.await(": is a folder; pass a file that /save wrote"));
  terminal.type("/continue\r");
  REQUIRE(terminal.await("no answer to continue; ask a question"));
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
    if (i == 0) CHECK(terminal.seen().find("is full") == std::string::npos);
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

TEST_CASE("reasoning is dimmed, unless NO_COLOR says otherwise") {
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

TEST_CASE("what a template's error says cannot send commands to the terminal") {
  const TextFolder model;
  model.set_template(
      "{% if messages[0].content != 'hi' %}{{ raise_exception('no \033]0;x\007 \u009b "
      "\u202e!') }}{% endif %}x");
  Terminal terminal(model.arguments("chat", {"--max-tokens=2"}));
  REQUIRE(terminal.await("> "));
  terminal.type("ho\r");
  REQUIRE(terminal.await("no \\x1b]0;x\\x07 \\u009b \\u202e!"));
  CHECK_FALSE(terminal.shows("\033]0;x"));
  terminal.type("\004");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("results are visible on a terminal, and untouched in a pipe") {
  const TextFolder model;
  model.set_template("a\033[31m\tb\u009b\n");
  const std::vector<std::string> words = {"template", "--model=" + model.path(), "hi"};
  Terminal terminal(words);
  CHECK(terminal.await("a\\x1b[31m\tb\\u009b\r\n"));
  CHECK(terminal.wait() == 0);
  testing::Program program(words);
  CHECK(program.wait() == 0);
  CHECK(program.output().starts_with("a\033[31m\tb\u009b\n"));
}

TEST_CASE("a chat ends while it is busy with a question, and the terminal is as it was") {
  const TextFolder model;
  model.set_template("{{ 'a' * 15000000 }}");  // takes the tokenizer many seconds
  Terminal terminal(model.arguments("chat", {"--max-tokens=2"}));
  REQUIRE(terminal.await("> "));
  terminal.type("hi\r");
  terminal.watch(std::chrono::milliseconds(700));
  terminal.program().signal(SIGTERM);
  const std::int64_t begin = now_ns();
  CHECK(terminal.wait() == 128 + SIGTERM);
  CHECK(seconds_since(begin) < 4.5);
  CHECK(terminal.echoes());
}

TEST_CASE("SIGTERM ends a chat that waits, and the terminal is as it was") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {}));
  REQUIRE(terminal.await("> "));
  terminal.program().signal(SIGTERM);
  CHECK(terminal.wait() == 143);
  CHECK(terminal.echoes());
}

TEST_CASE("the first line says model, device and context") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-model-len=300"}));
  REQUIRE(terminal.await(model.path() + " on CPU, "));
  REQUIRE(terminal.await("context 300 tokens; /help shows"));
  REQUIRE(terminal.await("> "));
  terminal.type("/model\r");
  REQUIRE(terminal.await("Qwen3ForCausalLM"));
  terminal.type("/model other\r");
  REQUIRE(terminal.await("leave, and pass --model other"));
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("an answer that is cut off says so and goes on, as if it had not been cut") {
  const TextFolder model;
  const auto answer = [&](const std::string& tokens, int times) {
    Terminal terminal(
        model.arguments("chat", {"--max-tokens=" + tokens, "--ignore-eos", "--temperature=0",
                                 "--dtype=float32", "--repetition-penalty=1.5"}));
    REQUIRE(terminal.await("> "));
    terminal.type("/continue\r");
    REQUIRE(terminal.await("no answer to continue; ask a question"));
    terminal.type("tell me\r");
    REQUIRE(terminal.await("cut off at --max-tokens " + tokens + "; /continue goes on"));
    for (int i = 1; i < times; ++i) {
      terminal.type("/continue\r");
      REQUIRE(terminal.await("cut off at --max-tokens " + tokens + "; /continue goes on"));
    }
    const std::string path = model.path("saved" + tokens);
    terminal.type("/save " + path + "\r");
    REQUIRE(terminal.await("saved 2 messages"));
    terminal.type("/bye\r");
    CHECK(terminal.wait() == 0);
    return saved_content(path, 1);
  };
  const std::string whole = answer("24", 1);
  CHECK(answer("8", 3) == whole);
  // An answer that a stop string ended cannot be continued.
  CAPTURE(whole);
  const auto letter = std::ranges::find_if(whole, [](char c) { return c > ' ' && c <= '~'; });
  REQUIRE(letter != whole.end());
  Terminal terminal(model.arguments(
      "chat", {"--max-tokens=24", "--ignore-eos", "--temperature=0", "--dtype=float32",
               "--repetition-penalty=1.5", std::string("--stop=") + *letter}));
  REQUIRE(terminal.await("> "));
  terminal.type("tell me\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/continue\r");
  REQUIRE(terminal.await("the last answer ended by itself"));
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("an answer that fills the context goes on, and what is forgotten is saved") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--ignore-eos", "--max-model-len=128"}));
  REQUIRE(terminal.await("> "));
  terminal.type("first\r");
  REQUIRE(terminal.await("cut off: the context of 128 tokens is full"));
  terminal.type("/continue\r");
  REQUIRE(terminal.await("the model goes on from the last 48 tokens of the answer"));
  REQUIRE(terminal.await("cut off: the context of 128 tokens is full"));
  terminal.type("second\r");
  REQUIRE(terminal.await("the oldest 2 messages are forgotten, from \"first\" on"));
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/show\r");
  REQUIRE(terminal.await("4 messages, of which the model has forgotten 2"));
  terminal.type("/save " + model.path("saved") + "\r");
  REQUIRE(terminal.await("saved 4 messages"));
  CHECK(saved_content(model.path("saved"), 0) == "first");
  CHECK(saved_content(model.path("saved"), 2) == "second");
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("/regen asks again: another answer, the same with a seed, in place of the old one") {
  const TextFolder model;
  Terminal terminal(model.arguments("chat", {"--max-tokens=12", "--ignore-eos"}));
  REQUIRE(terminal.await("> "));
  int saved = 0;
  const auto content = [&] {
    const std::string path = model.path(str("saved", ++saved));
    terminal.type("/save " + path + "\r");
    REQUIRE(terminal.await("saved 2 messages"));
    return saved_content(path, 1);
  };
  const auto ask = [&](const std::string& line) {
    terminal.type(line + "\r");
    REQUIRE(terminal.await("TTFT "));
    return content();
  };
  terminal.type("/regen\r");
  REQUIRE(terminal.await("there is no answer yet"));
  const std::string first = ask("hi");
  CHECK(ask("/regen") != first);
  terminal.type("/set seed 5\r");
  REQUIRE(terminal.await("seed is 5"));
  const std::string seeded = ask("/regen");
  CHECK(ask("/regen") == seeded);
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("/save asks before it overwrites and knows the home folder; a path is a text") {
  const TextFolder model;
  ::setenv("HOME", model.path().c_str(), 1);
  std::ofstream(model.path("old")) << "precious";
  Terminal terminal(model.arguments("chat", {"--max-tokens=2", "--ignore-eos"}));
  REQUIRE(terminal.await("> "));
  terminal.type("/usr/bin is full\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/save ~/old\rn\r");
  REQUIRE(terminal.await("overwrite it? [y/N]"));
  REQUIRE(terminal.await("not saved"));
  std::string kept;
  std::ifstream(model.path("old")) >> kept;
  CHECK(kept == "precious");
  terminal.type("/sav ~/old\r");
  REQUIRE(terminal.await("did you mean /save?"));
  terminal.type("/save ~/old\ry\r");
  REQUIRE(terminal.await("saved 2 messages"));
  CHECK(saved_content(model.path("old"), 0) == "/usr/bin is full");
  terminal.type("/clear\r/load ~/old\r");
  REQUIRE(terminal.await("loaded 2 messages"));
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("/system shows, sets and removes; /set shows all; a stop text ends an answer") {
  const TextFolder model;
  Terminal terminal(
      model.arguments("chat", {"--max-tokens=40", "--ignore-eos", "--temperature=1"}));
  REQUIRE(terminal.await("> "));
  terminal.type("/set seed 3\r/system\r");
  REQUIRE(terminal.await("there is no system message; "));
  terminal.type("/system be brief\r/system\r");
  REQUIRE(terminal.await("is set"));
  REQUIRE(terminal.await("be brief"));
  terminal.type("/system -\r");
  REQUIRE(terminal.await("no system message any more"));
  terminal.type("/set\r");
  REQUIRE(terminal.await("max-tokens          40"));
  REQUIRE(terminal.await("seed                3"));
  terminal.type("hi\r");
  REQUIRE(terminal.await("40 tokens in "));
  terminal.type("/save " + model.path("whole") + "\r");
  REQUIRE(terminal.await("saved 2 messages"));
  const std::string whole = saved_content(model.path("whole"), 1);
  std::size_t middle = whole.size() / 2;
  while ((static_cast<unsigned char>(whole[middle]) & 0xC0) == 0x80) ++middle;
  const std::string stop = whole.substr(middle);
  terminal.type("/set stop " + nlohmann::json(stop).dump() + "\r/regen\r");
  REQUIRE(terminal.await("TTFT "));
  terminal.type("/save " + model.path("part") + "\r");
  REQUIRE(terminal.await("saved 2 messages"));
  CHECK(saved_content(model.path("part"), 1) == whole.substr(0, whole.find(stop)));
  CHECK(whole.find(stop) > 0);
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a history in a folder that does not exist is refused, and no folder is made") {
  const TextFolder model;
  const std::string file = model.path("nowhere/history");
  testing::Program program(model.arguments("chat", {"--history=" + file, "hi!"}));
  CHECK(program.wait() == 2);
  CHECK(program.errors() == "nvllm-launch: --history " + file + ": there is no folder " +
                                model.path("nowhere") +
                                "; make it, or pass another file, or off\n");
  CHECK_FALSE(std::filesystem::exists(model.path("nowhere")));
}

TEST_CASE("what is typed is there in the next chat, unless it is not to be kept") {
  const TextFolder model;
  const std::string file = model.path("history");
  {
    Terminal terminal(model.arguments("chat", {"--max-tokens=2", "--history=" + file}));
    REQUIRE(terminal.await("> "));
    terminal.type("remember me\r");
    REQUIRE(terminal.await("TTFT "));
    terminal.type("/bye\r");
    CHECK(terminal.wait() == 0);
  }
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  for (const bool kept : {true, false}) {
    Terminal terminal(
        model.arguments("chat", {"--max-tokens=2", kept ? "--history=" + file : "--history=off"}));
    REQUIRE(terminal.await("> "));
    terminal.type("\022remem");
    terminal.watch(std::chrono::milliseconds(500));
    CHECK(terminal.shows("remember me") == kept);
    terminal.type("\007\003\004");
    CHECK(terminal.wait() == 0);
  }
}

}  // namespace
}  // namespace nvllm::launcher
