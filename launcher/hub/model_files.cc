#include "launcher/hub/model_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/bounded_json.h"
#include "base/error.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxPointer = 1024;
constexpr std::size_t kMaxShown = 160;                      // of a list in a message
constexpr std::size_t kManyTensors = std::size_t{1} << 23;  // of an index

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

bool is_pickle(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".pt");
}

// Whether a file is the configuration, tokenizer or chat template of a folder in Hugging Face's
// format.
bool is_description(std::string_view name) {
  if (name == "additional_chat_templates/tool_use.jinja") return true;
  if (name.find('/') != std::string_view::npos) return false;
  if (name.starts_with("tokenizer") || name.starts_with("chat_template")) return true;
  if (name.starts_with("config") && name.ends_with(".json")) return true;
  for (const std::string_view known :
       {"generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "vocab.txt", "merges.txt"}) {
    if (name == known) return true;
  }
  return false;
}

// "a/model" for "a/model-00001-of-00003.gguf"; for others the name without its extension.
std::string stem_of_gguf(std::string_view name) {
  constexpr std::size_t kEnding = sizeof(".gguf") - 1, kPart = sizeof("-00001-of-00003") - 1;
  name.remove_suffix(kEnding);
  if (name.size() > kPart && name.substr(name.size() - 9, 4) == "-of-") {
    name.remove_suffix(kPart);
  }
  return std::string(name);
}

// Groups shards by their common name. Image projectors and quantization statistics have the same
// extension, but are not models.
std::map<std::string, std::vector<std::string>> ggufs_of(const std::vector<std::string>& all) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const std::string& name : all) {
    const std::string file = upper(std::string_view(name).substr(name.rfind('/') + 1));
    if (!file.ends_with(".GGUF") || file.starts_with("MMPROJ")) continue;
    if (file.find("IMATRIX") != std::string::npos) continue;
    groups[stem_of_gguf(name)].push_back(name);
  }
  for (auto& [stem, names] : groups) std::ranges::sort(names);
  return groups;
}

// Whether "a/Model-Q4_K_M" contains "q4_k_m" as a complete word.
bool has_quantization(const std::string& stem, const std::string& quantization) {
  const std::string text = upper(stem), word = upper(quantization);
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) {
    const std::size_t end = at + word.size();
    const bool starts = at == 0 || !in_word(text[at - 1]);
    const bool ends = end == text.size() || (!in_word(text[end]) && text[end] != '_');
    if (starts && ends) return true;
  }
  return false;
}

// "Q4_K_M" for "Model-Q4_K_M"; the whole name if no part looks like a quantization.
std::string quantization_of(const std::string& stem) {
  std::string found;
  std::istringstream parts(stem.substr(stem.rfind('/') + 1));
  for (std::string part; std::getline(parts, part, '-');) {
    part = upper(part.substr(part.rfind('.') + 1));
    const std::size_t q = part.find('Q');
    const bool quantized = q != std::string::npos && q < 2 && q + 1 < part.size() &&
                           std::isdigit(static_cast<unsigned char>(part[q + 1])) != 0;
    if (quantized || part == "F16" || part == "BF16" || part == "F32") found = part;
  }
  return found.empty() ? stem : found;
}

std::string list_of_quantizations(const std::map<std::string, std::vector<std::string>>& groups) {
  std::set<std::string> found;
  for (const auto& [stem, names] : groups) found.insert(quantization_of(stem));
  std::string text;
  for (const std::string& one : found) text += (text.empty() ? "" : ", ") + one;
  return text;
}

ModelFiles choose_gguf(const HubName& name,
                       std::map<std::string, std::vector<std::string>> groups) {
  const std::string all = list_of_quantizations(groups);
  if (!name.file.empty()) {
    std::erase_if(groups,
                  [&](const auto& group) { return group.first != stem_of_gguf(name.file); });
    if (groups.empty()) fail("model ", name.text(), ": has no file ", name.file);
  } else if (!name.quantization.empty()) {
    std::erase_if(groups, [&](const auto& group) {
      return !has_quantization(group.first, name.quantization);
    });
    if (groups.empty()) {
      fail("model ", name.text(), ": has no GGUF file of this quantization; it has ",
           all.empty() ? "none at all" : shown_text(all, kMaxShown));
    }
  }
  if (groups.size() > 1) {
    std::string files;
    for (const auto& [stem, names] : groups) files += (files.empty() ? "" : ", ") + names.front();
    fail("model ", name.text(), ": has several GGUF files; pass one as ", name.repository, ":",
         quantization_of(groups.begin()->first), " (it has ", shown_text(all, kMaxShown),
         "), or the link of a file's page (", shown_text(files), ")");
  }
  const std::vector<std::string>& names = groups.begin()->second;
  return {.names = names, .gguf = names.front()};
}

void add_safetensors(const std::vector<std::string>& all, ModelFiles& chosen) {
  const auto has = [&](const char* name) { return std::ranges::find(all, name) != all.end(); };
  if (has(kIndexName)) {
    chosen.names.emplace_back(kIndexName);
    chosen.index = true;
  } else if (has("model.safetensors")) {
    chosen.names.emplace_back("model.safetensors");
  } else {
    for (const std::string& name : all) {
      // consolidated: the same weights under Mistral's own names.
      const bool other = name.starts_with("consolidated") || name.starts_with("adapter_");
      if (name.ends_with(".safetensors") && name.find('/') == std::string::npos && !other) {
        chosen.names.push_back(name);
      }
    }
  }
}

[[noreturn]] void refuse_pickle(const std::string& who, const std::string& name) {
  fail(who, ": its weights are PyTorch's (", name,
       "), which are not read, because such a file can run any code; pass a model with "
       "safetensors or GGUF files, or convert it with transformers' "
       "save_pretrained(safe_serialization=True)");
}

// The size recorded in a git-lfs pointer file; empty: the file is none.
std::string pointed_size(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kMaxPointer) return "";
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("version https://git-lfs.github.com/")) {
    return "";
  }
  while (std::getline(file, line)) {
    if (!line.starts_with("size ")) continue;
    return format_bytes(std::strtoull(line.c_str() + 5, nullptr, 10));
  }
  return "another size";
}

void check_pointer(const fs::path& path) {
  const std::string size = pointed_size(path);
  if (size.empty()) return;
  const fs::path folder = path.parent_path();
  fail(path.string(), ": is a pointer of git-lfs, and not the file of ", size,
       " that it stands for; run 'git lfs pull' in ", folder.empty() ? "." : folder.string(),
       ", or pass the model's id");
}

}  // namespace

ModelFiles choose_files(const HubName& name, const std::vector<std::string>& all, bool weights) {
  auto groups = ggufs_of(all);
  if (!name.quantization.empty() || !name.file.empty()) {
    return choose_gguf(name, std::move(groups));
  }
  ModelFiles chosen;
  add_safetensors(all, chosen);
  if (chosen.names.empty() && !groups.empty()) {
    return choose_gguf(name, std::move(groups));
  }
  const auto pickle = std::ranges::find_if(all, is_pickle);
  if (chosen.names.empty() && weights) {
    if (pickle != all.end()) refuse_pickle("model " + name.text(), *pickle);
    fail("model ", name.text(), ": has neither safetensors nor GGUF files; pass a model that does");
  }
  if (!weights) chosen = {};
  for (const std::string& file : all) {
    if (is_description(file)) chosen.names.push_back(file);
  }
  if (std::ranges::find(chosen.names, "config.json") == chosen.names.end()) {
    fail("model ", name.text(), ": has no config.json, so it is no model that can be loaded; ",
         "pass one that is in the form of transformers, or a GGUF file");
  }
  return chosen;
}

std::vector<std::string> files_of_index(std::string_view json) {
  std::set<std::string> names;
  try {
    const nlohmann::json index = read_bounded_json(
        json, {.max_values = kManyTensors, .max_keys = kManyTensors, .repeated_names = true});
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      names.insert(file.get<std::string>());
    }
  } catch (const BadJson& error) {
    fail(kIndexName, ": is no index of safetensors: ", error.what());
  } catch (const nlohmann::json::exception&) {
    fail(kIndexName, ": is no index of safetensors: it has no \"weight_map\" of names of files");
  }
  for (const std::string& name : names) {
    if (!is_safe_path(name))
      fail(kIndexName, ": names '", shown_text(name), "', which is no file beside it");
  }
  return {names.begin(), names.end()};
}

void check_model_path(const std::string& path, bool weights) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return check_pointer(path);
  std::string pickle;
  bool readable = false;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool tensors = name.ends_with(".safetensors") || name.ends_with(".gguf");
    readable = readable || tensors || name == kIndexName;
    if (is_pickle(name) && (pickle.empty() || name < pickle)) pickle = name;
    if ((tensors && weights) || name.starts_with("tokenizer")) check_pointer(at->path());
  }
  if (weights && !readable && !pickle.empty()) refuse_pickle(path, pickle);
}

}  // namespace nvllm::launcher
