#include "model/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "base/bounded_json.h"
#include "base/check.h"
#include "base/error.h"
#include "base/regular_file.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

namespace fs = std::filesystem;

struct BlockFormat {
  const char* name;
  std::int64_t elements;
  std::int64_t bytes;
};

// In the order of Encoding. Bytes of a quantized block: scales, offsets, upper bits, lower bits.
constexpr std::array<BlockFormat, 18> kFormats = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q8_0", 32, 2 + 32},
    {"Q4_0", 32, 2 + 16},
    {"Q4_1", 32, 4 + 16},
    {"Q5_0", 32, 2 + 4 + 16},
    {"Q5_1", 32, 4 + 4 + 16},
    {"Q4_K", 256, 4 + 12 + 128},
    {"Q5_K", 256, 4 + 12 + 32 + 128},
    {"Q6_K", 256, 128 + 64 + 16 + 2},
    {"F8_E4M3", 1, 1},
    {"I4", 8, 4},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"MXFP4", 32, 16},
    {"U8", 1, 1},
    {"MXFP4", 32, 1 + 16},
}};
static_assert(static_cast<std::size_t>(Encoding::mxfp4_blocks) + 1 == kFormats.size());

const BlockFormat& format_of(Encoding encoding) {
  return kFormats[static_cast<std::size_t>(encoding)];
}

// The names of a folder's files with this ending, sorted.
std::vector<std::string> names_in(const std::string& folder, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (std::string name = at->path().filename().string(); name.ends_with(ending)) {
      names.push_back(std::move(name));
    }
  }
  if (error) fail(folder, ": ", error.message());
  std::ranges::sort(names);
  return names;
}

// "model-" and "-of-00003.gguf" of "model-00001-of-00003.gguf"; of another name all, and nothing.
std::pair<std::string, std::string> ends_of_split(const std::string& name) {
  constexpr std::size_t kNumber = 5, kTail = sizeof("-of-00003.gguf") - 1;
  if (name.size() < kNumber + kTail) return {name, ""};
  const std::size_t tail = name.size() - kTail;
  if (name.compare(tail, 4, "-of-") != 0) return {name, ""};
  return {name.substr(0, tail - kNumber), name.substr(tail)};
}

// The path of the one GGUF file of a folder, or of its first part.
std::string only_gguf(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (ends_of_split(name) != ends_of_split(names.front())) {
      fail(folder, ": ", names.size(), " .gguf files (", printable(names.front()), ", ",
           printable(name), "); pass the path of the one that is meant");
    }
  }
  return (fs::path(folder) / names.front()).string();
}

// "model.layers.0.self_attn.k_scale" or "model.layers.0.self_attn.k_proj.k_scale"
bool is_kv_scale(std::string_view name) {
  return name.ends_with(".k_scale") || name.ends_with(".v_scale");
}

}  // namespace

Checkpoint::Checkpoint(std::vector<CheckpointFile> files, std::vector<StoredTensor> tensors,
                       std::string config_json)
    : files_(std::move(files)), config_json_(std::move(config_json)) {
  for (StoredTensor& tensor : tensors) {
    NVLLM_CHECK_LT(tensor.file, files_.size());
    auto& tensors = is_kv_scale(tensor.name) ? kv_scales_ : tensors_;
    std::string name = tensor.name;
    const std::size_t file = tensor.file, count = tensors.size();
    // Quantized ones come in the order of their names.
    const auto at = tensors.try_emplace(tensors.end(), std::move(name), std::move(tensor));
    if (tensors.size() == count) {
      fail("tensor ", printable(at->first), " is in ", files_[at->second.file].path(),
           " and again in ", files_[file].path());
    }
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const StoredTensor& Checkpoint::get(std::string_view name,
                                    const std::vector<std::int64_t>& shape) const {
  const StoredTensor* const tensor = find(name);
  if (tensor == nullptr) {
    fail(describe(), ": expected a tensor ", name, " ", shape_text(shape), ", found none among ",
         tensors_.size());
  }
  if (tensor->shape != shape) {
    const bool renamed = tensor->stored_name != tensor->name;
    fail(files_[tensor->file].path(), ": tensor ", name,
         renamed ? " (" + tensor->stored_name + ")" : "", ": expected shape ", shape_text(shape),
         ", found ", shape_text(tensor->shape));
  }
  return *tensor;
}

std::string Checkpoint::describe() const {
  if (files_.empty()) return "no files";
  const fs::path first = files_.front().path();
  if (files_.size() == 1) return first.string();
  return str(files_.size(), first.extension() == ".gguf" ? " GGUF" : " safetensors", " files in ",
             first.parent_path().string());
}

std::uint64_t Checkpoint::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes;
  return sum;
}

std::string find_gguf(const std::string& folder) {
  const std::vector<std::string> names = names_in(folder, ".gguf");
  return names.empty() ? "" : only_gguf(folder, names);
}

Checkpoint open_checkpoint(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) fail(path, ": no such folder or file");
  if (!fs::is_directory(status)) {
    if (path.ends_with(".gguf")) return open_gguf(path);
    fail(path, ": expected a folder or a .gguf file");
  }
  const std::vector<std::string> safetensors = names_in(path, ".safetensors");
  const std::vector<std::string> ggufs = names_in(path, ".gguf");
  if (!safetensors.empty() && !ggufs.empty()) {
    fail(path, ": both ", printable(safetensors.front()), " and ", printable(ggufs.front()),
         " are there; pass the path of the .gguf file, or move it away");
  }
  if (!ggufs.empty()) return open_gguf(only_gguf(path, ggufs));
  if (safetensors.empty() && !is_there(path + "/model.safetensors.index.json")) {
    fail(path, ": expected model.safetensors, model.safetensors.index.json or a .gguf file, found",
         " none of them",
         is_there(path + "/config.json")
             ? "; for random weights of its config.json pass --load-format dummy"
             : "");
  }
  return open_safetensors(path);
}

const char* name_of(Encoding encoding) {
  return format_of(encoding).name;
}

std::int64_t block_elements(Encoding encoding) {
  return format_of(encoding).elements;
}

std::int64_t block_bytes(Encoding encoding) {
  return format_of(encoding).bytes;
}

std::int64_t StoredOrder::stored(std::int64_t index) const {
  if (index < first) return index;
  const std::int64_t in_period = (index - first) % period();
  const std::int64_t block = in_period / size;
  const std::int64_t there = block % inner * outer + block / inner;
  return index - in_period + there * size + in_period % size;
}

std::int64_t StoredOrder::run_end(std::int64_t index) const {
  if (index < first) return first;
  return index + size - (index - first) % size;
}

std::uint64_t StoredTensor::row_bytes() const {
  const std::int64_t elements = shape.size() < 2 ? 1 : shape.back();
  NVLLM_CHECK(elements % block_elements(encoding) == 0, name, ": rows of ", elements);
  return static_cast<std::uint64_t>(elements / block_elements(encoding) * block_bytes(encoding));
}

std::optional<std::uint64_t> bytes_of(Encoding encoding, std::span<const std::int64_t> shape) {
  const std::int64_t block = block_elements(encoding);
  const std::int64_t row = shape.empty() ? 1 : shape.back();
  if (row % block != 0) return std::nullopt;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(row / block, block_bytes(encoding), &bytes)) return std::nullopt;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t kMaxShown = 8;
  if (shape.size() > kMaxShown) return str("[of ", shape.size(), " dimensions]");
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxLength = 120;
  return shown_text(text, kMaxLength);
}

namespace {

constexpr std::uint64_t kMaxConfigBytes = 16 << 20;

}  // namespace

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

CheckpointFile open_file(const std::string& path) {
  RegularFile file = open_regular_file(path);
  return CheckpointFile(path, std::move(file.fd), file.size);
}

void read_at(const CheckpointFile& file, std::uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file.fd(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(file.path(), ": reading ", to.size(), " bytes at ", offset);
    if (got == 0) {
      fail(file.path(), ": ends at byte ", offset, " while it is read; it had ", file.size());
    }
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text(const std::string& path, std::uint64_t limit) {
  return read_regular_file(path, limit);
}

std::string read_config_json(const std::string& path) {
  return read_text(path, kMaxConfigBytes);
}

}  // namespace nvllm::model
