#include "launcher/chat/chat_commands.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace nvllm::launcher {
namespace {

using Kind = ChatLine::Kind;
using Texts = std::vector<std::string>;

TEST_CASE("only the names of commands are commands") {
  for (const char* const text :
       {"hello", "/usr/bin is full", "/etc/passwd", "/tmp", "/dev/null?", "/", "//", "/ save",
        " /save x", "what is /save", "/help me\nwith these lines", "/24 or /16?", "/home"}) {
    CHECK_MESSAGE(read_chat_line(text).kind == Kind::text, text);
  }
}

TEST_CASE("every command is one by its name and its alias, with what follows it") {
  for (const CommandName& command : command_names()) {
    const ChatLine line = read_chat_line(std::string(command.name) + "  a b ");
    CHECK(line.kind == Kind::command);
    CHECK(line.name == command.name);
    CHECK(line.argument == "a b");
    if (command.alias == nullptr) continue;
    CHECK(read_chat_line(command.alias).name == command.name);
  }
  CHECK(read_chat_line("/system one\ntwo").argument == "one\ntwo");
}

TEST_CASE("a command with a wrong letter is no text") {
  for (const auto& [typed, meant] : {std::pair{"/sav", "/save"},
                                     {"/hepl", "/help"},
                                     {"/reste", "/reset"},
                                     {"/sytem x", "/system"},
                                     {"/contineu", "/continue"},
                                     {"/exti", "/exit"}}) {
    const ChatLine line = read_chat_line(typed);
    CHECK(line.kind == Kind::misspelt);
    CHECK(line.name == meant);
  }
}

TEST_CASE("Tab offers commands and the names of settings, and nothing in a text") {
  CHECK(complete_command("/sa") == Texts{"/save "});
  CHECK(complete_command("/re") == Texts{"/regen", "/reset"});
  CHECK(complete_command("/set see") == Texts{"/set seed "});
  CHECK(complete_command("/set te") == Texts{"/set temperature "});
  CHECK(complete_command("sa").empty());
  CHECK(complete_command("/save x").empty());
}

TEST_CASE("the help names every command and fits a terminal") {
  const std::string help = commands_help();
  for (const CommandName& command : command_names()) {
    CHECK(help.find(command.name) != std::string::npos);
  }
  std::size_t begin = 0;
  while (begin < help.size()) {
    const std::size_t end = std::min(help.find('\n', begin), help.size());
    CHECK(end - begin <= 80);
    begin = end + 1;
  }
}

}  // namespace
}  // namespace nvllm::launcher
