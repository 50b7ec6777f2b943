// HubName: the name of a model on the Hugging Face hub, as people write it:
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
  std::string repository;         // "Qwen/Qwen3-0.6B", or a name alone: "gpt2"
  std::string revision = "main";  // names a path below refs/, so it never holds ".."
  std::string quantization = {};  // "Q4_K_M"; empty: not given
  std::string file = {};          // a GGUF file that a link names; empty: none

  // As it was written, without what is not needed: "org/name:Q4_K_M@v2".
  std::string text() const;
};

// Nothing: the text is no such name; it may be a path. endpoint: the hub's own address, for links.
// Throws an Error that names the text and the fix if it is a link, or nearly a name, that cannot be
// followed.
std::optional<HubName> parse_hub_name(const std::string& text, const std::string& endpoint);

// Whether a name that comes from a file or a server may be a component of a path: no "..", no "/",
// no control characters.
bool is_safe_component(std::string_view name);
// The same for a relative path, "Q4_K_M/model.gguf".
bool is_safe_path(std::string_view path);

}  // namespace nvllm::launcher
