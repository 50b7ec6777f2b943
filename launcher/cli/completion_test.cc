// Shell completion: the scripts are run by the shells themselves.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "model/testing/test_folder.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using Words = std::vector<std::string>;

// Output of a shell command: sorted words without duplicates.
Words output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             &::pclose);
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> bytes;
  while (const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), pipe.get())) {
    text.append(bytes.data(), got);
  }
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool installed(const std::string& shell) {
  return !output_of("command -v " + shell).empty();
}

class Shell {
 public:
  explicit Shell(const std::string& name) : name_(name) {
    folder_.write("script", completion_script(name));
    folder_.write("model.gguf", "");
    folder_.write("a file", "");
  }

  // The words that bash offers when Tab is pressed after the last of these words ("nvllm-launch"
  // comes first).
  Words bash(const Words& words) const {
    std::string line = "words=(nvllm-launch";
    for (const std::string& word : words) line += " '" + word + "'";
    line += ")";
    folder_.write("run", "cd '" + folder_.path("") + "'; . ./script\n" + line +
                             "\nCOMP_WORDS=(\"${words[@]}\"); COMP_CWORD=$((${#words[@]} - 1))\n"
                             "_nvllm_launch\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    return output_of("bash --norc '" + folder_.path("run") + "' 2>&1");
  }

  Words fish(const std::string& line) const {
    return output_of(
        "cd '" + folder_.path("") +
        "'; HOME=$PWD fish --no-config -c 'source script; complete -C \"nvllm-launch " + line +
        "\"' 2>&1");
  }

  // zsh completes in interactive shells only: one is run in a pseudo-terminal, and the offered
  // words are recorded.
  Words zsh(const std::string& line) const {
    folder_.write("setup", R"(
autoload -Uz compinit
compinit -u -D
source ./script
compadd() {
  [[ ${@[1,(i)(-|--)]} == *-[OAD]* ]] && { builtin compadd "$@"; return }
  local -a hits
  builtin compadd -A hits "$@"
  print -rl -- $hits >>offered
  builtin compadd "$@"
}
finish() { : >ended; exit }
comppostfuncs=(finish)
bindkey '^I' complete-word
: >ready
)");
    folder_.write("run", R"(
zmodload zsh/zpty || exit
zpty z zsh -f -i
await() { repeat 1000; do [[ -e $1 ]] && return; zpty -r -t z nothing; sleep 0.02; done }
zpty -w z 'source ./setup'
await ready
zpty -w -n z "nvllm-launch $1"$'\t'
await ended
cat offered
)");
    return output_of("cd '" + folder_.path("") +
                     "'; rm -f ready offered ended; HOME=$PWD zsh -f run '" + line + "' 2>&1");
  }

  bool parses() const {
    return output_of(name_ + " -n '" + folder_.path("script") + "' 2>&1").empty();
  }

 private:
  std::string name_;
  model::TestFolder folder_;
};

Words options_of(const std::string& name) {
  Words names = {"--help"};
  for (const Command& command : commands()) {
    if (command.name != name) continue;
    for (const OptionRow& row : command.rows) {
      names.emplace_back(row.name);
      if (row.second_name != nullptr) names.emplace_back(row.second_name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("bash offers commands, and the second words of those that have two") {
  const Shell shell("bash");
  CHECK(shell.parses());
  const Words first = shell.bash({""});
  for (const Command& command : commands()) {
    const std::string name = command.name;
    CHECK(has(first, name.substr(0, name.find(' '))));
  }
  CHECK(shell.bash({"de"}) == Words{"detokenize"});
  CHECK(shell.bash({"bench", ""}) ==
        Words{"--help", "latency", "long", "serve", "startup", "throughput"});
  CHECK(shell.bash({"bench", "la"}) == Words{"latency"});
}

TEST_CASE("bash offers every option of the command, and no other") {
  const Shell shell("bash");
  for (const char* const name : {"chat", "generate", "selftest", "doctor", "tokenize"}) {
    CHECK(shell.bash({name, "--"}) == options_of(name));
  }
  CHECK(shell.bash({"bench", "latency", "--"}) == options_of("bench latency"));
  CHECK(shell.bash({"generate", "--tp", "2", "--max-num-s"}) == Words{"--max-num-seqs"});
  CHECK(has(shell.bash({"--"}), "--version"));
  CHECK(has(shell.bash({"--tp", "2", "--"}), "--system"));
}

TEST_CASE("bash offers what an option may be, as a word of its own or behind =") {
  const Shell shell("bash");
  CHECK(shell.bash({"chat", "--device", ""}) == Words{"auto", "cpu", "cuda"});
  CHECK(shell.bash({"chat", "--device", "="}) == Words{"auto", "cpu", "cuda"});
  CHECK(shell.bash({"chat", "--device", "=", "cu"}) == Words{"cuda"});
  CHECK(shell.bash({"--dtype", "b"}) == Words{"bfloat16"});
  CHECK(shell.bash({"chat", "--tp", ""}).empty());
  CHECK(shell.bash({"completion", ""}) == Words{"bash", "fish", "zsh"});
  CHECK(shell.bash({"completion", "--"}) == Words{"--config", "--help"});
}

TEST_CASE("bash offers files where files are taken, and nowhere else") {
  const Shell shell("bash");
  CHECK(shell.bash({"inspect", "--model", "mod"}) == Words{"model.gguf"});
  CHECK(shell.bash({"inspect", "--model", "=", "mod"}) == Words{"model.gguf"});
  CHECK(shell.bash({"tokenize", "--input", "a"}) == Words{"a", "file"});  // one name contains a
                                                                          // space
  CHECK(shell.bash({"tokenize", "mod"}).empty());
}

TEST_CASE("fish offers the same") {
  if (!installed("fish")) SKIP_TEST("needs fish");
  const Shell shell("fish");
  CHECK(shell.parses());
  CHECK(has(shell.fish("de"), "detokenize"));
  CHECK(has(shell.fish("bench "), "throughput"));
  CHECK_FALSE(has(shell.fish("bench "), "chat"));
  const Words offered = shell.fish("generate --");
  for (const std::string& name : options_of("generate")) CHECK(has(offered, name));
  CHECK_FALSE(has(offered, "--checksums"));
  CHECK(has(shell.fish("chat --device "), "cuda"));
  CHECK(has(shell.fish("bench latency --dtype="), "--dtype=bfloat16"));
  CHECK(has(shell.fish("inspect --model mod"), "model.gguf"));
  CHECK(has(shell.fish("--tp 2 --sys"), "--system"));
  CHECK(has(shell.fish("completion "), "zsh"));
}

TEST_CASE("zsh offers the same") {
  if (!installed("zsh")) SKIP_TEST("needs zsh");
  const Shell shell("zsh");
  CHECK(shell.parses());
  CHECK(has(shell.zsh("de"), "detokenize"));
  CHECK(has(shell.zsh("bench "), "throughput"));
  const Words offered = shell.zsh("selftest --");
  for (const std::string& name : options_of("selftest")) CHECK(has(offered, name));
  CHECK(has(shell.zsh("chat --device="), "cuda"));
  CHECK(has(shell.zsh("bench latency --dtype b"), "bfloat16"));
  CHECK(has(shell.zsh("--tp 2 --sys"), "--system"));
  CHECK(has(shell.zsh("inspect --model mod"), "model.gguf"));
  CHECK(has(shell.zsh("completion "), "fish"));
}

}  // namespace nvllm::launcher
