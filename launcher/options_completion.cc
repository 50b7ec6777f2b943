#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_word(Options& options, const std::string& word) {
  if (!options.shell.empty()) refuse("'", word, "': is a second shell; pass one of them");
  options.shell =
      OptionValue("completion", word)
          .one_of<std::string>("shell", {{"bash", "bash"}, {"zsh", "zsh"}, {"fish", "fish"}});
}

void check(const Options& options) {
  if (options.shell.empty()) refuse("completion needs a shell: pass bash, zsh or fish");
}

}  // namespace

Command completion_options() {
  return {"completion",
          "prints what makes a shell complete this program's commands and options",
          {},
          check,
          "bash|zsh|fish",
          store_word};
}

}  // namespace nvllm::launcher
