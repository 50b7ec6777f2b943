#include "model/checkpoint/safetensors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/thread.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/quantized_weight.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

// The limit that the format itself sets.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Nested objects. A header needs three levels and the index two; __metadata__ may have more.
constexpr std::size_t kMaxDepth = 16;
// A tensor needs some eight values, so this is of a million of them; each takes some memory.
constexpr std::size_t kMaxValues = std::size_t{1} << 23;

// Strict: nothing after the value, no key twice in one object.
Json parse_object(std::string_view text, const std::string& where) {
  const JsonLimits limits{.max_bytes = kMaxHeaderBytes,
                          .max_depth = kMaxDepth,
                          .max_values = kMaxValues,
                          .max_keys = kMaxValues};
  try {
    Json json = read_bounded_json(text, limits);
    if (!json.is_object()) fail(where, ": expected a JSON object, found ", json.type_name());
    return json;
  } catch (const BadJson& error) {
    switch (error.kind()) {
      case BadJson::Kind::syntax:
        fail(where, ": not JSON in UTF-8 from byte ", error.byte(), " of ", text.size(), " on");
      case BadJson::Kind::number: fail(where, ": not JSON: a number that is out of range");
      default: fail(where, ": ", error.what());
    }
  }
}

std::optional<Encoding> encoding_of(std::string_view dtype) {
  for (const Encoding encoding : {Encoding::f32, Encoding::f16, Encoding::bf16, Encoding::f8_e4m3,
                                  Encoding::i32, Encoding::i64, Encoding::u8}) {
    if (dtype == name_of(encoding)) return encoding;
  }
  return std::nullopt;
}

[[noreturn]] void fail_value(const std::string& where, std::string_view expected,
                             const Json& found) {
  fail(where, ": expected ", expected, ", found ", printable(json_ascii(found)));
}

// A list of whole numbers of at most 63 bits, or an Error that names the field. `where` returns the
// text before it.
std::vector<std::int64_t> numbers_at(const Json& info, const char* field, const auto& where) {
  constexpr auto kMax = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  const auto found = info.find(field);
  if (found == info.end()) fail(where(), ": no \"", field, "\"");
  std::vector<std::int64_t> numbers;
  for (const Json& number : *found) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMax) break;
    numbers.push_back(number.get<std::int64_t>());
  }
  if (!found->is_array() || numbers.size() != found->size()) {
    fail_value(str(where(), ": \"", field, '"'), "a list of whole numbers", *found);
  }
  return numbers;
}

StoredTensor parse_tensor(const std::string& name, const Json& info, std::uint64_t data_begin,
                          std::uint64_t file_size, const std::string& file) {
  const auto where = [&] { return str(file, ": tensor ", printable(name)); };
  if (!info.is_object()) fail(where(), ": expected an object, found ", info.type_name());
  const auto dtype = info.find("dtype");
  if (dtype == info.end() || !dtype->is_string()) fail(where(), ": no \"dtype\"");
  const auto encoding = encoding_of(dtype->get_ref<const std::string&>());
  if (!encoding) {
    fail(where(), ": expected dtype F32, F16, BF16, F8_E4M3, I32, I64 or U8, found ",
         printable(dtype->get<std::string>()));
  }
  StoredTensor tensor;
  tensor.name = tensor.stored_name = name;
  tensor.encoding = *encoding;
  tensor.shape = numbers_at(info, "shape", where);

  const std::vector<std::int64_t> offsets = numbers_at(info, "data_offsets", where);
  const std::uint64_t data_bytes = file_size - data_begin;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    fail(where(), ": \"data_offsets\": expected [begin, end], found ", shape_text(offsets));
  }
  if (static_cast<std::uint64_t>(offsets[1]) > data_bytes) {
    fail(where(), ": ends at byte ", offsets[1], " of the data, which has ", data_bytes,
         ": the file is truncated or its header wrong");
  }
  tensor.offset = data_begin + static_cast<std::uint64_t>(offsets[0]);
  tensor.bytes = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  const auto expected = bytes_of(tensor.encoding, tensor.shape);
  if (!expected) fail(where(), ": shape ", shape_text(tensor.shape), " is too large to exist");
  if (tensor.bytes != *expected) {
    fail(where(), ": ", name_of(tensor.encoding), " ", shape_text(tensor.shape), ": expected ",
         *expected, " bytes, found ", tensor.bytes);
  }
  return tensor;
}

// Sorts the tensors by offset, and checks that together they cover the data, each byte once.
void check_layout(std::vector<StoredTensor>& tensors, std::uint64_t data_begin,
                  std::uint64_t file_size, const std::string& file) {
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t end = data_begin;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset != end) {
      fail(file, ": tensor ", printable(tensor.name), ": begins at byte ",
           tensor.offset - data_begin, " of the data, ",
           tensor.offset < end ? "inside the one before, which ends at "
                               : "after a hole from the end of the one before at ",
           end - data_begin);
    }
    end += tensor.bytes;
  }
  if (end != file_size) {
    fail(file, ": the tensors end at byte ", end, " of the file, which has ", file_size);
  }
}

// Multimodal models call their language model's tensors by one of two prefixes; here they have the
// names that they have alone.
void rename_language_model(std::vector<StoredTensor>& tensors) {
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
      {"model.language_model.", "model."}};
  for (StoredTensor& tensor : tensors) {
    for (const auto& [prefix, alone] : kPrefixes) {
      if (!tensor.name.starts_with(prefix)) continue;
      tensor.name.replace(0, prefix.size(), alone);
      break;
    }
  }
}

// The weight of a depthwise convolution has an axis of one input channel in the middle, which is
// left out: [channels, width].
void flatten_convolutions(std::vector<StoredTensor>& tensors) {
  for (StoredTensor& tensor : tensors) {
    if (!tensor.name.ends_with(".conv1d.weight") || tensor.shape.size() != 3) continue;
    if (tensor.shape[1] == 1) tensor.shape.erase(tensor.shape.begin() + 1);
  }
}

namespace fs = std::filesystem;

std::vector<StoredTensor> read_tensors(const CheckpointFile& file) {
  std::vector<std::byte> header(std::min<std::uint64_t>(kSafetensorsLengthBytes, file.size()));
  read_at(file, 0, header);
  header.resize(safetensors_header_bytes(header, file.size(), file.path()));
  read_at(file, 0, header);
  return parse_safetensors(header, file.size(), file.path());
}

// The tensors of each file. Headers of many files are read at the same time: where there are
// experts, they list tens of thousands of tensors.
std::vector<std::vector<StoredTensor>> read_tensors(std::span<const CheckpointFile> files) {
  constexpr std::size_t kMaxThreads = 16;
  std::vector<std::vector<StoredTensor>> tensors(files.size());
  std::vector<std::exception_ptr> errors(files.size());
  std::atomic<std::size_t> next = 0;
  const auto read = [&] {
    for (std::size_t i; (i = next++) < files.size();) {
      try {
        tensors[i] = read_tensors(files[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
      for (StoredTensor& tensor : tensors[i]) tensor.file = i;
    }
  };
  {
    std::vector<std::jthread> threads;
    while (threads.size() + 1 < std::min(files.size(), kMaxThreads)) {
      threads.push_back(start_thread<std::jthread>("for headers of files", read));
    }
    read();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return tensors;
}

// Checks that the index and the file list the same tensors. `listed`: how many of the file's the
// index lists.
void check_against_index(const std::string& index_path,
                         const std::map<std::string, std::string>& index, const std::string& name,
                         std::size_t listed, std::span<const StoredTensor> tensors) {
  for (const StoredTensor& tensor : tensors) {
    const auto entry = index.find(tensor.name);
    if (entry != index.end() && entry->second == name) continue;
    fail(index_path, ": tensor ", printable(tensor.name), " is in ", printable(name),
         "; the index says ", entry == index.end() ? "nothing of it" : printable(entry->second));
  }
  if (tensors.size() == listed) return;
  std::set<std::string_view> there;
  for (const StoredTensor& tensor : tensors) there.insert(tensor.name);
  for (const auto& [tensor, file] : index) {
    if (file != name || there.contains(tensor)) continue;
    fail(index_path, ": tensor ", printable(tensor), " should be in ", printable(name),
         ", which does not have it");
  }
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::span<const std::byte> first, std::uint64_t file_size,
                                       const std::string& where) {
  if (first.size() < kSafetensorsLengthBytes) {
    fail(where, ": not a safetensors file: expected 8 bytes at least, found ", first.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof(length));
  if (length > kMaxHeaderBytes || length > file_size - kSafetensorsLengthBytes) {
    fail(where, ": its first 8 bytes say that the header has ", length, " bytes; the file has ",
         file_size, ": not a safetensors file, or truncated");
  }
  return kSafetensorsLengthBytes + length;
}

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> header,
                                            std::uint64_t file_size, const std::string& where) {
  const std::uint64_t data_begin = safetensors_header_bytes(header, file_size, where);
  const std::string_view text(
      reinterpret_cast<const char*>(header.data()) + kSafetensorsLengthBytes,
      data_begin - kSafetensorsLengthBytes);
  const Json json = parse_object(text, str(where, ": header"));
  std::vector<StoredTensor> tensors;
  for (const auto& [name, info] : json.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(parse_tensor(name, info, data_begin, file_size, where));
  }
  check_layout(tensors, data_begin, file_size, where);
  return tensors;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& where) {
  Json json = parse_object(text, where);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) fail(where, ": no object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (auto& [tensor, file] : map->get_ref<Json::object_t&>()) {
    std::string* const name = file.get_ptr<std::string*>();
    if (name == nullptr || !name->ends_with(".safetensors") ||
        name->find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      fail_value(str(where, ": tensor ", printable(tensor)), "the name of a file beside the index",
                 file);
    }
    files.emplace_hint(files.end(), tensor, std::move(*name));
  }
  if (files.empty()) fail(where, ": \"weight_map\" is empty");
  return files;
}

Checkpoint open_safetensors(const std::string& folder) {
  const auto path_of = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  const std::string config_path = path_of("config.json");
  std::string config = read_config_json(config_path);
  std::vector<CheckpointFile> files;
  std::vector<std::vector<StoredTensor>> of_files;
  // A single file takes precedence over an index, as in transformers.
  if (const std::string path = path_of("model.safetensors"); is_there(path)) {
    files.push_back(open_file(path));
    of_files = read_tensors(files);
  } else {
    const std::string index_path = path_of("model.safetensors.index.json");
    if (!is_there(index_path)) {
      fail(folder, ": neither model.safetensors nor model.safetensors.index.json is there");
    }
    const auto index = parse_safetensors_index(read_text(index_path, kMaxHeaderBytes), index_path);
    std::map<std::string, std::vector<const std::string*>> listed;  // tensors of each file
    for (const auto& [tensor, name] : index) listed[name].push_back(&tensor);
    for (const auto& [name, tensors] : listed) {
      files.push_back(with_context(str(index_path, ": tensor ", printable(*tensors.front())),
                                   [&, &name = name] { return open_file(path_of(name)); }));
    }
    of_files = read_tensors(files);
    for (auto tensors = of_files.begin(); const auto& [name, names] : listed) {
      check_against_index(index_path, index, name, names.size(), *tensors++);
    }
  }

  std::vector<StoredTensor> tensors;
  for (std::vector<StoredTensor>& of_file : of_files) {
    std::ranges::move(of_file, std::back_inserter(tensors));
  }
  tensors = join_quantized(std::move(tensors), files, config, config_path);
  rename_language_model(tensors);
  flatten_convolutions(tensors);
  return Checkpoint(std::move(files), std::move(tensors), std::move(config));
}

}  // namespace nvllm::model
