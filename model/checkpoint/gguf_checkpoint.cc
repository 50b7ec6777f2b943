#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/expert_tensors.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_config.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {
namespace {

// Vocabularies and merges take 2 to 8 MiB; no sound file has a header above the maximum.
constexpr std::uint64_t kFirstRead = 4 << 20;
constexpr std::uint64_t kMaxGgufHeaderBytes = 1 << 30;

GgufHeader read_header(const CheckpointFile& file, GgufArrays arrays = GgufArrays::skipped) {
  std::vector<std::byte> bytes;
  for (std::uint64_t size = kFirstRead;; size *= 4) {
    if (size > kMaxGgufHeaderBytes) {
      fail(file.path(), ": expected a header of at most ", kMaxGgufHeaderBytes, " bytes");
    }
    const std::size_t had = bytes.size();
    bytes.resize(std::min(size, file.size()));
    read_at(file, had, std::span(bytes).subspan(had));
    if (auto header = parse_gguf(bytes, file.size(), file.path(), arrays)) {
      return std::move(*header);
    }
  }
}

std::string ending_of_part(std::int64_t part, std::int64_t count) {
  std::array<char, 64> ending{};
  std::snprintf(ending.data(), ending.size(), "-%05lld-of-%05lld.gguf",
                static_cast<long long>(part + 1), static_cast<long long>(count));
  return ending.data();
}

// The path of a part beside the first one; empty if `first` is not the name of a first part.
std::string path_of_part(const std::string& first, std::int64_t part, std::int64_t count) {
  const std::string ending = ending_of_part(0, count);
  if (!first.ends_with(ending)) return "";
  return first.substr(0, first.size() - ending.size()) + ending_of_part(part, count);
}

// Checks that the file is number `part` of its model, and returns the number of files.
std::int64_t check_part(const GgufMetadata& metadata, std::int64_t part) {
  const std::int64_t count = metadata.integer("split.count").value_or(1);
  const std::int64_t found = metadata.integer("split.no").value_or(0);
  if (count < 1 || count > 99999 || found != part) {
    fail(metadata.where(), ": expected part ", part + 1, " of a model, found ", found + 1, " of ",
         count, "; pass the path of the first part, or of its folder");
  }
  return count;
}

std::vector<float> read_factors(const CheckpointFile& file, const StoredTensor& tensor) {
  if (tensor.encoding != Encoding::f32 || tensor.shape.size() != 1 || tensor.shape[0] > 4096) {
    fail(file.path(), ": tensor ", kRopeFactors, ": expected F32 of one dimension, found ",
         name_of(tensor.encoding), " ", shape_text(tensor.shape));
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor.shape[0]));
  read_at(file, tensor.offset, std::as_writable_bytes(std::span(factors)));
  return factors;
}

// Removes rope_freqs.weight, gives all other tensors Hugging Face's names, and each expert tensors
// of its own.
std::vector<StoredTensor> rename(std::vector<StoredTensor> tensors, const GgufMetadata& metadata,
                                 const GgufHeads& heads, const std::vector<CheckpointFile>& files) {
  const GgufFamily& family = gguf_family(metadata);
  std::erase_if(tensors, [](const StoredTensor& t) { return t.stored_name == kRopeFactors; });
  const std::int64_t layers = gguf_layers(metadata, family);
  for (StoredTensor& tensor : tensors) {
    const std::string& file = files[tensor.file].path();
    auto name = hugging_face_name(tensor.stored_name, family, layers);
    if (!name) {
      fail(file, ": tensor ", printable(tensor.stored_name), ": expected a tensor of a ",
           family.architecture, ", found a name unknown here");
    }
    tensor.name = std::move(*name);
    if (tensor.name.starts_with("mtp.")) continue;
    const std::string_view module = gguf_module(tensor.stored_name);
    set_stored_order(tensor, module, heads, file);
    // A row, which some files have as a vector.
    if (module == "ffn_gate_inp_shexp" && tensor.shape.size() == 1) {
      tensor.shape.insert(tensor.shape.begin(), 1);
    }
  }
  if (!family.has_experts()) return tensors;
  const std::string key = std::string(family.architecture) + ".expert_count";
  return split_gguf_experts(std::move(tensors), files, metadata.required_integer(key));
}

}  // namespace

GgufMetadata read_gguf_metadata(const std::string& path) {
  return read_header(open_file(path), GgufArrays::kept).metadata;
}

Checkpoint open_gguf(const std::string& path) {
  std::vector<CheckpointFile> files;
  files.push_back(open_file(path));
  GgufHeader header = read_header(files.front());
  const GgufHeads heads = gguf_heads(header.metadata);

  // Collects all tensors in the first part's header: the configuration is made from all of them.
  const std::int64_t parts = check_part(header.metadata, 0);
  for (std::int64_t part = 1; part < parts; ++part) {
    const std::string next = path_of_part(path, part, parts);
    if (next.empty()) {
      fail(path, ": the first of ", parts, " parts: expected a name that ends in ",
           ending_of_part(0, parts));
    }
    files.push_back(open_file(next));
    GgufHeader of_part = read_header(files.back());
    if (const std::int64_t count = check_part(of_part.metadata, part); count != parts) {
      fail(next, ": expected one of ", parts, " parts, as ", path, " says, found one of ", count);
    }
    for (StoredTensor& tensor : of_part.tensors) {
      tensor.file = files.size() - 1;
      header.tensors.push_back(std::move(tensor));
    }
  }

  std::vector<float> factors;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.stored_name == kRopeFactors) factors = read_factors(files[tensor.file], tensor);
  }
  std::string config = gguf_config_json(header, factors);
  std::vector<StoredTensor> tensors =
      rename(std::move(header.tensors), header.metadata, heads, files);
  return Checkpoint(std::move(files), std::move(tensors), std::move(config));
}

}  // namespace nvllm::model
