// HubName: the name of a model on the Hugging Face hub, in the forms that users write:
//
//   Qwen/Qwen3-0.6B
//   Qwen/Qwen3-0.6B@v1.0         the revision is a branch, a tag or a commit
//   org/name-GGUF:Q4_K_M         one quantization of a repository of GGUF files
//   https://huggingface.co/org/name, .../tree/REVISION, .../blob/REVISION/FILE
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nvllm::launcher {

struct HubName {
  std::string repository;         // "Qwen/Qwen3-0.6B", or without an owner: "gpt2"
  std::string revision = "main";  // a path below refs/, so it never contains ".."
  std::string quantization = {};  // "Q4_K_M"; empty: not given
  std::string file = {};          // a GGUF file that a URL names; empty: none

  // The canonical form: "org/name:Q4_K_M@v2".
  std::string text() const;
};

// nullopt: the text is not such a name; it may be a path. endpoint: the hub's address, to recognize
// URLs. Throws an Error that names the text and the fix if it is an unsupported URL, or almost a
// name.
std::optional<HubName> parse_hub_name(const std::string& text, const std::string& endpoint);

// Whether a name from a file or a server is safe as a path component: no "..", no "/", no control
// characters.
bool is_safe_component(std::string_view name);
// The same for a relative path, "Q4_K_M/model.gguf".
bool is_safe_path(std::string_view path);

}  // namespace nvllm::launcher
