// A tiny model with random weights and text: a configuration, a tokenizer, a chat template. Load it
// with its arguments().
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/test_folder.h"

namespace nvllm::testing {

class TextFolder {
 public:
  TextFolder() {
    folder_.write("config.json", read("tests/data/golden-models/qwen3-gqa-tied/config.json"));
    folder_.write("tokenizer.json", read("tokenizer/testdata/qwen.json"));
    set_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  }
  void set_template(const std::string& text) const { folder_.write("chat_template.jinja", text); }
  std::string path(const std::string& name = "") const { return folder_.path(name); }

  // The arguments of a command (empty: none) with the model, plus `more`.
  std::vector<std::string> arguments(const std::string& command,
                                     const std::vector<std::string>& more) const {
    std::vector<std::string> all;
    if (!command.empty()) all.push_back(command);
    for (const char* const word :
         {"--device=cpu", "--load-format=dummy",
          R"(--hf-overrides={"vocab_size": 705, "max_position_embeddings": 100000})",
          "--kv-cache-memory-bytes=64M", "--max-num-seqs=8"}) {
      all.emplace_back(word);
    }
    all.push_back("--model=" + path());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    if (!file) fail(path, ": not there");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  model::TestFolder folder_;
};

}  // namespace nvllm::testing
