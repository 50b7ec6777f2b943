#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "model/checkpoint_file.h"
#include "model/safetensors.h"
#include "model/stored_tensor.h"

namespace nvllm::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestIndex = 100 << 20;

std::vector<StoredTensor> read_tensors(const CheckpointFile& file) {
  std::vector<std::byte> header(std::min<std::uint64_t>(kSafetensorsLengthBytes, file.size()));
  read_at(file, 0, header);
  header.resize(safetensors_header_bytes(header, file.size(), file.path()));
  read_at(file, 0, header);
  return parse_safetensors(header, file.size(), file.path());
}

// What the index says of a file and what is in it must be the same.
void check_against_index(const std::string& index_path,
                         const std::map<std::string, std::string>& index, const std::string& name,
                         const std::vector<StoredTensor>& tensors) {
  std::map<std::string, std::string> left;
  for (const auto& entry : index) {
    if (entry.second == name) left.insert(entry);
  }
  for (const StoredTensor& tensor : tensors) {
    if (left.erase(tensor.name) != 0) continue;
    const auto elsewhere = index.find(tensor.name);
    fail(index_path, ": tensor ", printable(tensor.name), " is in ", printable(name),
         "; the index says ",
         elsewhere == index.end() ? "nothing of it" : printable(elsewhere->second));
  }
  if (!left.empty()) {
    fail(index_path, ": tensor ", printable(left.begin()->first), " should be in ", printable(name),
         ", which does not have it");
  }
}

}  // namespace

Checkpoint open_safetensors(const std::string& folder) {
  const auto path_of = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  std::vector<CheckpointFile> files;
  std::vector<StoredTensor> tensors;
  const auto add = [&](CheckpointFile file, std::vector<StoredTensor> of_file) {
    for (StoredTensor& tensor : of_file) {
      tensor.file = files.size();
      tensors.push_back(std::move(tensor));
    }
    files.push_back(std::move(file));
  };
  std::string config = read_config_json(path_of("config.json"));

  // One file goes before an index, as in transformers.
  if (const std::string path = path_of("model.safetensors"); is_there(path)) {
    CheckpointFile file = open_file(path);
    std::vector<StoredTensor> of_file = read_tensors(file);
    add(std::move(file), std::move(of_file));
    return Checkpoint(std::move(files), std::move(tensors), std::move(config));
  }
  const std::string index_path = path_of("model.safetensors.index.json");
  if (!is_there(index_path)) {
    fail(folder, ": neither model.safetensors nor model.safetensors.index.json is there");
  }
  const auto index = parse_safetensors_index(read_text(index_path, kLongestIndex), index_path);
  std::map<std::string, std::string> first_tensor;  // of each file
  for (const auto& [tensor, name] : index) first_tensor.emplace(name, tensor);
  for (const auto& entry : first_tensor) {
    const std::string& name = entry.first;
    CheckpointFile file = with_context(str(index_path, ": tensor ", printable(entry.second)),
                                       [&] { return open_file(path_of(name)); });
    std::vector<StoredTensor> of_file = read_tensors(file);
    check_against_index(index_path, index, name, of_file);
    add(std::move(file), std::move(of_file));
  }
  return Checkpoint(std::move(files), std::move(tensors), std::move(config));
}

}  // namespace nvllm::model
