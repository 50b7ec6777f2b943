// GGUF versions 2 and 3: metadata, then a list of tensors, then their data. The parser takes bytes,
// so that it can be fuzzed, and checks every number against the available bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

// Whether all elements of arrays are kept. Only the tokenizer's vocabulary, which is long, needs
// that. Arrays of numbers of at most kGgufLayers elements, which may be per layer, are always kept.
inline constexpr std::uint64_t kGgufLayers = 4096;
enum class GgufArrays { skipped, kept };

// An array of texts or of numbers; both are empty if the elements were skipped.
struct GgufArray {
  static constexpr std::size_t kMaxBracketed = 1 << 16;

  std::uint64_t count = 0;
  std::vector<std::string> texts;
  std::vector<double> numbers;
  // Texts in angle brackets, as special tokens are, and their indices. They are never skipped, but
  // for those after the first kMaxBracketed.
  std::vector<std::pair<std::string, std::int64_t>> bracketed;
};

// Unsigned, signed and floating-point types are held in the widest type of their kind.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

class GgufMetadata {
 public:
  explicit GgufMetadata(std::string where) : where_(std::move(where)) {}
  const std::string& where() const { return where_; }  // the file, for errors

  void insert(std::string key, GgufValue value);  // throws an Error if the key exists already

  // The value of a key; nullopt: there is no such key. Throws an Error for a value of another kind.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // finite; integers too
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  bool has_array(std::string_view key) const;
  // Arrays whose elements were kept.
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  // The index of a text in angle brackets, "<eos>", in any array of texts; nullopt: there is none.
  std::optional<std::int64_t> index_of(std::string_view key, std::string_view text) const;

  // The same for keys that must be present.
  std::int64_t required_integer(std::string_view key) const;
  double required_number(std::string_view key) const;
  std::string required_text(std::string_view key) const;

 private:
  const GgufValue* find(std::string_view key) const;
  template <typename T>
  const T* find_kind(std::string_view key, std::string_view expected) const;
  template <typename T>
  T required(std::string_view key, std::optional<T> value) const;
  [[noreturn]] void fail_kind(std::string_view key, std::string_view expected) const;

  std::string where_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufHeader {
  GgufMetadata metadata;
  // Dimensions are [rows, columns]; names are the file's; offsets count from the file's beginning.
  // Tensors are within the file and do not overlap.
  std::vector<StoredTensor> tensors;
};

// `bytes`: the beginning of a file of file_size bytes. nullopt: the header is longer; call again
// with more.
std::optional<GgufHeader> parse_gguf(std::span<const std::byte> bytes, std::uint64_t file_size,
                                     const std::string& where,
                                     GgufArrays arrays = GgufArrays::skipped);

// Reads the metadata of a file, with all arrays.
GgufMetadata read_gguf_metadata(const std::string& path);

}  // namespace nvllm::model
