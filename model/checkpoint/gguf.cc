#include "model/checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

constexpr std::uint64_t kMinPairBytes = 8 + 4 + 1;        // key, type, one byte
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // name, dimensions, type, offset
constexpr std::size_t kMaxNameBytes = 1 << 16;
constexpr std::uint32_t kMaxDimensions = 4;

// Thrown where the header goes on beyond the bytes that were read so far.
struct MoreNeeded {};

// Reads little-endian values one after the other.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::uint64_t file_size, const std::string& where)
      : bytes_(bytes), file_size_(file_size), where_(where) {}

  std::uint64_t at() const { return at_; }

  template <typename T>
  T read(std::string_view what) {
    require(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view read_string(std::string_view what) {
    const auto length = read<std::uint64_t>(what);
    require(length, what);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  // A key or a name: never as long as a file.
  std::string read_name(std::string_view what) {
    const std::string_view name = read_string(what);
    if (name.size() > kMaxNameBytes) {
      fail(where_, ": ", what, " at byte ", at_ - name.size(), ": expected at most ", kMaxNameBytes,
           " bytes, found ", name.size());
    }
    return std::string(name);
  }

  void skip(std::uint64_t count, std::uint64_t bytes_each, std::string_view what) {
    if (count > left() / bytes_each) fail_truncated(count, bytes_each, what);
    require(count * bytes_each, what);
    at_ += count * bytes_each;
  }

 private:
  std::uint64_t left() const { return file_size_ - at_; }

  [[noreturn]] void fail_truncated(std::uint64_t count, std::uint64_t bytes_each,
                                   std::string_view what) const {
    fail(where_, ": ", what, " at byte ", at_, " needs ", count,
         bytes_each == 1 ? " bytes" : str(" times ", bytes_each, " bytes"), ", the file has ",
         left(), " more: truncated or corrupt");
  }

  void require(std::uint64_t bytes, std::string_view what) const {
    if (bytes > left()) fail_truncated(bytes, 1, what);
    if (bytes > bytes_.size() - at_) throw MoreNeeded{};
  }

  std::span<const std::byte> bytes_;
  std::uint64_t file_size_;
  const std::string& where_;
  std::uint64_t at_ = 0;
};

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// Bytes of a value of each type; 0 if they depend on the value, or the type is unknown.
std::uint64_t size_of_type(std::uint32_t type) {
  constexpr std::array<std::uint64_t, 13> kSizes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kSizes.size() ? kSizes[type] : 0;
}

// The shortest decimal number that gives this float32: 1e-05, not 9.99999974737875e-06.
double widened(float value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size() - 1, value);
  *end.ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

using Scalar = std::variant<std::uint64_t, std::int64_t, double, bool>;

// `type`: one that has a size.
Scalar read_scalar(Cursor& cursor, std::uint32_t type, const std::string& what) {
  switch (type) {
    case kU8: return std::uint64_t{cursor.read<std::uint8_t>(what)};
    case kU16: return std::uint64_t{cursor.read<std::uint16_t>(what)};
    case kU32: return std::uint64_t{cursor.read<std::uint32_t>(what)};
    case kU64: return cursor.read<std::uint64_t>(what);
    case kI8: return std::int64_t{cursor.read<std::int8_t>(what)};
    case kI16: return std::int64_t{cursor.read<std::int16_t>(what)};
    case kI32: return std::int64_t{cursor.read<std::int32_t>(what)};
    case kI64: return cursor.read<std::int64_t>(what);
    case kF32: return widened(cursor.read<float>(what));
    case kBool: return cursor.read<std::uint8_t>(what) != 0;
    default: return cursor.read<double>(what);
  }
}

GgufArray read_array(Cursor& cursor, GgufArrays arrays, const std::string& what,
                     const std::string& where) {
  bool kept = arrays == GgufArrays::kept;
  const auto type = cursor.read<std::uint32_t>(what);
  GgufArray array;
  array.count = cursor.read<std::uint64_t>(what);
  kept |= type != kString && array.count <= kGgufLayers;
  if (type == kString) {
    for (std::uint64_t i = 0; i < array.count; ++i) {
      const std::string_view text = cursor.read_string(what);
      if (kept) array.texts.emplace_back(text);
      if (text.starts_with('<') && text.ends_with('>') &&
          array.bracketed.size() < GgufArray::kMaxBracketed) {
        array.bracketed.emplace_back(text, static_cast<std::int64_t>(i));
      }
    }
  } else if (kept && size_of_type(type) != 0) {
    for (std::uint64_t i = 0; i < array.count; ++i) {
      array.numbers.push_back(std::visit([](auto value) { return static_cast<double>(value); },
                                         read_scalar(cursor, type, what)));
    }
  } else if (const std::uint64_t size = size_of_type(type); size != 0) {
    cursor.skip(array.count, size, what);
  } else {
    fail(where, ": ", what, ": an array of value type ", type, ", which is unknown here");
  }
  return array;
}

GgufValue read_value(Cursor& cursor, GgufArrays arrays, const std::string& what,
                     const std::string& where) {
  const auto type = cursor.read<std::uint32_t>(what);
  if (type == kString) return std::string(cursor.read_string(what));
  if (type == kArray) return read_array(cursor, arrays, what, where);
  if (size_of_type(type) == 0) fail(where, ": ", what, ": value type ", type, " is unknown here");
  return std::visit([](auto value) { return GgufValue(value); }, read_scalar(cursor, type, what));
}

Encoding encoding_of(std::uint32_t type, const std::string& tensor) {
  constexpr std::pair<std::uint32_t, Encoding> kKnown[] = {
      {0, Encoding::f32},   {1, Encoding::f16},   {2, Encoding::q4_0},
      {3, Encoding::q4_1},  {6, Encoding::q5_0},  {7, Encoding::q5_1},
      {8, Encoding::q8_0},  {12, Encoding::q4_k}, {13, Encoding::q5_k},
      {14, Encoding::q6_k}, {30, Encoding::bf16}, {39, Encoding::mxfp4_blocks}};
  for (const auto& [known, encoding] : kKnown) {
    if (type == known) return encoding;
  }
  constexpr std::pair<std::uint32_t, const char*> kOthers[] = {
      {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
      {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
      {40, "NVFP4"},  {41, "Q1_0"}};
  const auto* const other =
      std::ranges::find(kOthers, type, &std::pair<std::uint32_t, const char*>::first);
  fail(tensor,
       ": expected type F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or MXFP4, ",
       "found ", other == std::end(kOthers) ? str("type ", type) : other->second);
}

// The offset stays relative to the data; check_layout() makes it absolute.
StoredTensor read_tensor(Cursor& cursor, const std::string& where) {
  StoredTensor tensor;
  tensor.name = tensor.stored_name = cursor.read_name("a tensor's name");
  const std::string what = str("tensor ", printable(tensor.name));
  const std::string in_file = str(where, ": ", what);
  const auto dimensions = cursor.read<std::uint32_t>(what);
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    fail(in_file, ": expected 1 to ", kMaxDimensions, " dimensions, found ", dimensions);
  }
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor.read<std::uint64_t>(what);
    if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      fail(in_file, ": a dimension of ", size, " is too large to exist");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  tensor.encoding = encoding_of(cursor.read<std::uint32_t>(what), in_file);
  tensor.offset = cursor.read<std::uint64_t>(what);

  const std::int64_t block = block_elements(tensor.encoding);
  if (block > 1 && (dimensions < 2 || tensor.shape.back() % block != 0)) {
    fail(in_file, ": ", name_of(tensor.encoding), " ", shape_text(tensor.shape),
         ": expected rows of whole blocks of ", block, " elements");
  }
  const auto bytes = bytes_of(tensor.encoding, tensor.shape);
  if (!bytes) fail(in_file, ": shape ", shape_text(tensor.shape), " is too large to exist");
  tensor.bytes = *bytes;
  return tensor;
}

std::uint64_t alignment_of(const GgufMetadata& metadata) {
  const auto alignment = metadata.integer("general.alignment").value_or(32);
  if (alignment <= 0 || !std::has_single_bit(static_cast<std::uint64_t>(alignment)) ||
      alignment > 1 << 30) {
    fail(metadata.where(), ": metadata general.alignment: expected a power of two, found ",
         alignment);
  }
  return static_cast<std::uint64_t>(alignment);
}

// Makes offsets absolute, and checks that every tensor lies in the file and no two overlap.
void check_layout(std::vector<StoredTensor>& tensors, std::uint64_t header_bytes,
                  std::uint64_t alignment, std::uint64_t file_size, const std::string& where) {
  // A file without data may end before the first multiple of the alignment; tensors of no bytes lie
  // in it all the same.
  const std::uint64_t data_begin = std::min(round_up(header_bytes, alignment), file_size);
  const std::uint64_t data_bytes = file_size - data_begin;
  std::vector<const StoredTensor*> in_order;
  for (StoredTensor& tensor : tensors) {
    const std::string in_file = str(where, ": tensor ", printable(tensor.name));
    if (tensor.offset % alignment != 0) {
      fail(in_file, ": expected an offset that is a multiple of ", alignment, ", found ",
           tensor.offset);
    }
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      fail(in_file, ": ", name_of(tensor.encoding), " ", shape_text(tensor.shape), ": ",
           tensor.bytes, " bytes at byte ", tensor.offset, " of the data, which has ", data_bytes,
           ": the file is truncated or its header wrong");
    }
    tensor.offset += data_begin;
    in_order.push_back(&tensor);
  }
  std::ranges::sort(in_order, [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    const StoredTensor& before = *in_order[i - 1];
    if (before.offset + before.bytes > in_order[i]->offset) {
      fail(where, ": tensor ", printable(in_order[i]->name), ": begins at byte ",
           in_order[i]->offset, " of the file, inside ", printable(before.name), ", which ends at ",
           before.offset + before.bytes);
    }
  }
}

void check_version(Cursor& cursor, const std::string& where) {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  if (cursor.read<std::uint32_t>("the magic number") != kMagic) fail(where, ": not a GGUF file");
  const auto version = cursor.read<std::uint32_t>("the version");
  if (version == 2 || version == 3) return;
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  fail(where, ": expected GGUF version 2 or 3, found ",
       swapped ? "a big endian file" : str("version ", version));
}

GgufHeader parse(Cursor& cursor, std::uint64_t file_size, const std::string& where,
                 GgufArrays arrays) {
  check_version(cursor, where);
  const auto tensor_count = cursor.read<std::uint64_t>("the number of tensors");
  const auto pair_count = cursor.read<std::uint64_t>("the number of metadata");
  if (tensor_count > file_size / kMinTensorBytes || pair_count > file_size / kMinPairBytes) {
    fail(where, ": ", tensor_count, " tensors and ", pair_count,
         " metadata do not fit into a file of ", file_size, " bytes: truncated or corrupt");
  }
  GgufHeader header{GgufMetadata(where), {}};
  for (std::uint64_t i = 0; i < pair_count; ++i) {
    std::string key = cursor.read_name("a metadata key");
    GgufValue value = read_value(cursor, arrays, str("metadata ", printable(key)), where);
    header.metadata.insert(std::move(key), std::move(value));
  }
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    header.tensors.push_back(read_tensor(cursor, where));
    const std::string& name = header.tensors.back().name;
    if (!names.insert(name).second) fail(where, ": tensor ", printable(name), " is there twice");
  }
  check_layout(header.tensors, cursor.at(), alignment_of(header.metadata), file_size, where);
  return header;
}

}  // namespace

std::optional<GgufHeader> parse_gguf(std::span<const std::byte> bytes, std::uint64_t file_size,
                                     const std::string& where, GgufArrays arrays) {
  Cursor cursor(bytes, file_size, where);
  try {
    return parse(cursor, file_size, where, arrays);
  } catch (const MoreNeeded&) {
    return std::nullopt;
  }
}

// GgufMetadata.
namespace {

std::string describe(const GgufValue& value) {
  struct Describe {
    std::string operator()(std::uint64_t number) const { return str(number); }
    std::string operator()(std::int64_t number) const { return str(number); }
    std::string operator()(double number) const { return str(number); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(const std::string& text) const { return '"' + printable(text) + '"'; }
    std::string operator()(const GgufArray& array) const {
      return str("an array of ", array.count);
    }
  };
  return std::visit(Describe{}, value);
}

}  // namespace

void GgufMetadata::insert(std::string key, GgufValue value) {
  const auto [at, is_new] = values_.try_emplace(std::move(key), std::move(value));
  if (!is_new) fail(where_, ": metadata ", printable(at->first), " is there twice");
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void GgufMetadata::fail_kind(std::string_view key, std::string_view expected) const {
  fail(where_, ": metadata ", key, ": expected ", expected, ", found ", describe(*find(key)));
}

template <typename T>
const T* GgufMetadata::find_kind(std::string_view key, std::string_view expected) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return nullptr;
  if (const T* found = std::get_if<T>(value)) return found;
  fail_kind(key, expected);
}

template <typename T>
T GgufMetadata::required(std::string_view key, std::optional<T> value) const {
  if (!value) fail(where_, ": metadata ", key, " is missing");
  return *std::move(value);
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(value)) {
    if (std::in_range<std::int64_t>(*number)) return static_cast<std::int64_t>(*number);
  }
  fail_kind(key, "a whole number");
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) {
    if (std::isfinite(*number)) return *number;
  }
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(value)) return static_cast<double>(*number);
  fail_kind(key, "a finite number");
}

std::optional<std::string> GgufMetadata::text(std::string_view key) const {
  const auto* text = find_kind<std::string>(key, "a text");
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const bool* flag = find_kind<bool>(key, "true or false");
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

bool GgufMetadata::has_array(std::string_view key) const {
  const GgufValue* const value = find(key);
  return value != nullptr && std::holds_alternative<GgufArray>(*value);
}

std::optional<std::vector<std::string>> GgufMetadata::texts(std::string_view key) const {
  const auto* array = find_kind<GgufArray>(key, "texts");
  if (array == nullptr) return std::nullopt;
  if (array->texts.size() != array->count) fail_kind(key, "texts");
  return array->texts;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const auto* array = find_kind<GgufArray>(key, "numbers");
  if (array == nullptr) return std::nullopt;
  if (array->numbers.size() != array->count) fail_kind(key, "numbers");
  return array->numbers;
}

std::optional<std::int64_t> GgufMetadata::index_of(std::string_view key,
                                                   std::string_view text) const {
  const auto* array = find_kind<GgufArray>(key, "texts");
  if (array == nullptr) return std::nullopt;
  for (const auto& [bracketed, index] : array->bracketed) {
    if (bracketed == text) return index;
  }
  return std::nullopt;
}

std::int64_t GgufMetadata::required_integer(std::string_view key) const {
  return required(key, integer(key));
}

double GgufMetadata::required_number(std::string_view key) const {
  return required(key, number(key));
}

std::string GgufMetadata::required_text(std::string_view key) const {
  return required(key, text(key));
}

}  // namespace nvllm::model
